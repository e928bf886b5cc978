/*
 * Reads tokenizer and template files at start, for chat.c, tokfiles.c and tokinfo.c. Unlike
 * ek_file_open_regular() it follows symlinks: model directories of the Hugging Face cache consist
 * of them.
 */
#include "server/text/textfile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/bundle.h"
#include "common/err.h"

/* Until the end, which may have moved since the file was asked for its size. */
static int textfile_read_all(int fd, size_t most_bytes, struct ek_buf *out)
{
    for (;;) {
        int r = out->cap - out->len < 2 ? ek_buf_reserve(out, 4096) : 0;
        if (r < 0)
            return r;
        ssize_t n = read(fd, out->data + out->len, out->cap - 1 - out->len);
        if (n == 0)
            break;
        if (n < 0 && errno != EINTR)
            return -errno;
        out->len += n > 0 ? (size_t)n : 0;
        if (out->len > most_bytes)
            return -EFBIG;
    }
    out->data[out->len] = '\0';
    return 0;
}

int text_file_read_itself(const char *path, const char *field, size_t most_bytes,
                          struct ek_buf *out, struct ek_bundle_file *ret_which,
                          struct ek_fault *fault)
{
    struct stat st;
    int r;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* of a pipe: not waiting */
    if (fd < 0 && errno == ENOENT)
        return -ENOENT;
    if (fd < 0)
        return ek_fault_set(fault, field, "%s cannot be opened: %s; check its permissions", path,
                            ek_strerror(-errno));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        (void)close(fd); /* only to be read */
        return ek_fault_set(fault, field, "%s is not a regular file; put the real file there",
                            path);
    }
    r = (uint64_t)st.st_size > most_bytes ? -EFBIG : ek_buf_reserve(out, (size_t)st.st_size + 1);
    if (r == 0)
        r = textfile_read_all(fd, most_bytes, out);
    (void)close(fd); /* only read */
    *ret_which = ek_bundle_which(&st);
    if (r == 0 || r == -ENOMEM)
        return r;
    if (r == -EFBIG)
        return ek_fault_set(fault, field,
                            "%s has more than the %zu bytes that are allowed; it is not what its "
                            "name says, download it again",
                            path, most_bytes);
    return ek_fault_set(fault, field, "%s cannot be read: %s; check the disk", path,
                        ek_strerror(r));
}

int text_file_read(struct ek_bundle *b, const char *path, const char *field, size_t most_bytes,
                   struct ek_buf *out, struct ek_fault *fault)
{
    struct ek_fault own = {0};
    struct ek_bundle_read read = {.path = path,
                                  .what = path,
                                  .field = field,
                                  .is_json = ek_bundle_is_json(field),
                                  .most_bytes = most_bytes};
    if (!b)
        return text_file_read_itself(path, field, most_bytes, out, &read.file, fault);
    if (!fault)
        fault = &own; /* the bundle keeps it */
    int r = ek_bundle_take(b, &read, out, fault);
    if (r != -ENOENT || !ek_bundle_is_open(b))
        return r;
    r = text_file_read_itself(path, field, most_bytes, out, &read.file, fault);
    return ek_bundle_keep(b, &read, r, out, fault);
}
