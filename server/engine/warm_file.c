/*
 * Writes and reads the file of warm blocks (warm_file.h has its layout), for keep.c. Contents go
 * through one buffer, block by block, so a cache of many gigabytes needs little memory. The reader
 * trusts nothing: head and index are checked by sum and size before they are used, a parent lies
 * before its block, and the content of each block is checked when it is read, so damage in one
 * place costs one block and what is behind it in its chain.
 */
#include "server/engine/warm_file.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/err.h"
#include "common/file.h"

#define MAGIC  "EKWARM2\n"
#define BUFFER (1u << 20) /* between us and the file */

struct warm_head {
    char magic[8];
    struct warm_about about;
    uint32_t count, states; /* blocks, and how many of them have a state */
    uint64_t index_at, index_bytes, index_sum;
    uint64_t sum; /* of all above */
};

struct warm_row {
    uint64_t owner, sum;
    uint32_t parent, state; /* state: 1 = it has one */
};

struct warm_file {
    FILE *f;
    struct warm_head head;
    struct warm_list list;
    uint64_t *sum; /* [count] */
    uint64_t *at;  /* [count] where its content is */
    uint32_t next; /* block that the file stands at */
};

static uint64_t sum_of(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

static uint64_t head_sum(const struct warm_head *h)
{
    return sum_of(h, offsetof(struct warm_head, sum));
}

uint64_t warm_file_row_bytes(uint32_t block_size)
{
    return sizeof(struct warm_row) + block_size * sizeof(int32_t);
}

static uint64_t content_bytes(const struct warm_about *about, const struct warm_block *b)
{
    return about->block_bytes + (b->state == WARM_NONE ? 0 : about->state_bytes);
}

static uint64_t contents_bytes(const struct warm_head *h)
{
    return h->count * h->about.block_bytes + h->states * h->about.state_bytes;
}

uint64_t warm_file_room(const char *path, uint64_t most)
{
    const char *slash = strrchr(path, '/');
    char dir[PATH_MAX];
    struct statvfs v;

    (void)snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - path + 1) : 1,
                   slash ? path : ".");
    if (statvfs(dir, &v) < 0)
        return most; /* writing will say what is wrong */
    uint64_t half = (uint64_t)v.f_bavail * v.f_frsize / 2;
    return half < most ? half : most;
}

/* ---- writing ---- */

static int warm_put(FILE *f, const void *data, size_t bytes)
{
    errno = EIO;
    return fwrite(data, 1, bytes, f) == bytes ? 0 : -errno;
}

/* The contents, and the sum of each in its row; how many came is head->count. */
static int write_contents(FILE *f, const struct warm_list *l, warm_read_fn read, void *ctx,
                          struct warm_head *head, struct warm_row *row)
{
    char *block = malloc(head->about.block_bytes + head->about.state_bytes);
    int r = block ? 0 : -ENOMEM;

    while (r == 0 && head->count < l->count) {
        const struct warm_block *b = &l->block[head->count];
        if (read(ctx, b, block) != 0)
            break;
        const uint64_t bytes = content_bytes(&head->about, b);
        row[head->count++] = (struct warm_row){.owner = b->owner,
                                               .parent = b->parent,
                                               .state = b->state != WARM_NONE,
                                               .sum = sum_of(block, bytes)};
        head->states += b->state != WARM_NONE;
        r = warm_put(f, block, bytes);
    }
    free(block);
    return r;
}

static int write_index(FILE *f, const struct warm_list *l, struct warm_head *head,
                       const struct warm_row *row)
{
    const size_t rows = head->count * sizeof(*row);
    const size_t tokens = (size_t)head->count * l->block_size * sizeof(*l->tokens);
    XXH3_state_t *sum = XXH3_createState();

    if (!sum)
        return -ENOMEM;
    (void)XXH3_64bits_reset(sum); /* neither fails on memory that is there */
    (void)XXH3_64bits_update(sum, row, rows);
    (void)XXH3_64bits_update(sum, l->tokens, tokens);
    head->index_sum = XXH3_64bits_digest(sum);
    (void)XXH3_freeState(sum);
    head->index_at = sizeof(*head) + contents_bytes(head);
    head->index_bytes = rows + tokens;
    int r = warm_put(f, row, rows);
    return r < 0 ? r : warm_put(f, l->tokens, tokens);
}

static int write_all(FILE *f, const struct warm_list *l, warm_read_fn read, void *ctx,
                     struct warm_head *head)
{
    struct warm_row *row = calloc((size_t)l->count + 1, sizeof(*row));
    int r = row ? warm_put(f, head, sizeof(*head)) : -ENOMEM; /* its sum is wrong until the end */

    if (r == 0)
        r = write_contents(f, l, read, ctx, head, row);
    if (r == 0)
        r = write_index(f, l, head, row);
    free(row);
    if (r < 0)
        return r;
    head->sum = head_sum(head);
    if (fseek(f, 0, SEEK_SET) < 0)
        return -errno;
    r = warm_put(f, head, sizeof(*head));
    errno = EIO;
    return r == 0 && fflush(f) != 0 ? -errno : r;
}

void warm_file_forget(const char *path)
{
    ek_file_drop_part(path);
    (void)unlink(path); /* it may not be there */
}

struct warm_writing {
    struct warm_head head;
    const struct warm_list *l;
    warm_read_fn read;
    void *ctx;
};

/* An ek_file_fill_fn. */
static int fill_file(void *ctx, int fd)
{
    struct warm_writing *w = ctx;
    int own = dup(fd); /* fclose() closes it */
    FILE *f = own < 0 ? NULL : fdopen(own, "w");
    int r = f ? 0 : -errno;

    if (!f) {
        if (own >= 0)
            (void)close(own);
        return r;
    }
    (void)setvbuf(f, NULL, _IOFBF, BUFFER);
    r = write_all(f, w->l, w->read, w->ctx, &w->head);
    if (fclose(f) != 0 && r == 0)
        r = -errno;
    return r;
}

int warm_file_write(const char *path, const struct warm_about *about, const struct warm_list *l,
                    warm_read_fn read, void *ctx, uint32_t *ret_blocks, uint64_t *ret_bytes)
{
    struct warm_writing w = {
        .head = {.magic = MAGIC, .about = *about}, .l = l, .read = read, .ctx = ctx};
    int r = ek_file_replace_by(path, 0600, EK_FILE_PLAIN, fill_file, &w);

    if (r < 0)
        return r;
    *ret_blocks = w.head.count;
    *ret_bytes = w.head.index_at + w.head.index_bytes;
    return 0;
}

/* ---- reading ---- */

static int check_head(struct warm_head *h, const struct warm_about *want, uint64_t file_bytes,
                      struct ek_fault *fault)
{
    struct warm_about *is = &h->about;

    if (memcmp(h->magic, MAGIC, sizeof(h->magic)) != 0 || h->sum != head_sum(h))
        return ek_fault_set(fault, "", "it is damaged");
    is->version[WARM_TEXT - 1] = is->layout[WARM_TEXT - 1] =
        '\0'; /* a sum does not prove who wrote it */
    if (strcmp(is->version, want->version) != 0)
        return ek_fault_set(fault, "", "version %s wrote it", is->version);
    if (is->model != want->model)
        return ek_fault_set(fault, "", "it is of another model");
    if (strcmp(is->layout, want->layout) != 0)
        return ek_fault_set(fault, "", "it is of %s, and this is %s", is->layout, want->layout);
    if (is->block_size != want->block_size || is->block_bytes != want->block_bytes)
        return ek_fault_set(fault, "",
                            "its blocks are of %u tokens and %llu bytes, not %u and %llu",
                            is->block_size, (unsigned long long)is->block_bytes, want->block_size,
                            (unsigned long long)want->block_bytes);
    if (is->state_bytes != want->state_bytes)
        return ek_fault_set(fault, "", "its states are of %llu bytes, not %llu",
                            (unsigned long long)is->state_bytes,
                            (unsigned long long)want->state_bytes);
    if (h->index_at != sizeof(*h) + contents_bytes(h) ||
        h->index_bytes != h->count * warm_file_row_bytes(is->block_size) ||
        h->index_at + h->index_bytes != file_bytes)
        return ek_fault_set(fault, "", "it is damaged");
    return 0;
}

/* The rows and tokens become the list. */
static int take_index(struct warm_file *w, const char *index, struct ek_fault *fault)
{
    const struct warm_head *h = &w->head;
    const size_t tokens = (size_t)h->count * h->about.block_size * sizeof(*w->list.tokens);

    w->list.block_size = h->about.block_size;
    w->list.block = calloc((size_t)h->count + 1, sizeof(*w->list.block));
    w->list.tokens = malloc(tokens + 1);
    w->sum = calloc((size_t)h->count + 1, sizeof(*w->sum));
    w->at = calloc((size_t)h->count + 1, sizeof(*w->at));
    if (!w->list.block || !w->list.tokens || !w->sum || !w->at)
        return -ENOMEM;
    uint64_t at = sizeof(*h);
    for (uint32_t i = 0; i < h->count; i++) {
        struct warm_row row;
        memcpy(&row, index + i * sizeof(row), sizeof(row));
        if (row.parent != WARM_NONE && row.parent >= i)
            return ek_fault_set(fault, "", "it is damaged");
        w->list.block[i] = (struct warm_block){
            .owner = row.owner, .parent = row.parent, .state = row.state == 0 ? WARM_NONE : 0};
        w->sum[i] = row.sum;
        w->at[i] = at;
        at += content_bytes(&h->about, &w->list.block[i]);
    }
    if (at != h->index_at)
        return ek_fault_set(fault, "", "it is damaged");
    memcpy(w->list.tokens, index + h->count * sizeof(struct warm_row), tokens);
    w->list.count = h->count;
    return 0;
}

static int read_index(struct warm_file *w, struct ek_fault *fault)
{
    const struct warm_head *h = &w->head;
    char *index = malloc(h->index_bytes + 1);
    int r = index ? 0 : -ENOMEM;

    if (r == 0 && (fseeko(w->f, (off_t)h->index_at, SEEK_SET) < 0 ||
                   fread(index, 1, h->index_bytes, w->f) != h->index_bytes))
        r = ek_fault_set(fault, "", "it cannot be read");
    if (r == 0 && sum_of(index, h->index_bytes) != h->index_sum)
        r = ek_fault_set(fault, "", "it is damaged");
    if (r == 0)
        r = take_index(w, index, fault);
    free(index);
    if (r == 0 && fseeko(w->f, sizeof(*h), SEEK_SET) < 0)
        r = -errno;
    return r;
}

int warm_file_open(const char *path, const struct warm_about *about, struct warm_file **ret_file,
                   struct ek_fault *fault)
{
    struct stat st;

    ek_file_drop_part(path);
    int fd = ek_file_open_regular(path);
    if (fd < 0)
        return fd;
    int gone = unlink(path) < 0 ? -errno : 0;
    struct warm_file *w = calloc(1, sizeof(*w));
    if (w)
        w->f = fdopen(fd, "r");
    if (!w || !w->f) {
        free(w);
        (void)close(fd);
        return -ENOMEM;
    }
    (void)setvbuf(w->f, NULL, _IOFBF, BUFFER);
    int r = gone < 0 ? gone : fstat(fd, &st) < 0 ? -errno : 0;
    if (r == 0 && (st.st_uid != geteuid() || (st.st_mode & 077) != 0))
        r = ek_fault_set(fault, "", "it is not for this user alone (mode 0600)");
    if (r == 0 &&
        (st.st_size < (off_t)sizeof(w->head) || fread(&w->head, sizeof(w->head), 1, w->f) != 1))
        r = ek_fault_set(fault, "", "it is damaged");
    if (r == 0)
        r = check_head(&w->head, about, (uint64_t)st.st_size, fault);
    if (r == 0)
        r = read_index(w, fault);
    if (r < 0) {
        warm_file_close(w);
        return r;
    }
    *ret_file = w;
    return 0;
}

const struct warm_list *warm_file_list(const struct warm_file *f)
{
    return &f->list;
}

const uint8_t *warm_file_secret(const struct warm_file *f)
{
    return f->head.about.secret;
}

uint64_t warm_file_bytes(const struct warm_file *f)
{
    return f->head.index_at + f->head.index_bytes;
}

int warm_file_read(struct warm_file *w, uint32_t i, void *to)
{
    const uint64_t bytes = content_bytes(&w->head.about, &w->list.block[i]);

    if (i != w->next && fseeko(w->f, (off_t)w->at[i], SEEK_SET) < 0)
        return -errno;
    w->next = i + 1;
    if (fread(to, 1, bytes, w->f) != bytes) {
        w->next = WARM_NONE;
        return -EIO;
    }
    return sum_of(to, bytes) == w->sum[i] ? 0 : -EBADMSG;
}

void warm_file_close(struct warm_file *w)
{
    if (!w)
        return;
    (void)fclose(w->f); /* read alone */
    warm_list_done(&w->list);
    free(w->sum);
    free(w->at);
    free(w);
}
