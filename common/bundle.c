/*
 * A bundle of files (bundle.h). server/check.c makes and opens them; server/model/files.c and
 * server/text/textfile.c put files in and take them out.
 *
 * In the memfd: a word that tells the version, then for each part a record, its name and its text,
 * each with a NUL behind, then a record without a name, where it must end. Numbers are this
 * machine's: both sides are one program.
 *
 * The reader maps it after the seals are on, so that what was checked is what is read.
 */
#include "common/bundle.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/json.h"
#include "common/jsonform.h"

#define NAME_MOST   4400u /* bytes: a folder and a file in it */
#define FAULT_MOST  sizeof(((struct ek_fault *)0)->msg)
#define SEALS       (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)
#define ROOM        (EK_BUNDLE_MOST_BYTES + EK_BUNDLE_FAULT_BYTES)
#define FIRST_PARTS 16u

static const char WORD[8] = "EKBUND1";

struct bundle_record {
    uint32_t name_bytes, is_fault; /* no name: the end */
    uint64_t text_bytes, at;
    struct ek_bundle_file file;
};

struct ek_bundle {
    int fd;           /* of the side that writes, else -1 */
    const char *data; /* of the side that reads, else NULL */
    uint64_t bytes;
    struct bundle_part {
        struct ek_bundle_part of;
        uint64_t text_at;
    } * part;
    uint32_t count, room;
};

int ek_bundle_make(void)
{
    int fd = memfd_create("evenkeel-bundle", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd < 0 ? -errno : fd;
}

struct ek_bundle_file ek_bundle_which(const struct stat *st)
{
    return (struct ek_bundle_file){.device = (uint64_t)st->st_dev,
                                   .inode = (uint64_t)st->st_ino,
                                   .size_bytes = (uint64_t)st->st_size,
                                   .changed_ns = (uint64_t)st->st_mtim.tv_sec * 1000000000u +
                                                 (uint64_t)st->st_mtim.tv_nsec};
}

static int reserve_part(struct ek_bundle *b)
{
    if (b->count < b->room)
        return 0;
    const uint32_t room = b->room ? b->room * 2 : FIRST_PARTS;
    struct bundle_part *part = realloc(b->part, room * sizeof(*part));
    if (!part)
        return -ENOMEM;
    b->part = part;
    b->room = room;
    return 0;
}

/* ---- the side that writes ---- */

static int write_all(int fd, struct iovec *v, int count)
{
    while (count > 0) {
        ssize_t n = writev(fd, v, count);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        for (size_t left = (size_t)n; count > 0;) {
            const size_t step = left < v->iov_len ? left : v->iov_len;
            v->iov_base = (char *)v->iov_base + step;
            v->iov_len -= step;
            left -= step;
            if (v->iov_len > 0)
                break;
            v++;
            count--;
        }
    }
    return 0;
}

static struct iovec bundle_piece(const void *data, size_t len)
{
    return (struct iovec){.iov_base = (void *)(uintptr_t)data, .iov_len = len};
}

int ek_bundle_begin(int fd, struct ek_bundle **ret_bundle)
{
    struct iovec word = bundle_piece(WORD, sizeof(WORD));
    struct ek_bundle *b = calloc(1, sizeof(*b));
    int r = b ? write_all(fd, &word, 1) : -ENOMEM;
    if (r < 0) {
        free(b);
        return r;
    }
    b->fd = fd;
    b->bytes = sizeof(WORD);
    *ret_bundle = b;
    return 0;
}

bool ek_bundle_is_open(const struct ek_bundle *b)
{
    return b && b->fd >= 0;
}

bool ek_bundle_is_json(const char *file)
{
    const char *dot = strrchr(file, '.');
    return dot && strcmp(dot, ".json") == 0;
}

int ek_bundle_add(struct ek_bundle *b, const struct ek_bundle_part *part)
{
    const size_t name = strlen(part->name);
    const struct bundle_record rec = {.name_bytes = (uint32_t)name,
                                      .is_fault = part->is_fault,
                                      .text_bytes = part->len,
                                      .at = part->at,
                                      .file = part->file};
    const uint64_t most = part->is_fault ? ROOM : EK_BUNDLE_MOST_BYTES;
    const uint64_t text_at = b->bytes + sizeof(rec) + name + 1;
    struct iovec v[] = {bundle_piece(&rec, sizeof(rec)), bundle_piece(part->name, name + 1),
                        bundle_piece(part->text, part->len), bundle_piece("", 1)};
    assert(b->fd >= 0);
    if (name == 0 || name > NAME_MOST || b->count == EK_BUNDLE_MOST_PARTS || part->len > most ||
        text_at + part->len + 1 + sizeof(rec) > most)
        return -EFBIG;
    int r = reserve_part(b);
    char *copy = r == 0 ? strdup(part->name) : NULL;
    if (r == 0)
        r = copy ? write_all(b->fd, v, (int)(sizeof(v) / sizeof(v[0]))) : -ENOMEM;
    if (r < 0) {
        free(copy);
        return r;
    }
    struct bundle_part *own = &b->part[b->count++];
    *own = (struct bundle_part){.of = *part, .text_at = text_at};
    own->of.name = copy;
    own->of.text = NULL;
    b->bytes = text_at + part->len + 1;
    return 0;
}

int ek_bundle_end(struct ek_bundle *b)
{
    const struct bundle_record end = {0};
    struct iovec v = bundle_piece(&end, sizeof(end));
    int r = write_all(b->fd, &v, 1);
    b->fd = -1;
    return r;
}

/* What a parser says of a text that is not JSON. */
static int say_no_json(const struct ek_bundle_read *read, const struct ek_buf *text,
                       struct ek_fault *fault)
{
    json_error_t e = {0};
    json_t *root = ek_json_parse(text->data ? text->data : "", text->len, JSON_ALLOW_NUL, &e);
    const bool parsed = root != NULL;
    json_decref(root);
    /* jansson leaves the text empty when it ran out of memory below the parser. */
    if (!parsed && (json_error_code(&e) == json_error_out_of_memory || !e.text[0]))
        return -ENOMEM;
    fault->at = !parsed && e.line > 0 ? (uint64_t)e.line : 1;
    return ek_fault_set(
        fault, read->field, "%s: line %d: %s; it is no valid JSON, download it again", read->what,
        (int)fault->at, parsed ? "it has a NUL, a number as a key, or is nested too deep" : e.text);
}

static int write_form(const struct ek_bundle_read *read, struct ek_buf *text,
                      struct ek_fault *fault)
{
    struct ek_buf form = {0};
    int r = ek_json_form(text->data ? text->data : "", text->len, &form);
    if (r == -EBADMSG)
        r = say_no_json(read, text, fault);
    if (r == 0) {
        ek_buf_done(text);
        *text = form;
    } else {
        ek_buf_done(&form);
    }
    return r;
}

int ek_bundle_keep(struct ek_bundle *b, const struct ek_bundle_read *read, int r,
                   struct ek_buf *text, struct ek_fault *fault)
{
    if (r == 0 && read->is_json)
        r = write_form(read, text, fault);
    if (r == 0)
        r = ek_bundle_add(b, &(struct ek_bundle_part){.name = read->path,
                                                      .text = text->data ? text->data : "",
                                                      .len = text->len,
                                                      .at = read->at,
                                                      .file = read->file});
    if (r == -EFBIG)
        r = ek_fault_set(fault, read->field,
                         "%s: with it the files that are read at start have more than %llu MiB "
                         "together; leave out what is not of the model",
                         read->what, EK_BUNDLE_MOST_BYTES >> 20);
    if (r != -EBADMSG)
        return r == 0 || r == -ENOENT ? r : -ENOMEM; /* of a memfd: there was no page for it */
    ek_text_clean(fault->msg);                       /* it may quote the file */
    int kept = ek_bundle_add(b, &(struct ek_bundle_part){.name = read->path,
                                                         .text = fault->msg,
                                                         .len = strlen(fault->msg),
                                                         .is_fault = true,
                                                         .at = fault->at});
    return kept < 0 ? -ENOMEM : r;
}

/* ---- the side that reads ---- */

int ek_bundle_seal(int fd)
{
    return fcntl(fd, F_ADD_SEALS, SEALS) < 0 ? -errno : 0;
}

/* A sentence that can be printed. */
static bool is_clean(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return false;
    return true;
}

/* One part, and where the next one begins. False when it is not as ek_bundle_add() writes it. */
static bool read_part(const struct ek_bundle *b, uint64_t *at, const struct bundle_record *rec,
                      struct bundle_part *ret_part)
{
    const char *name = b->data + *at + sizeof(*rec);
    const uint64_t left = b->bytes - *at - sizeof(*rec);
    if (rec->name_bytes > NAME_MOST || rec->is_fault > 1 || rec->name_bytes + 2 > left ||
        rec->text_bytes > left - rec->name_bytes - 2)
        return false;
    const char *text = name + rec->name_bytes + 1;
    /* A folder's name may have any byte but this one: names are compared, not printed. */
    if (strnlen(name, rec->name_bytes + 1) != rec->name_bytes || text[rec->text_bytes] != '\0' ||
        ek_bundle_find(b, name))
        return false;
    if (rec->is_fault && (rec->text_bytes >= FAULT_MOST || !is_clean(text, rec->text_bytes)))
        return false;
    *ret_part = (struct bundle_part){.of = {.name = name,
                                            .text = text,
                                            .len = rec->text_bytes,
                                            .is_fault = rec->is_fault == 1,
                                            .at = rec->at,
                                            .file = rec->file}};
    *at += sizeof(*rec) + rec->name_bytes + rec->text_bytes + 2;
    return true;
}

static int read_parts(struct ek_bundle *b)
{
    uint64_t at = sizeof(WORD);
    if (memcmp(b->data, WORD, sizeof(WORD)) != 0)
        return -EBADMSG;
    for (;;) {
        struct bundle_record rec;
        if (b->bytes - at < sizeof(rec))
            return -EBADMSG;
        memcpy(&rec, b->data + at, sizeof(rec));
        if (rec.name_bytes == 0) {
            static const struct bundle_record end;
            bool ends = b->bytes - at == sizeof(rec) && memcmp(&rec, &end, sizeof(rec)) == 0;
            return ends ? 0 : -EBADMSG;
        }
        if (b->count == EK_BUNDLE_MOST_PARTS)
            return -EBADMSG;
        int r = reserve_part(b);
        if (r < 0)
            return r;
        if (!read_part(b, &at, &rec, &b->part[b->count]))
            return -EBADMSG;
        b->count++;
    }
}

int ek_bundle_open(int fd, struct ek_bundle **ret_bundle)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) < 0 ||
        (uint64_t)st.st_size < sizeof(WORD) || (uint64_t)st.st_size > ROOM)
        return -EBADMSG;
    struct ek_bundle *b = calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        free(b);
        return -ENOMEM;
    }
    *b = (struct ek_bundle){.fd = -1, .data = p, .bytes = (uint64_t)st.st_size};
    int r = read_parts(b);
    if (r < 0) {
        ek_bundle_free(b);
        return r;
    }
    *ret_bundle = b;
    return 0;
}

/* ---- both ---- */

static const struct bundle_part *find_part(const struct ek_bundle *b, const char *name)
{
    for (uint32_t i = 0; i < b->count; i++)
        if (strcmp(b->part[i].of.name, name) == 0)
            return &b->part[i];
    return NULL;
}

const struct ek_bundle_part *ek_bundle_find(const struct ek_bundle *b, const char *name)
{
    const struct bundle_part *p = find_part(b, name);
    return p ? &p->of : NULL;
}

/* Its text or, of a fault, its sentence. */
static int copy_text(const struct ek_bundle *b, const struct bundle_part *p, char *to)
{
    if (b->data)
        memcpy(to, p->of.text, p->of.len);
    for (size_t at = 0; !b->data && at < p->of.len;) {
        ssize_t n = pread(b->fd, to + at, p->of.len - at, (off_t)(p->text_at + at));
        if (n <= 0 && errno != EINTR)
            return -EIO;
        at += n > 0 ? (size_t)n : 0;
    }
    to[p->of.len] = '\0';
    return 0;
}

int ek_bundle_take(const struct ek_bundle *b, const struct ek_bundle_read *read, struct ek_buf *out,
                   struct ek_fault *fault)
{
    const struct bundle_part *p = find_part(b, read->path);
    if (!p)
        return -ENOENT;
    if (p->of.is_fault) {
        char text[FAULT_MOST];
        int r = copy_text(b, p, text);
        if (r < 0)
            return r;
        if (fault)
            fault->at = p->of.at;
        return ek_fault_set(fault, read->field, "%s", text);
    }
    if (p->of.len > read->most_bytes)
        return ek_fault_set(fault, read->field, "%s: has %zu bytes, more than the %zu allowed",
                            read->what, p->of.len, read->most_bytes);
    int r = ek_buf_reserve(out, p->of.len + 1);
    if (r == 0)
        r = copy_text(b, p, out->data + out->len);
    if (r == 0 && b->data && read->is_json && !ek_json_has_form(out->data + out->len, p->of.len))
        r = ek_fault_set(fault, read->field,
                         "%s: the process that parsed it has not handed it back in the form that "
                         "it should have",
                         read->what);
    if (r == 0)
        out->len += p->of.len;
    return r;
}

void ek_bundle_free(struct ek_bundle *b)
{
    if (!b)
        return;
    for (uint32_t i = 0; !b->data && i < b->count; i++)
        free((char *)(uintptr_t)b->part[i].of.name);
    if (b->data)
        (void)munmap((void *)(uintptr_t)b->data, b->bytes); /* cannot fail */
    free(b->part);
    free(b);
}
