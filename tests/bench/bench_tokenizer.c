/*
 * How fast a tokenizer loads and encodes.
 *
 *   bench_tokenizer DIR TEXTS REPEAT [TEXT ...]
 *
 * TEXTS holds texts as tests/tools/encode reads them, each its length and its bytes: they are
 * encoded one after the other, as prompts are. Each TEXT is one long text: the whole of it and its
 * first sixteenth are encoded, so that the caller sees whether time grows with the length alone.
 * Prints one line for each: its name, then what each round took in seconds and the bytes encoded.
 * Times are the thread's own on a core, so that others on the machine do not count. One thread;
 * tools/bench-tokenizer.py makes the report.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/tokenizer.h"

#define REPEAT_MOST 100

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* of this thread: cannot fail */
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int read_whole(const char *path, struct ek_buf *out)
{
    char part[65536];
    size_t n;
    FILE *f = fopen(path, "re");
    if (!f)
        return -errno;
    int r = 0;
    while (r == 0 && (n = fread(part, 1, sizeof(part), f)) > 0)
        r = ek_buf_add(out, part, n);
    if (r == 0 && ferror(f))
        r = -EIO;
    (void)fclose(f); /* only read */
    return r;
}

/* All texts of a file of lengths and bytes; *ret_bytes is what they have together. */
static int encode_each(const struct tokenizer *t, const struct ek_buf *texts, struct token_vec *v,
                       size_t *ret_bytes)
{
    size_t bytes = 0;
    for (size_t at = 0; at + sizeof(uint32_t) <= texts->len;) {
        uint32_t len;
        memcpy(&len, texts->data + at, sizeof(len));
        at += sizeof(len);
        if (len > texts->len - at)
            return -EBADMSG;
        v->count = 0;
        int r = tokenizer_encode_prompt(t, texts->data + at, len, v);
        if (r < 0)
            return r;
        at += len;
        bytes += len;
    }
    *ret_bytes = bytes;
    return 0;
}

static int time_load(const char *dir, int repeat)
{
    (void)printf("load 1");
    for (int i = 0; i < repeat; i++) {
        struct tokenizer *t = NULL;
        struct ek_fault fault = {.msg = ""};
        double start = now_s();
        if (tokenizer_load(dir, &t, &fault) < 0) {
            (void)fprintf(stderr, "bench_tokenizer: %s\n", fault.msg);
            return -EBADMSG;
        }
        (void)printf(" %.6f", now_s() - start);
        tokenizer_free(t);
    }
    (void)printf("\n");
    return 0;
}

static int time_texts(const struct tokenizer *t, const char *path, int repeat)
{
    struct ek_buf texts = {0};
    struct token_vec v = {0};
    size_t bytes = 0;
    int r = read_whole(path, &texts);
    if (r == 0)
        r = encode_each(t, &texts, &v, &bytes); /* warms up, and says how many bytes */
    if (r == 0)
        (void)printf("texts %zu", bytes);
    for (int i = 0; i < repeat && r == 0; i++) {
        double start = now_s();
        r = encode_each(t, &texts, &v, &bytes);
        (void)printf(" %.6f", now_s() - start);
    }
    (void)printf("\n");
    token_vec_done(&v);
    ek_buf_done(&texts);
    return r;
}

static int time_long(const struct tokenizer *t, const char *path, int repeat)
{
    struct ek_buf text = {0};
    struct token_vec v = {0};
    int r = read_whole(path, &text);
    const size_t sizes[] = {text.len, text.len / 16};
    for (int k = 0; k < 2 && r == 0; k++) {
        (void)printf("%s %zu", path, sizes[k]);
        for (int i = 0; i < repeat && r == 0; i++) {
            v.count = 0;
            double start = now_s();
            r = tokenizer_encode_prompt(t, text.data, sizes[k], &v);
            (void)printf(" %.6f", now_s() - start);
        }
        (void)printf("\n");
    }
    token_vec_done(&v);
    ek_buf_done(&text);
    return r;
}

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    struct ek_fault fault = {.msg = ""};
    int repeat = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 0;
    if (repeat < 1 || repeat > REPEAT_MOST) {
        (void)fprintf(stderr, "usage: bench_tokenizer DIR TEXTS REPEAT [TEXT ...]\n");
        return 2;
    }
    int r = time_load(argv[1], repeat);
    if (r == 0)
        r = tokenizer_load(argv[1], &t, &fault);
    if (r == 0)
        r = time_texts(t, argv[2], repeat);
    for (int i = 4; i < argc && r == 0; i++)
        r = time_long(t, argv[i], repeat < 3 ? repeat : 3);
    tokenizer_free(t);
    if (r < 0)
        (void)fprintf(stderr, "bench_tokenizer: %s\n", ek_strerror(r));
    return r < 0;
}
