/*
 * What the tests of doubling sizes share: blocks of our code that ran and bytes that were allocated
 * are counted, and compared over four sizes, each twice the one before. Header only, because a unit
 * test is one source file. To be included behind cmocka.h.
 *
 * Doing without the steps that are there at any size: from n to 2n costs d, from 4n to 8n may cost
 * at most GROWTH times d (n: 4 times, n log n: about 5, n * n: 16).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "common/buf.h"
#include "tests/unit/alloc.h"

#define SIZES  4u
#define FIRST  256u   /* the smallest n */
#define GROWTH 6.5    /* see above */
#define FREE   600000 /* blocks or bytes of growth that are nothing */

#ifdef __clang__
#define UNCOUNTED __attribute__((no_sanitize("coverage")))
#else
#define UNCOUNTED __attribute__((no_sanitize_coverage))
#endif

static uint64_t blocks;
static bool counted;

/* Called by each basic block of a build with -fsanitize-coverage=trace-pc. */
void __sanitizer_cov_trace_pc(void);
UNCOUNTED void __sanitizer_cov_trace_pc(void)
{
    counted = true;
    blocks++;
}

/* Calls of libraries that look at many bytes, 16 of which count as a block. */
void *__real_memmove(void *to, const void *from, size_t n);
void *__wrap_memmove(void *to, const void *from, size_t n);
UNCOUNTED void *__wrap_memmove(void *to, const void *from, size_t n)
{
    blocks += n / 16;
    return __real_memmove(to, from, n);
}

void *__real_memcpy(void *to, const void *from, size_t n);
void *__wrap_memcpy(void *to, const void *from, size_t n);
UNCOUNTED void *__wrap_memcpy(void *to, const void *from, size_t n)
{
    blocks += n / 16;
    return __real_memcpy(to, from, n);
}

void *__real_memmem(const void *in, size_t n, const void *what, size_t len);
void *__wrap_memmem(const void *in, size_t n, const void *what, size_t len);
UNCOUNTED void *__wrap_memmem(const void *in, size_t n, const void *what, size_t len)
{
    const char *hit = __real_memmem(in, n, what, len);
    blocks += (hit ? (size_t)(hit - (const char *)in) : n) / 16;
    return __real_memmem(in, n, what, len);
}

void *__real_memchr(const void *in, int what, size_t n);
void *__wrap_memchr(const void *in, int what, size_t n);
UNCOUNTED void *__wrap_memchr(const void *in, int what, size_t n)
{
    const char *hit = __real_memchr(in, what, n);
    blocks += (hit ? (size_t)(hit - (const char *)in) : n) / 16;
    return __real_memchr(in, what, n);
}

size_t __real_strlen(const char *s);
size_t __wrap_strlen(const char *s);
UNCOUNTED size_t __wrap_strlen(const char *s)
{
    size_t n = __real_strlen(s);
    blocks += n / 16;
    return n;
}

void *__real_memset(void *to, int what, size_t n);
void *__wrap_memset(void *to, int what, size_t n);
UNCOUNTED void *__wrap_memset(void *to, int what, size_t n)
{
    blocks += n / 16;
    return __real_memset(to, what, n);
}

/* Bytes before the first that differs, at most n; both end there when stops. */
UNCOUNTED static inline size_t alike(const void *a, const void *b, size_t n, bool stops)
{
    const char *x = a, *y = b;
    size_t i = 0;
    while (i < n && x[i] == y[i] && !(stops && x[i] == '\0'))
        i++;
    return i;
}

int __real_memcmp(const void *a, const void *b, size_t n);
int __wrap_memcmp(const void *a, const void *b, size_t n);
UNCOUNTED int __wrap_memcmp(const void *a, const void *b, size_t n)
{
    blocks += alike(a, b, n, false) / 16;
    return __real_memcmp(a, b, n);
}

int __real_strcmp(const char *a, const char *b);
int __wrap_strcmp(const char *a, const char *b);
UNCOUNTED int __wrap_strcmp(const char *a, const char *b)
{
    blocks += alike(a, b, SIZE_MAX, true) / 16;
    return __real_strcmp(a, b);
}

int __real_strncmp(const char *a, const char *b, size_t n);
int __wrap_strncmp(const char *a, const char *b, size_t n);
UNCOUNTED int __wrap_strncmp(const char *a, const char *b, size_t n)
{
    blocks += alike(a, b, n, true) / 16;
    return __real_strncmp(a, b, n);
}

char *__real_strchr(const char *in, int what);
char *__wrap_strchr(const char *in, int what);
UNCOUNTED char *__wrap_strchr(const char *in, int what)
{
    char *hit = __real_strchr(in, what);
    blocks += (hit ? (size_t)(hit - in) : __real_strlen(in)) / 16;
    return hit;
}

char *__real_strstr(const char *in, const char *what);
char *__wrap_strstr(const char *in, const char *what);
UNCOUNTED char *__wrap_strstr(const char *in, const char *what)
{
    char *hit = __real_strstr(in, what);
    blocks += (hit ? (size_t)(hit - in) : __real_strlen(in)) / 16;
    return hit;
}

size_t __real_strspn(const char *in, const char *set);
size_t __wrap_strspn(const char *in, const char *set);
UNCOUNTED size_t __wrap_strspn(const char *in, const char *set)
{
    size_t n = __real_strspn(in, set);
    blocks += n / 16;
    return n;
}

size_t __real_strcspn(const char *in, const char *set);
size_t __wrap_strcspn(const char *in, const char *set);
UNCOUNTED size_t __wrap_strcspn(const char *in, const char *set)
{
    size_t n = __real_strcspn(in, set);
    blocks += n / 16;
    return n;
}

/* Of jansson's calls those that go through a whole value; a member is about a block. */
json_t *__real_json_copy(json_t *v);
json_t *__wrap_json_copy(json_t *v);
UNCOUNTED json_t *__wrap_json_copy(json_t *v)
{
    blocks += json_is_array(v) ? json_array_size(v) : json_object_size(v);
    return __real_json_copy(v);
}

char *__real_json_dumps(const json_t *v, size_t flags);
char *__wrap_json_dumps(const json_t *v, size_t flags);
UNCOUNTED char *__wrap_json_dumps(const json_t *v, size_t flags)
{
    char *text = __real_json_dumps(v, flags);
    blocks += text ? __real_strlen(text) : 0;
    return text;
}

json_t *__real_json_loadb(const char *text, size_t n, size_t flags, json_error_t *error);
json_t *__wrap_json_loadb(const char *text, size_t n, size_t flags, json_error_t *error);
UNCOUNTED json_t *__wrap_json_loadb(const char *text, size_t n, size_t flags, json_error_t *error)
{
    blocks += n;
    return __real_json_loadb(text, n, flags, error);
}

uint64_t __real_XXH3_64bits(const void *data, size_t n);
uint64_t __wrap_XXH3_64bits(const void *data, size_t n);
UNCOUNTED uint64_t __wrap_XXH3_64bits(const void *data, size_t n)
{
    blocks += n / 16;
    return __real_XXH3_64bits(data, n);
}

/* ---- shapes ---- */

struct doubling_shape {
    const char *open, *piece, *between, *close;
};

/* A piece with the number where it says %u. */
static inline void put_piece(struct ek_buf *b, const char *piece, uint32_t number)
{
    for (const char *at; (at = strstr(piece, "%u")); piece = at + 2) {
        (void)ek_buf_add(b, piece, (size_t)(at - piece));
        (void)ek_buf_printf(b, "%u", number);
    }
    (void)ek_buf_puts(b, piece);
}

/* One thing after another, n times. */
static inline void put_pieces(struct ek_buf *b, const char *piece, const char *between, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        (void)ek_buf_puts(b, i ? between : "");
        put_piece(b, piece, i);
    }
}

/* ---- what is measured ---- */

struct cost {
    uint64_t blocks, bytes;
    uint64_t units; /* of work, that were paid */
    int result;
};

static inline bool grows(const uint64_t at[SIZES], double *ret_times)
{
    double first = at[1] > at[0] ? (double)(at[1] - at[0]) : 0;
    double last = at[3] > at[2] ? (double)(at[3] - at[2]) : 0;
    *ret_times = first > 0 ? last / first : 0;
    return last > GROWTH * first + FREE;
}

/* True when it grows too fast, which is said. */
static inline bool judge(const char *what, const char *shape, const struct cost cost[SIZES])
{
    const struct {
        const char *name;
        uint64_t at[SIZES];
    } kinds[] = {
        {"blocks", {cost[0].blocks, cost[1].blocks, cost[2].blocks, cost[3].blocks}},
        {"bytes", {cost[0].bytes, cost[1].bytes, cost[2].bytes, cost[3].bytes}},
    };
    bool bad = false;
    if (cost[0].result == 0 && cost[SIZES - 1].result < 0)
        return false; /* the larger ones are refused, which is what bounds it */
    for (size_t k = 0; k < 2; k++) {
        const uint64_t *at = kinds[k].at;
        double times;
        if (!grows(at, &times))
            continue;
        bad = true;
        print_error("%s of %s: %s grow %.1f times: %llu %llu %llu %llu\n", what, shape,
                    kinds[k].name, times, (unsigned long long)at[0], (unsigned long long)at[1],
                    (unsigned long long)at[2], (unsigned long long)at[3]);
    }
    return bad;
}
