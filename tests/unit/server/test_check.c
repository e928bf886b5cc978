/* What a model's file does to the child that parses it first, and what is said of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"
#include "server/check.h"

/* A sanitizer's own memory knows no such limit, and it ends a process that gets none. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DATA_BYTES (1ull << 46)
#define CASES      4
#else
#define DATA_BYTES (256ull << 20)
#define CASES      5
#endif

static void ends_well(const void *ctx, int fd)
{
    (void)ctx;
    check_stage(fd, "config.json");
}

static void crashes(const void *ctx, int fd)
{
    (void)ctx;
    check_stage(fd, "config.json");
    check_stage(fd, "tokenizer.json");
    (void)raise(SIGKILL); /* as SIGSEGV, without a report */
}

static void loops(const void *ctx, int fd)
{
    volatile unsigned n = 0;
    (void)ctx;
    check_stage(fd, "the chat template");
    for (;;)
        n++;
}

static void sleeps(const void *ctx, int fd)
{
    (void)ctx;
    check_stage(fd, "config.json");
    for (;;)
        (void)pause();
}

/* As the parsers: -ENOMEM goes up, and the child ends with its code. */
static void swallows(const void *ctx, int fd)
{
    (void)ctx;
    check_stage(fd, "tokenizer.json");
    for (size_t i = 0; i < 1024; i++) {
        char *p = malloc(16u << 20);
        if (!p)
            _exit(3);
        memset(p, 1, 4096);
    }
}

static void test_ends(void **state)
{
    static const struct {
        void (*parse)(const void *ctx, int fd);
        const char *says, *file; /* NULL = the start goes on */
    } cases[] = {{ends_well, NULL, NULL},
                 {crashes, "ended with signal 9", "tokenizer.json"},
                 {loops, "too much processor time", "the chat template"},
                 {sleeps, "longer than 1 s", "config.json"},
                 {swallows, "too much memory", "tokenizer.json"}}; /* the last: see CASES */
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        struct check_limits limits = {.data_bytes = DATA_BYTES, .cpu_s = 1, .wall_s = 10};
        struct ek_fault fault = {0};
        struct check c;
        if (cases[i].parse == sleeps)
            limits.wall_s = 1;
        assert_int_equal(check_begin(&c, cases[i].parse, NULL, &limits), 0);
        int r = check_wait(&c, "/models/m", &fault);
        if (!cases[i].says) {
            assert_int_equal(r, 0);
            continue;
        }
        assert_int_equal(r, -EBADMSG);
        if (!strstr(fault.msg, cases[i].says) || !strstr(fault.msg, cases[i].file) ||
            !strstr(fault.msg, "/models/m"))
            fail_msg("%s", fault.msg);
        assert_int_equal(check_wait(&c, "/models/m", &fault), 0); /* once */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
