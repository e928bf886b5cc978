/*
 * The wrappers that --wrap puts in place of malloc and its kin in all unit tests. A counter that a
 * test sets goes down with each allocation and fails the one at which it is 0; while it is not set
 * the wrappers only count, which the tests of "allocates nothing" use.
 */
#include "tests/unit/alloc.h"

#include <stdlib.h>
#include <string.h>

static __thread long g_fail_at;
static __thread bool g_failed;
static unsigned long g_count, g_bytes;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t m);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t m);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);

void alloc_fail_at(long n)
{
    g_fail_at = n;
    g_failed = false;
}

bool alloc_failed(void)
{
    g_fail_at = 0;
    return g_failed;
}

unsigned long alloc_count(void)
{
    return __atomic_load_n(&g_count, __ATOMIC_RELAXED);
}

unsigned long alloc_bytes(void)
{
    return __atomic_load_n(&g_bytes, __ATOMIC_RELAXED);
}

static bool fails(size_t bytes)
{
    __atomic_add_fetch(&g_count, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&g_bytes, bytes, __ATOMIC_RELAXED);
    if (g_fail_at == 0 || --g_fail_at > 0)
        return false;
    g_failed = true;
    return true;
}

void *__wrap_malloc(size_t n)
{
    return fails(n) ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t m)
{
    return fails(n * m) ? NULL : __real_calloc(n, m);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails(n) ? NULL : __real_realloc(p, n);
}

char *__wrap_strdup(const char *s)
{
    return fails(strlen(s) + 1) ? NULL : __real_strdup(s);
}

char *__wrap_strndup(const char *s, size_t n)
{
    return fails(n + 1) ? NULL : __real_strndup(s, n);
}
