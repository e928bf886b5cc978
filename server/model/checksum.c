/*
 * Files are hashed by GnuTLS from their mappings, in pieces that are given back, so that little of
 * them stays resident; one file per thread at a time.
 */
#include "server/model/checksum.h"

#include <dirent.h>
#include <errno.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/buf.h"
#include "common/bundle.h"
#include "common/err.h"
#include "common/hex.h"
#include "server/model/files.h"
#include "server/model/model.h"

#define LIST_MOST_BYTES (2u << 20)
#define PIECE           (4u << 20) /* bytes between two times that pages are given back */
#define THREADS         4u

/* One line without its end; false if it is not a checksum. */
static bool read_line(const char *line, size_t len, struct checksum *c)
{
    const size_t name = 2 * (size_t)CHECKSUM_BYTES + 2;

    if (len <= name || len - name >= sizeof(c->name) || line[name - 2] != ' ' ||
        (line[name - 1] != ' ' && line[name - 1] != '*'))
        return false;
    for (uint32_t i = 0; i < CHECKSUM_BYTES; i++) {
        int high = ek_hex_digit(line[2 * i]), low = ek_hex_digit(line[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        c->hash[i] = (uint8_t)(high << 4 | low);
    }
    memcpy(c->name, line + name, len - name);
    c->name[len - name] = '\0';
    return strlen(c->name) == len - name && model_name_ok(c->name);
}

void checksum_done(struct checksum_list *list)
{
    free(list->at);
    *list = (struct checksum_list){0};
}

int checksum_parse(const char *file, const char *text, size_t len, struct checksum_list *ret_list,
                   struct ek_fault *fault)
{
    struct checksum_list list = {0};
    uint32_t room = 0, number = 0;
    int r = 0;

    for (size_t at = 0; at < len && r == 0; number++) {
        const char *line = text + at, *end = memchr(line, '\n', len - at);
        size_t bytes = end ? (size_t)(end - line) : len - at;
        at += bytes + 1;
        if (bytes > 0 && line[bytes - 1] == '\r')
            bytes--;
        if (bytes == 0 || line[0] == '#')
            continue;
        if (list.count == room) {
            room = room ? room * 2 : 16;
            struct checksum *more = realloc(list.at, room * sizeof(*more));
            if (!more) {
                r = -ENOMEM;
                break;
            }
            list.at = more;
        }
        if (list.count == CHECKSUM_FILES_MOST || !read_line(line, bytes, &list.at[list.count++]))
            r = ek_fault_set(fault, file,
                             "%s: line %u is not a SHA-256 and the name of a file in the model "
                             "directory; write it with: sha256sum *.safetensors",
                             file, number + 1);
    }
    if (r == 0 && list.count == 0)
        r = ek_fault_set(fault, file,
                         "%s: has no checksums; write it with: sha256sum *.safetensors", file);
    if (r == 0) {
        *ret_list = list;
        list = (struct checksum_list){0};
    }
    checksum_done(&list);
    return r;
}

/* What the threads share; the fault is under the lock. */
struct checksum_work {
    const struct checksum_of *of;
    const struct checksum_list *list;
    atomic_uint next;
    atomic_ullong bytes;
    pthread_mutex_t lock;
    int code;
    struct ek_fault fault;
};

static int hash_file(const struct ek_weight_file *f, uint8_t hash[CHECKSUM_BYTES])
{
    gnutls_hash_hd_t h;

    if (gnutls_hash_init(&h, GNUTLS_DIG_SHA256) < 0)
        return -ENOMEM;
    int r = 0;
    for (uint64_t at = 0; at < f->size_bytes && r >= 0; at += PIECE) {
        uint64_t left = f->size_bytes - at, n = left < PIECE ? left : PIECE;
        char *from = (char *)(uintptr_t)f->data + at;
        r = gnutls_hash(h, from, (size_t)n);
        (void)madvise(from, (size_t)n, MADV_DONTNEED); /* only saves memory */
    }
    gnutls_hash_deinit(h, hash);
    return r < 0 ? -EBADMSG : 0;
}

/* The mapping of a weight file of that name, which is what will be computed with; NULL if it is
 * none. */
static const struct ek_weight_file *find_weights(const struct model *m, const char *name)
{
    for (uint32_t i = 0; m && i < m->files.count; i++)
        if (strcmp(m->file_name[i], name) == 0)
            return &m->files.file[i];
    return NULL;
}

/* Whether a file that was read before is another one than that. */
static bool is_other(const struct ek_bundle *b, const char *path, const struct ek_bundle_file *file)
{
    const struct ek_bundle_part *p = b ? ek_bundle_find(b, path) : NULL;
    return p && !p->is_fault && memcmp(&p->file, file, sizeof(*file)) != 0;
}

static int map_other(const struct checksum_of *of, const char *name,
                     struct ek_weight_file *ret_file, struct ek_fault *fault)
{
    struct ek_bundle_file which;
    char path[PATH_MAX];
    int r =
        model_file_map(of->dir, name, ret_file, &which, fault); /* says if the path is too long */
    if (r < 0)
        return r;
    (void)snprintf(path, sizeof(path), "%s/%s", of->dir, name);
    if (!is_other(of->weights, path, &which) && !is_other(of->texts, path, &which))
        return 0;
    model_file_unmap(ret_file);
    return ek_fault_set(fault, name,
                        "%s: is not the file that it was when it was read; start again when "
                        "nothing writes to the model's directory",
                        name);
}

static int verify_one(struct checksum_work *w, const struct checksum *c, struct ek_fault *fault)
{
    const struct ek_weight_file *weights = find_weights(w->of->model, c->name);
    struct ek_weight_file f = {0};
    uint8_t hash[CHECKSUM_BYTES];
    int r = weights ? 0 : map_other(w->of, c->name, &f, fault);

    if (r < 0)
        return r;
    r = hash_file(weights ? weights : &f, hash);
    atomic_fetch_add(&w->bytes, weights ? weights->size_bytes : f.size_bytes);
    model_file_unmap(&f);
    if (r == 0 && memcmp(hash, c->hash, sizeof(hash)) != 0)
        return ek_fault_set(fault, c->name,
                            "%s: is not the file that the list of checksums means; download it "
                            "again, or correct the list if the file was changed on purpose",
                            c->name);
    return r;
}

static void *verify_some(void *arg)
{
    struct checksum_work *w = arg;
    struct ek_fault fault = {.msg = ""};
    int r = 0;

    while (r == 0) {
        unsigned i = atomic_fetch_add(&w->next, 1);
        if (i >= w->list->count)
            return NULL;
        r = verify_one(w, &w->list->at[i], &fault);
    }
    (void)pthread_mutex_lock(&w->lock);
    if (w->code == 0) {
        w->code = r == -ENOENT ? -EBADMSG : r;
        w->fault = fault;
    }
    (void)pthread_mutex_unlock(&w->lock);
    atomic_store(&w->next, w->list->count); /* the others need not go on */
    return NULL;
}

static int verify_all(struct checksum_work *w, struct ek_fault *fault)
{
    pthread_t thread[THREADS];
    uint32_t started = 0;

    (void)pthread_mutex_init(&w->lock, NULL);
    while (started + 1 < THREADS && started + 1 < w->list->count &&
           pthread_create(&thread[started], NULL, verify_some, w) == 0)
        started++;
    (void)verify_some(w);
    for (uint32_t i = 0; i < started; i++)
        (void)pthread_join(thread[i], NULL);
    (void)pthread_mutex_destroy(&w->lock);
    if (w->code < 0 && fault)
        *fault = w->fault;
    return w->code;
}

static int check_one(const char *name, const char *file, const struct checksum_list *list,
                     struct ek_fault *fault)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (strcmp(list->at[i].name, name) == 0)
            return 0;
    return ek_fault_set(fault, name,
                        "%.200s: is not on the list %s; add it, or remove the file if it does not "
                        "belong to the model",
                        name, file);
}

/* Every file that weights are read from must be on the list, whatever its name, and every
 * safetensors file of the directory. */
static int check_listed(const struct checksum_of *of, const char *file,
                        const struct checksum_list *list, struct ek_fault *fault)
{
    static const char END[] = ".safetensors";
    int r = 0;
    for (uint32_t i = 0; of->model && i < of->model->files.count && r == 0; i++)
        r = check_one(of->model->file_name[i], file, list, fault);
    DIR *d = r == 0 ? opendir(of->dir) : NULL;
    for (struct dirent *e = d ? readdir(d) : NULL; e && r == 0; e = readdir(d)) {
        size_t len = strlen(e->d_name), tail = sizeof(END) - 1;
        if (len >= tail && strcmp(e->d_name + len - tail, END) == 0)
            r = check_one(e->d_name, file, list, fault);
    }
    if (d)
        (void)closedir(d); /* only read */
    return r;
}

static int read_list(struct ek_bundle *b, const char *dir, const char *path, struct ek_buf *text,
                     struct ek_fault *fault)
{
    char parent[4096] = ".";
    const char *slash = path ? strrchr(path, '/') : NULL;

    if (!path)
        return model_file_read(b, dir, CHECKSUM_FILE, LIST_MOST_BYTES, text, fault);
    if (slash && (size_t)(slash - path) < sizeof(parent))
        (void)snprintf(parent, sizeof(parent), "%.*s", slash > path ? (int)(slash - path) : 1,
                       path);
    int r = model_file_read(NULL, parent, slash ? slash + 1 : path, LIST_MOST_BYTES, text, fault);
    return r == -ENOENT ? -EBADMSG : r;
}

int checksum_read(struct ek_bundle *b, const char *dir, const char *path,
                  struct checksum_list *ret_list, struct ek_fault *fault)
{
    struct ek_buf text = {0};
    *ret_list = (struct checksum_list){0};
    if (!path && !model_file_exists(b, dir, CHECKSUM_FILE))
        return 0;
    int r = read_list(b, dir, path, &text, fault);
    if (r == 0)
        r = checksum_parse(path ? path : CHECKSUM_FILE, text.data ? text.data : "", text.len,
                           ret_list, fault);
    ek_buf_done(&text);
    return r;
}

int checksum_verify(const struct checksum_of *of, const char *path, uint32_t *ret_files,
                    uint64_t *ret_bytes, struct ek_fault *fault)
{
    struct checksum_list list = {0};
    struct checksum_work w = {.of = of, .list = &list};
    int r = checksum_read(of->weights, of->dir, path, &list, fault);
    if (r == 0 && list.count > 0)
        r = check_listed(of, path ? path : CHECKSUM_FILE, &list, fault);
    if (r == 0 && list.count > 0)
        r = verify_all(&w, fault);
    if (r == 0) {
        *ret_files = list.count;
        *ret_bytes = atomic_load(&w.bytes);
    }
    checksum_done(&list);
    return r;
}
