/*
 * A weight file that is cut while it is mapped: the process ends with the configuration's exit code
 * and a sentence, whichever thread reads; a SIGBUS from elsewhere, and one that is sent, still
 * kills.
 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/model/sigbus.h"

#define BYTES 65536u

struct mapping {
    char path[40];
    int fd;
    const volatile char *at;
};

static void map(struct mapping *m)
{
    strcpy(m->path, "/tmp/evenkeel-bus-XXXXXX");
    m->fd = mkstemp(m->path);
    assert_true(m->fd >= 0);
    assert_int_equal(ftruncate(m->fd, BYTES), 0);
    m->at = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, m->fd, 0);
    assert_ptr_not_equal(m->at, MAP_FAILED);
    assert_int_equal(unlink(m->path), 0);
}

static void unmap(struct mapping *m)
{
    assert_int_equal(munmap((void *)(uintptr_t)m->at, BYTES), 0);
    assert_int_equal(close(m->fd), 0);
}

static void *read_end(void *ctx)
{
    const struct mapping *m = ctx;
    (void)m->at[BYTES - 1];
    return NULL;
}

/* In a child; does not come back when the read raises SIGBUS. */
static void load(struct mapping *watched, struct mapping *cut, bool thread)
{
    const void *at = (const void *)(uintptr_t)watched->at;
    pthread_t other;

    /* Others come and go beside it. */
    for (uintptr_t i = 0; i < 2000; i++) {
        sigbus_add((const void *)(4096 * (i + 1)), 4096);
        if (i == 500)
            sigbus_add(at, BYTES);
        sigbus_drop((const void *)(4096 * (i + 1)));
    }
    if (sigbus_watch("/models/of\nit", EK_EXIT_CONFIG) != 0 || ftruncate(cut->fd, 0) != 0)
        _exit(1);
    if (!thread)
        (void)read_end(cut);
    else if (pthread_create(&other, NULL, read_end, cut) != 0 || pthread_join(other, NULL) != 0)
        _exit(1);
    sigbus_done();
    _exit(0);
}

static void test_cut(void **state)
{
    static const struct {
        bool other, thread; /* another mapping than the watched one is cut */
    } cases[] = {{false, false}, {false, true}, {true, false}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mapping a, b;
        int said[2], status;
        char text[512] = "";

        map(&a);
        map(&b);
        assert_int_equal(pipe(said), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            (void)signal(SIGBUS, SIG_DFL); /* a sanitizer has its own */
            if (dup2(said[1], STDERR_FILENO) < 0)
                _exit(1);
            load(&a, cases[i].other ? &b : &a, cases[i].thread);
        }
        assert_int_equal(close(said[1]), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(read(said[0], text, sizeof(text) - 1) >= 0);
        if (cases[i].other) {
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
        } else {
            assert_true(WIFEXITED(status));
            assert_int_equal(WEXITSTATUS(status), EK_EXIT_CONFIG);
            assert_non_null(strstr(text, "/models/of it was cut short"));
        }
        assert_int_equal(close(said[0]), 0);
        unmap(&a);
        unmap(&b);
    }
}

static void test_sent(void **state)
{
    int status;

    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)signal(SIGBUS, SIG_DFL); /* a sanitizer has its own */
        if (sigbus_watch("/models/it", EK_EXIT_CONFIG) != 0 || kill(getpid(), SIGBUS) != 0)
            _exit(1);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cut), cmocka_unit_test(test_sent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
