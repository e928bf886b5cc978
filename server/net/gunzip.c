/* Unpacks bodies with Content-Encoding gzip, within bounds (gunzip.h). Called by arrive.c. */
#include "server/net/gunzip.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include <zlib.h>

#include "common/buf.h"

#define GZIP_ONLY   (15 + 16) /* windows of any size, a gzip head: what zlib's inflateInit2 takes */
#define PIECE_BYTES 65536u

/* Unpacks the next piece. Returns zlib's code, and how much there is of it. */
static int next_piece(z_stream *z, unsigned char *piece, size_t *ret_len)
{
    z->next_out = piece;
    z->avail_out = PIECE_BYTES;
    int code = inflate(z, Z_NO_FLUSH);
    *ret_len = PIECE_BYTES - z->avail_out;
    return code;
}

static int put_piece(struct ek_buf *out, const unsigned char *piece, size_t len,
                     int (*charge)(void *ctx, size_t len), void *ctx)
{
    if (len > out->limit - out->len)
        return -EFBIG;
    int r = len ? charge(ctx, out->len + len) : 0;
    if (r == 0)
        r = ek_buf_add(out, (const char *)piece, len);
    return r;
}

int gunzip(const char *in, size_t len, struct ek_buf *out, int (*charge)(void *ctx, size_t len),
           void *ctx)
{
    unsigned char piece[PIECE_BYTES];
    z_stream z = {.next_in = (Bytef *)(uintptr_t)in, .avail_in = (uInt)len};
    size_t had = 0;
    int r = 0, code = Z_OK;
    if (len == 0 || len > UINT32_MAX)
        return -EBADMSG;
    if (inflateInit2(&z, GZIP_ONLY) != Z_OK)
        return -ENOMEM;
    while (r == 0 && !(code == Z_STREAM_END && z.avail_in == 0)) {
        /* what follows a member is another one, and all of them are the body */
        if (code == Z_STREAM_END && inflateReset(&z) != Z_OK)
            code = Z_DATA_ERROR;
        else
            code = next_piece(&z, piece, &had);
        r = code == Z_MEM_ERROR                    ? -ENOMEM
            : code != Z_OK && code != Z_STREAM_END ? -EBADMSG
                                                   : put_piece(out, piece, had, charge, ctx);
    }
    (void)inflateEnd(&z);
    return r;
}
