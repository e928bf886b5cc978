/*
 * The process that starts engines answers each order: memory of another version or none, memory
 * that it cannot map, files that are not there. Nobody waits for an engine that was never begun.
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/apart_memory.h"
#include "server/check.h"
#include "server/launcher.h"
#include "server/options.h"

#define BYTES  (64u << 20) /* of the memory; more than what is left to one that is short */
#define WAIT_S 20

static char device[] = "cpu", model[] = "/nowhere";
static struct engine_cgroup none = {.dir = -1, .procs = -1};
static const struct check no_child = {.fd = -1, .model_fd = -1, .text_fd = -1};
static const struct options options = {.device = device, .model = model};

static int make_memory(uint32_t abi, uint64_t said_bytes, uint64_t host_bytes)
{
    struct ek_apart_memory m = {.abi = abi,
                                .size = sizeof(m),
                                .program = EK_VERSION,
                                .bytes = said_bytes,
                                .host_at = said_bytes,
                                .host_bytes = host_bytes,
                                .want = {.backend = "cpu", .stamp = 1}};
    ek_build_id(m.build);

    int fd = memfd_create("a test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    assert_int_equal(pwrite(fd, &m, sizeof(m), 0), sizeof(m));
    return fd;
}

static void order(struct launcher *l, enum ek_apart_what what, int fd)
{
    struct ek_apart_message m = {.what = what, .number = ++l->apart.number};
    struct iovec part = {.iov_base = &m, .iov_len = sizeof(m)};
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } extra = {0};
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};

    if (fd >= 0) {
        msg.msg_control = extra.room;
        msg.msg_controllen = sizeof(extra.room);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        *c = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    }
    assert_int_equal(sendmsg(l->apart.socket, &msg, MSG_NOSIGNAL), sizeof(m));
}

static struct ek_apart_answer answer(const struct launcher *l)
{
    struct ek_apart_answer a;
    struct pollfd p = {.fd = l->apart.socket, .events = POLLIN};

    assert_int_equal(poll(&p, 1, WAIT_S * 1000), 1);
    assert_int_equal(recv(p.fd, &a, sizeof(a), 0), sizeof(a));
    assert_int_equal(a.number, l->apart.number);
    return a;
}

/* Files that it has open. */
static int open_files(const struct launcher *l)
{
    char path[64];
    int n = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)l->pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    (void)closedir(d);
    return n;
}

/* Its mappings of the test's memory. */
static int mappings(const struct launcher *l)
{
    char path[64], line[512];
    int n = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/maps", (int)l->pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        n += strstr(line, "a test") != NULL;
    (void)fclose(f);
    return n;
}

static void end(struct launcher *l)
{
    int status;

    (void)close(l->apart.socket);
    assert_int_equal(waitpid(l->pid, &status, 0), l->pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void refused_at_once(void **state)
{
    (void)state;
    struct launcher l;
    const struct {
        uint32_t abi;
        uint64_t bytes, host_bytes;
        bool none;
    } cases[] = {{EK_BACKEND_ABI + 1, BYTES, 0, false},
                 {EK_BACKEND_ABI, BYTES + 1, 0, false},
                 {EK_BACKEND_ABI, BYTES - 1, 0, false},
                 {EK_BACKEND_ABI, 8, 0, false},
                 {EK_BACKEND_ABI, BYTES / 2, 1, false},
                 {EK_BACKEND_ABI, BYTES, 4096, false},
                 {EK_BACKEND_ABI, 8, BYTES - 8, false},
                 {EK_BACKEND_ABI, 2 * (uint64_t)BYTES, -(uint64_t)BYTES, false},
                 {EK_BACKEND_ABI, BYTES, 0, true}};

    assert_int_equal(launcher_begin(&l, &options, &none, -1, &no_child), 0);
    order(&l, EK_APART_CHECK, -1);
    (void)answer(&l); /* it has begun */
    assert_int_equal(open_files(&l), 4);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int fd = make_memory(cases[i].abi, cases[i].bytes, cases[i].host_bytes);
        order(&l, EK_APART_START, cases[i].none ? -1 : fd);
        struct ek_apart_answer a = answer(&l);
        assert_int_equal(a.code, -EPROTO);
        assert_non_null(strstr(a.fault.msg, "another version"));
        (void)close(fd);
    }
    order(&l, EK_APART_CHECK, -1); /* there was no engine yet */
    assert_true(answer(&l).code < 0);
    assert_int_equal(open_files(&l), 4);
    end(&l);
}

static void short_of_memory(void **state)
{
    (void)state;
    struct launcher l;
    const struct rlimit most = {BYTES / 2, BYTES / 2};

    assert_int_equal(launcher_begin(&l, &options, &none, -1, &no_child), 0);
    assert_int_equal(prlimit(l.pid, RLIMIT_AS, &most, NULL), 0);
    int fd = make_memory(EK_BACKEND_ABI, BYTES, 0);
    order(&l, EK_APART_START, fd);
    struct ek_apart_answer a = answer(&l);
    assert_int_equal(a.code, -ENOMEM);
    assert_true(a.fault.msg[0] != 0);
    (void)close(fd);
    end(&l);
}

/* Who started the server may itself have been short of them, and an engine comes later than the
 * server's own. */
static void short_of_descriptors(void **state)
{
    (void)state;
    struct launcher l;
    struct rlimit before;
    const struct rlimit none_more = {4, 4}; /* it has four */

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const struct rlimit few = {16, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int r = launcher_begin(&l, &options, &none, -1, &no_child);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(r, 0);
    order(&l, EK_APART_CHECK, -1);
    assert_int_equal(answer(&l).code, -EAGAIN); /* it lives */
    assert_int_equal(prlimit(l.pid, RLIMIT_NOFILE, &none_more, NULL), 0);
    int fd = make_memory(EK_BACKEND_ABI, BYTES, 0);
    order(&l, EK_APART_START, fd);
    struct ek_apart_answer a = answer(&l);
    assert_int_equal(a.code, -EMFILE);
    assert_non_null(strstr(a.fault.msg, "Too many open files"));
    (void)close(fd);
    end(&l);
}

/* It is begun, and fails by itself: that is said in the memory; a check tells it beforehand. The
 * memory has a host tier, or none. */
static void fails_without_a_model(uint64_t host_bytes)
{
    struct launcher l;

    assert_int_equal(launcher_begin(&l, &options, &none, -1, &no_child), 0);
    int fd = make_memory(EK_BACKEND_ABI, BYTES - host_bytes, host_bytes);
    struct ek_apart_memory *m = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(m, MAP_FAILED);
    order(&l, EK_APART_START, fd);
    assert_int_equal(answer(&l).code, 0);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < WAIT_S * 1000 && atomic_load(&m->ended) == 0; i++)
            (void)usleep(1000);
        assert_int_equal(atomic_load(&m->ended), 1);
        assert_int_equal(atomic_load(&m->state), APART_FAILED);
        assert_true(open_files(&l) <= 6 && mappings(&l) == 1); /* the memory's, and a pidfd */
        if (turn == 2)
            break;
        atomic_store(&m->ended, 0);
        atomic_store(&m->state, APART_STARTING);
        order(&l, EK_APART_START, fd);
        assert_int_equal(answer(&l).code, 0);
    }
    order(&l, EK_APART_CHECK, -1);
    struct ek_apart_answer a = answer(&l);
    assert_true(a.code < 0);
    assert_non_null(strstr(a.fault.msg, "/nowhere"));
    (void)munmap(m, BYTES);
    (void)close(fd);
    end(&l);
}

static int score_of(pid_t pid)
{
    char path[64], text[16] = "";

    (void)snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int)pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof(text), f));
    (void)fclose(f);
    return (int)strtol(text, NULL, 10);
}

/* The kernel takes it before the server. */
static void goes_first(void **state)
{
    (void)state;
    struct launcher l;
    const int score = launcher_score_open(), own = score_of(getpid());

    assert_int_equal(launcher_begin(&l, &options, &none, score, &no_child), 0);
    assert_int_equal(score_of(getpid()), own);
    assert_int_equal(score_of(l.pid), own + 200 < 1000 ? own + 200 : 1000);
    (void)close(score);
    end(&l);
}

static void without_a_model(void **state)
{
    (void)state;
    fails_without_a_model(0);
    fails_without_a_model(BYTES / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_at_once),      cmocka_unit_test(short_of_memory),
        cmocka_unit_test(short_of_descriptors), cmocka_unit_test(without_a_model),
        cmocka_unit_test(goes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
