/*
 * Lists, writes, reads and prunes the files of kept ends, for servers/postmortem_keep.c. All that
 * is needed for choosing is in the file's name, so a list reads no file. A new one is written under
 * a temporary name and renamed; what an interrupted writer left is removed once it is so old that
 * no writer can be at it.
 */
#include "supervisor/io/ends.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/file.h"

#define PART      ".new" /* behind the name while ek_file_replace() writes it */
#define PART_S    60     /* longer than writing one takes */
#define LOOK_MOST 256u   /* files of one server: more can only come from another program */

static bool ends_fits(int n, size_t size)
{
    return n >= 0 && (size_t)n < size;
}

static const char *const kinds[ENDS_KINDS] = {"serving", "starting", "asked"};
static const uint32_t kept[ENDS_KINDS] = {3, 1, 1};

/* "s1.1795000000000.serving.SIGNAL.json" of server "s1" */
static bool parse_name(const char *file, const char *server, struct ends_entry *ret)
{
    size_t len = strlen(server);
    if (strlen(file) >= sizeof(ret->file) || strncmp(file, server, len) != 0 || file[len] != '.')
        return false;
    const char *ms = file + len + 1;
    size_t digits = strspn(ms, "0123456789");
    if (digits == 0 || digits > 18 || ms[digits] != '.')
        return false;
    const char *cls = ms + digits + 1;
    size_t kind = 0, word = strcspn(cls, ".");
    while (kind < ENDS_KINDS &&
           (strlen(kinds[kind]) != word || strncmp(cls, kinds[kind], word) != 0))
        kind++;
    if (kind == ENDS_KINDS || cls[word] != '.')
        return false;
    cls += word + 1;
    word = strspn(cls, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
    if (word == 0 || word >= sizeof(ret->cls) || strcmp(cls + word, ".json") != 0)
        return false;
    memcpy(ret->file, file, strlen(file) + 1);
    ret->at_ms = strtoull(ms, NULL, 10);
    ret->kind = (enum ends_kind)kind;
    memcpy(ret->cls, cls, word);
    ret->cls[word] = '\0';
    return true;
}

static int newest_first(const void *a, const void *b)
{
    const struct ends_entry *x = a, *y = b;
    return x->at_ms > y->at_ms ? -1 : x->at_ms < y->at_ms;
}

int ends_list(const char *state_dir, const char *server, struct ends_entry *ret, uint32_t most)
{
    char dir[512];
    uint32_t n = 0;
    if (!ends_fits(snprintf(dir, sizeof(dir), "%s/ends", state_dir), sizeof(dir)))
        return -ENAMETOOLONG;
    DIR *d = opendir(dir);
    if (!d)
        return errno == ENOENT ? 0 : -errno;
    struct ends_entry *all = calloc(LOOK_MOST, sizeof(*all));
    for (struct dirent *e; all && n < LOOK_MOST && (e = readdir(d)) != NULL;)
        n += parse_name(e->d_name, server, &all[n]);
    (void)closedir(d); /* only read */
    if (!all)
        return -ENOMEM;
    qsort(all, n, sizeof(*all), newest_first);
    n = n < most ? n : most;
    memcpy(ret, all, n * sizeof(*all));
    free(all);
    return (int)n;
}

/* `wrote` stays: it is the newest whatever the wall clock says, which may have been set back. */
static void prune(const char *state_dir, const char *server, const struct ends_entry *wrote)
{
    struct ends_entry *all = calloc(LOOK_MOST, sizeof(*all));
    int n = all ? ends_list(state_dir, server, all, LOOK_MOST) : 0;
    uint32_t seen[ENDS_KINDS] = {0};
    seen[wrote->kind] = 1;
    for (int i = 0; i < n; i++) {
        char path[640];
        if (strcmp(all[i].file, wrote->file) == 0 || ++seen[all[i].kind] <= kept[all[i].kind])
            continue;
        if (ends_fits(snprintf(path, sizeof(path), "%s/ends/%s", state_dir, all[i].file),
                      sizeof(path)))
            (void)unlink(path); /* the next end tries again */
    }
    free(all);
}

/* A file of this server that was not finished, and that is not written any more: another thread may
 * just be writing one. */
static bool is_stale(int dir, const char *file, const char *server, time_t now)
{
    struct ends_entry whole;
    struct stat st;
    char name[sizeof(whole.file)];
    size_t len = strlen(file), tail = strlen(PART);
    if (len <= tail || len - tail >= sizeof(name) || strcmp(file + len - tail, PART) != 0)
        return false;
    memcpy(name, file, len - tail);
    name[len - tail] = '\0';
    return parse_name(name, server, &whole) && fstatat(dir, file, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           (st.st_mtime + PART_S < now || st.st_mtime > now + PART_S);
}

static void ends_sweep(const char *dir_path, const char *server, time_t now)
{
    DIR *d = opendir(dir_path);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (is_stale(dirfd(d), e->d_name, server, now))
            (void)unlinkat(dirfd(d), e->d_name, 0); /* the next end tries again */
    if (d)
        (void)closedir(d); /* only read */
}

int ends_write(const char *state_dir, const char *server, uint64_t at_ms, enum ends_kind kind,
               const char *cls, const char *json, size_t len)
{
    char dir[512], path[640];
    struct ends_entry e = {.kind = kind};
    struct stat st;
    if (len > ENDS_BYTES)
        return -EFBIG;
    if (!ends_fits(snprintf(dir, sizeof(dir), "%s/ends", state_dir), sizeof(dir)) ||
        !ends_fits(snprintf(e.file, sizeof(e.file), "%s.%llu.%s.%s.json", server,
                            (unsigned long long)at_ms, kinds[kind], cls),
                   sizeof(e.file)) ||
        !ends_fits(snprintf(path, sizeof(path), "%s/%s", dir, e.file), sizeof(path)))
        return -ENAMETOOLONG;
    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        return -errno;
    int r = ek_file_replace(path, json, len, 0600, EK_FILE_PLAIN);
    if (r < 0)
        return r;
    prune(state_dir, server, &e);
    if (stat(path, &st) == 0)
        ends_sweep(dir, server, st.st_mtime);
    return 0;
}

int ends_read(const char *state_dir, const struct ends_entry *e, struct ek_buf *out)
{
    char path[640];
    if (!ends_fits(snprintf(path, sizeof(path), "%s/ends/%s", state_dir, e->file), sizeof(path)))
        return -ENAMETOOLONG;
    return ek_file_read_regular(path, ENDS_BYTES, out);
}
