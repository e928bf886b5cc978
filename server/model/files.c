/*
 * Reading and mapping the files of a model directory.
 *
 * A weight file that shrinks while it is mapped raises SIGBUS when the lost part is read
 * (sigbus.h); the mapping lives only until the backend has loaded them.
 */
#include "server/model/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/bundle.h"
#include "common/err.h"
#include "server/model/sigbus.h"

bool model_name_ok(const char *name)
{
    size_t len = strlen(name);
    if (len == 0 || len > MODEL_NAME_MOST || name[0] == '.')
        return false;
    for (const char *c = name; *c; c++)
        if (*c == '/' || *c == '\\' || (unsigned char)*c < 0x20 || *c == 0x7f)
            return false;
    return true;
}

static int path_make(const char *dir, const char *name, char path[PATH_MAX], struct ek_fault *fault)
{
    int n = snprintf(path, PATH_MAX, "%s/%s", dir, name);
    if (n < 0 || n >= PATH_MAX)
        return ek_fault_set(fault, "model",
                            "the path of the model directory is %zu bytes long; move it to a "
                            "shorter one",
                            strlen(dir));
    return 0;
}

bool model_file_exists(const struct ek_bundle *b, const char *dir, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    if (path_make(dir, name, path, NULL) < 0)
        return false;
    return b && !ek_bundle_is_open(b) ? ek_bundle_find(b, path) != NULL : stat(path, &st) == 0;
}

/* What systemd's sandbox does to directories that only look forbidden. */
static const char *hidden(const char *dir)
{
    return strncmp(dir, "/home/", 6) == 0 || strncmp(dir, "/root/", 6) == 0
               ? " (units with ProtectHome= see nothing below /home and /root: their comments say "
                 "which drop-in shows it)"
               : "";
}

static int say_missing(const char *dir, const char *name, struct ek_fault *fault)
{
    (void)ek_fault_set(fault, name,
                       "%s: there is no such file in %s; download the model again or name another "
                       "directory",
                       name, dir);
    return -ENOENT;
}

/* Opens a regular file. */
static int file_open(const char *dir, const char *name, int *ret_fd, struct stat *ret_st,
                     struct ek_fault *fault)
{
    char path[PATH_MAX];
    int r = path_make(dir, name, path, fault);
    if (r < 0)
        return r;

    /* A pipe in place of the file must not block the start. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return say_missing(dir, name, fault);
    if (fd < 0)
        return ek_fault_set(fault, name,
                            "%s: cannot be opened in %.200s: %s; the server's user must be able to "
                            "read it%s",
                            name, dir, strerror(errno), hidden(dir));
    if (fstat(fd, ret_st) < 0 || !S_ISREG(ret_st->st_mode)) {
        (void)close(fd); /* opened for reading: nothing to lose */
        return ek_fault_set(fault, name, "%s: is not a regular file; put the real file there",
                            name);
    }
    *ret_fd = fd;
    return 0;
}

static int read_itself(const char *dir, const char *name, size_t most_bytes, struct ek_buf *out,
                       struct ek_bundle_file *ret_which, struct ek_fault *fault)
{
    int fd = -1;
    struct stat st = {0};
    int r = file_open(dir, name, &fd, &st, fault);
    if (r < 0)
        return r;
    const uint64_t size = (uint64_t)st.st_size;
    if (size > most_bytes) {
        r = ek_fault_set(fault, name,
                         "%s: has %llu bytes, more than the %zu that are allowed; it is not what "
                         "its name says, download it again",
                         name, (unsigned long long)size, most_bytes);
        goto out;
    }

    r = ek_buf_reserve(out, (size_t)size);
    if (r < 0)
        goto out;
    while (out->len < size) {
        ssize_t n = read(fd, out->data + out->len, (size_t)size - out->len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            r = ek_fault_set(fault, name, "%s: cannot be read: %s; check the disk", name,
                             strerror(errno));
            goto out;
        }
        if (n == 0)
            break; /* it shrank meanwhile: what is there is parsed */
        out->len += (size_t)n;
    }
    if (out->data)
        out->data[out->len] = '\0';
    *ret_which = ek_bundle_which(&st);
out:
    (void)close(fd); /* opened for reading: nothing to lose */
    return r;
}

int model_file_read(struct ek_bundle *b, const char *dir, const char *name, size_t most_bytes,
                    struct ek_buf *out, struct ek_fault *fault)
{
    struct ek_fault own = {0};
    char path[PATH_MAX];
    struct ek_bundle_read read = {.path = path,
                                  .what = name,
                                  .field = name,
                                  .is_json = ek_bundle_is_json(name),
                                  .most_bytes = most_bytes};
    if (!fault)
        fault = &own; /* a bundle keeps it */
    ek_buf_clear(out);
    int r = path_make(dir, name, path, fault);
    if (r < 0)
        return r;
    if (!b)
        return read_itself(dir, name, most_bytes, out, &read.file, fault);
    r = ek_bundle_take(b, &read, out, fault);
    if (r != -ENOENT)
        return r;
    if (!ek_bundle_is_open(b))
        return say_missing(dir, name, fault);
    r = read_itself(dir, name, most_bytes, out, &read.file, fault);
    return ek_bundle_keep(b, &read, r, out, fault);
}

int model_file_map(const char *dir, const char *name, struct ek_weight_file *ret_file,
                   struct ek_bundle_file *ret_which, struct ek_fault *fault)
{
    int fd = -1;
    struct stat st = {0};
    int r = file_open(dir, name, &fd, &st, fault);
    if (r < 0)
        return r;
    const uint64_t size = (uint64_t)st.st_size;
    if (size == 0 || size > SIZE_MAX / 2) {
        r = ek_fault_set(fault, name, "%s: has %llu bytes; download it again", name,
                         (unsigned long long)size);
        goto out;
    }

    void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        r = errno == ENOMEM ? -ENOMEM
                            : ek_fault_set(fault, name,
                                           "%s: cannot be mapped: %s; copy it to a "
                                           "local file system",
                                           name, strerror(errno));
        goto out;
    }
    sigbus_add(p, size);
    *ret_file = (struct ek_weight_file){.data = p, .size_bytes = size, .mapped = true};
    if (ret_which)
        *ret_which = ek_bundle_which(&st);
out:
    (void)close(fd); /* the mapping outlives it */
    return r;
}

void model_file_unmap(struct ek_weight_file *file)
{
    if (file->data) {
        sigbus_drop(file->data);
        (void)munmap((void *)(uintptr_t)file->data, (size_t)file->size_bytes); /* cannot fail */
    }
    *file = (struct ek_weight_file){0};
}
