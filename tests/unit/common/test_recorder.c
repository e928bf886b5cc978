/*
 * The flight recorder: what was written is read, the newest when it is more than the ring holds; a
 * record that is half written is none; a file that is not ours, of another version, too short or
 * too large is refused with a sentence, and nothing is read past its end.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/recorder_read.h"
#include "tests/unit/alloc.h"

static char dir[64], sock[72], path[96], before[96];

static int make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof(dir), "/tmp/ek-recorder-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    (void)snprintf(sock, sizeof(sock), "%s/a.sock", dir);
    (void)snprintf(path, sizeof(path), "%s" EK_RECORDER_FILE, sock);
    (void)snprintf(before, sizeof(before), "%s" EK_RECORDER_BEFORE, sock);
    return 0;
}

static int drop_dir(void **state)
{
    (void)state;
    char fresh[sizeof(path) + 8]; /* of one that was killed while it made it */
    (void)snprintf(fresh, sizeof(fresh), "%s.new", path);
    (void)unlink(fresh);
    (void)unlink(before);
    (void)unlink(path);
    return rmdir(dir);
}

static struct ek_recorder *open_recorder(void)
{
    struct ek_recorder *r;
    assert_int_equal(ek_recorder_open(sock, &(struct ek_recorder_about){.block_size = 16}, &r), 0);
    return r;
}

static void read_all(struct ek_recorded *ret)
{
    struct ek_fault fault = {0};
    int fd = ek_recorded_open(path, getpid());
    assert_true(fd >= 0);
    assert_int_equal(ek_recorded_read(fd, ret, &fault), 0);
    close(fd);
}

static void test_round(void **state)
{
    (void)state;
    struct ek_recorded got;
    struct stat st;
    struct ek_recorder *r = open_recorder();
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    ek_recorder_begin(r, &(struct ek_recorder_step){.id = 7, .rows = 3});
    ek_recorder_step(r, &(struct ek_recorder_step){.id = 6, .rows = 4, .at_us = 2000000});
    ek_recorder_request(r, &(struct ek_recorder_request){.kind = EK_RECORDER_ARRIVED, .id = 9});
    read_all(&got);
    assert_int_equal(got.head.about.block_size, 16);
    assert_int_equal(got.begun_count + got.step_count + got.request_count, 3);
    assert_int_equal(got.begun[0].id, 7);
    assert_int_equal(got.steps[0].rows, 4);
    assert_true(got.steps[0].resident_mib > 0);
    assert_int_equal(got.requests[0].id, 9);
    assert_int_equal(got.torn, 0);
    ek_recorded_done(&got);
    ek_recorder_close(r);
    ek_recorder_close(open_recorder()); /* the one before is kept */
    assert_int_equal(access(before, F_OK), 0);
    ek_recorder_begin(NULL, NULL);
    ek_recorder_step(NULL, NULL);
    ek_recorder_request(NULL, NULL);
    ek_recorder_close(NULL);
}

/* Two servers with their sockets in one directory have a recording each. */
static void test_two(void **state)
{
    (void)state;
    char other[96];
    struct ek_recorder *b = NULL;
    struct ek_recorded got;
    (void)snprintf(other, sizeof(other), "%s/b.sock", dir);
    struct ek_recorder *a = open_recorder();
    assert_int_equal(ek_recorder_open(other, &(struct ek_recorder_about){0}, &b), 0);
    ek_recorder_step(a, &(struct ek_recorder_step){.id = 1});
    ek_recorder_step(b, &(struct ek_recorder_step){.id = 2});
    read_all(&got);
    assert_int_equal(got.step_count, 1);
    assert_int_equal(got.steps[0].id, 1);
    ek_recorded_done(&got);
    assert_int_equal(access(before, F_OK), -1);
    ek_recorder_close(a);
    ek_recorder_close(b);
    (void)snprintf(other, sizeof(other), "%s/b.sock" EK_RECORDER_FILE, dir);
    assert_int_equal(unlink(other), 0);
    char too_long[600];
    memset(too_long, 'a', sizeof(too_long));
    too_long[sizeof(too_long) - 1] = '\0';
    assert_int_equal(ek_recorder_open(too_long, &(struct ek_recorder_about){0}, &b), -ENAMETOOLONG);
}

static void test_wrap(void **state)
{
    (void)state;
    struct ek_recorded got;
    struct ek_recorder *r = open_recorder();
    const uint64_t steps = EK_RECORDER_STEPS + 100;
    for (uint64_t i = 1; i <= steps; i++)
        ek_recorder_step(r, &(struct ek_recorder_step){.id = i});
    for (uint64_t i = 1; i <= EK_RECORDER_BEGUN + 1; i++)
        ek_recorder_begin(r, &(struct ek_recorder_step){.id = i});
    read_all(&got);
    assert_int_equal(got.step_count, EK_RECORDER_STEPS);
    assert_int_equal(got.steps[0].id, 101);
    assert_int_equal(got.steps[got.step_count - 1].id, steps);
    assert_int_equal(got.begun_count, EK_RECORDER_BEGUN);
    assert_int_equal(got.begun[0].id, 2);
    ek_recorded_done(&got);
    ek_recorder_close(r);
}

/* A process that is killed while it writes leaves whole records. */
static void test_killed(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            struct ek_recorder *r = NULL;
            if (ek_recorder_open(sock, &(struct ek_recorder_about){0}, &r) < 0)
                _exit(1);
            for (uint32_t i = 1;; i++)
                ek_recorder_step(
                    r, &(struct ek_recorder_step){.id = i, .rows = i, .seqs = i, .held = i});
        }
        usleep(3000 + 700 * (useconds_t)round);
        (void)kill(pid, SIGKILL);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        int fd = ek_recorded_open(path, pid);
        if (fd < 0)
            continue; /* it had not made it yet: then it is that of the one before */
        struct ek_recorded got;
        struct ek_fault fault = {0};
        assert_int_equal(ek_recorded_read(fd, &got, &fault), 0);
        close(fd);
        assert_true(got.torn <= 1);
        for (uint32_t i = 0; i < got.step_count; i++) {
            const struct ek_recorder_step *s = &got.steps[i];
            assert_true(s->id == s->number && s->rows == (uint32_t)s->id && s->held == s->rows);
        }
        ek_recorded_done(&got);
    }
}

/* The file as it is after one step, in memory. */
static char *sample(size_t *ret_len)
{
    struct ek_recorder *r = open_recorder();
    for (uint64_t i = 1; i <= 3; i++)
        ek_recorder_step(r, &(struct ek_recorder_step){.id = i});
    ek_recorder_close(r);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    char *data = malloc(8u << 20);
    assert_non_null(data);
    *ret_len = fread(data, 1, 8u << 20, f);
    (void)fclose(f);
    return data;
}

static void test_torn(void **state)
{
    (void)state;
    size_t len;
    char *data = sample(&len);
    struct ek_recorded got;
    struct ek_fault fault = {0};
    struct ek_recorder_head h;
    memcpy(&h, data, sizeof(h));
    char *second = data + h.steps.offset + sizeof(struct ek_recorder_step);
    for (size_t byte = 0; byte < sizeof(struct ek_recorder_step); byte++) {
        second[byte] ^= 0x40;
        assert_int_equal(ek_recorded_parse(data, len, &got, &fault), 0);
        assert_int_equal(got.step_count, 2);
        assert_int_equal(got.steps[1].id, 3);
        assert_int_equal(got.torn, 1);
        ek_recorded_done(&got);
        second[byte] ^= 0x40;
    }
    memcpy(second, second - sizeof(struct ek_recorder_step), sizeof(struct ek_recorder_step));
    assert_int_equal(ek_recorded_parse(data, len, &got, &fault), 0); /* of another place */
    assert_int_equal(got.step_count, 2);
    ek_recorded_done(&got);
    free(data);
}

struct wrong {
    size_t at; /* in the head */
    uint32_t value;
    const char *says;
};

static void test_foreign(void **state)
{
    (void)state;
    static const struct wrong cases[] = {
        {0, 0, "no flight recorder's file"},
        {offsetof(struct ek_recorder_head, version), 2, "version 2, this program reads 1"},
        {offsetof(struct ek_recorder_head, order), 0x04030201, "order of bytes"},
        {offsetof(struct ek_recorder_head, steps.record_bytes), 120, "120 bytes each"},
        {offsetof(struct ek_recorder_head, steps.count), 0, "not within"},
        {offsetof(struct ek_recorder_head, steps.count), UINT32_MAX, "not within"},
        {offsetof(struct ek_recorder_head, steps.count), 65536, "not within"},
        {offsetof(struct ek_recorder_head, steps.offset), UINT32_MAX, "not within"},
        {offsetof(struct ek_recorder_head, steps.offset), 8, "not within"},
        {offsetof(struct ek_recorder_head, requests.count), 65537, "not within"},
        {offsetof(struct ek_recorder_head, begun.offset), 5 << 20, "not within"},
    };
    size_t len;
    char *data = sample(&len);
    struct ek_recorded got;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_recorder_head h, good;
        struct ek_fault fault = {0};
        memcpy(&good, data, sizeof(good));
        memcpy(data + cases[i].at, &cases[i].value, sizeof(cases[i].value));
        memcpy(&h, data, sizeof(h));
        h.sum = ek_recorder_sum(&h, offsetof(struct ek_recorder_head, sum), SIZE_MAX);
        memcpy(data, &h, sizeof(h));
        assert_int_equal(ek_recorded_parse(data, len, &got, &fault), -EBADMSG);
        if (!strstr(fault.msg, cases[i].says))
            fail_msg("%s instead of %s", fault.msg, cases[i].says);
        memcpy(data, &good, sizeof(good));
    }
    for (size_t n = 0; n < len; n += n < 512 ? 1 : 65537) { /* cut anywhere */
        char *exact = malloc(n ? n : 1);
        struct ek_fault fault = {0};
        assert_non_null(exact);
        memcpy(exact, data, n);
        assert_int_equal(ek_recorded_parse(exact, n, &got, &fault), -EBADMSG);
        free(exact);
    }
    free(data);
}

static void test_files(void **state)
{
    (void)state;
    struct ek_recorded got;
    struct ek_fault fault = {0};
    ek_recorder_close(open_recorder());
    assert_int_equal(ek_recorded_open(path, getpid() + 1), -ESRCH);
    int fd = ek_recorded_open(path, getppid()); /* that of its parent, too */
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(truncate(path, EK_RECORDED_MOST + 1l), 0);
    fd = ek_recorded_open(path, getpid());
    assert_true(fd >= 0);
    assert_int_equal(ek_recorded_read(fd, &got, &fault), -EBADMSG);
    close(fd);
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(ek_recorded_open(path, getpid()), -EBADMSG);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ek_recorded_open(path, getpid()), -ENOENT);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_equal(ek_recorded_open(path, getpid()), -ELOOP);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* is not waited for */
    assert_int_equal(ek_recorded_open(path, getpid()), -EINVAL);
    struct ek_recorder *r = NULL;
    assert_int_equal(ek_recorder_open("/nonexistent/s", &(struct ek_recorder_about){0}, &r),
                     -ENOENT);
    assert_null(r);
}

static void test_failed_allocations(void **state)
{
    (void)state;
    struct ek_recorder *r = NULL;
    for (long n = 1;; n++) {
        alloc_fail_at(n);
        int e = ek_recorder_open(sock, &(struct ek_recorder_about){0}, &r);
        if (!alloc_failed()) {
            assert_int_equal(e, 0);
            break;
        }
        assert_int_equal(e, -ENOMEM);
        assert_null(r);
    }
    ek_recorder_close(r);
    int fd = ek_recorded_open(path, getpid());
    assert_true(fd >= 0);
    for (long n = 1;; n++) {
        struct ek_recorded got = {0};
        alloc_fail_at(n);
        int e = ek_recorded_read(fd, &got, NULL);
        if (!alloc_failed()) {
            assert_int_equal(e, 0);
            ek_recorded_done(&got);
            break;
        }
        assert_int_equal(e, -ENOMEM);
        assert_null(got.steps);
    }
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_two, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_wrap, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_killed, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_torn, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_foreign, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_files, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_failed_allocations, make_dir, drop_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
