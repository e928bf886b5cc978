/* Questions that run in processes of their own: what they wrote, how they ended, and that nobody
 * else takes their status; and what an evenkeel-server's answers mean. Waits are for processes'
 * ends. */
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
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "supervisor/io/child.h"
#include "supervisor/io/reap.h"
#include "supervisor/io/subprocess.h"
#include "supervisor/law/dry_answer.h"
#include "supervisor/law/remedy.h"

struct child_answer {
    int times, status;
    size_t len;
    char text[SUBPROCESS_TEXT + 1];
};

static void on_answer(void *ctx, const struct subprocess_result *res)
{
    struct child_answer *a = ctx;
    a->times++;
    a->status = res->status;
    a->len = res->len;
    memcpy(a->text, res->text, res->len + 1);
}

static struct subprocess *run(struct subprocesses *all, sd_event *event, const char *script,
                              uint32_t timeout_ms, struct child_answer *a)
{
    char sh[] = "sh", flag[] = "-c", text[256];
    (void)snprintf(text, sizeof(text), "%s", script);
    char *argv[] = {sh, NULL}, *flags[] = {flag, text, NULL};
    struct subprocess_spec spec = {.argv = argv, .flags = flags, .timeout_ms = timeout_ms};
    struct subprocess *p = NULL;
    *a = (struct child_answer){0};
    assert_int_equal(subprocess_run(all, event, &spec, on_answer, a, &p), 0);
    assert_non_null(p);
    return p;
}

static void wait_answer(sd_event *event, const struct child_answer *a)
{
    for (int i = 0; i < 5000 && !a->times; i++) /* a turn may read 64 bytes */
        assert_true(sd_event_run(event, 100000) >= 0);
    assert_int_equal(a->times, 1);
}

static void test_answers(void **state)
{
    struct subprocesses all = {0};
    sd_event *event = *state;
    struct child_answer *a = calloc(1, sizeof(*a));
    assert_non_null(a);
    (void)run(&all, event, "echo out; echo err >&2; exit 7", 20000, a);
    wait_answer(event, a);
    assert_int_equal(a->status, 7);
    assert_string_equal(a->text, "out\nerr\n");
    assert_null(all.first);

    (void)run(&all, event, "kill -9 $$", 20000, a);
    wait_answer(event, a);
    assert_int_equal(a->status, -EIO);

    (void)run(&all, event, "echo begun; sleep 1000", 300, a);
    wait_answer(event, a);
    assert_int_equal(a->status, -ETIMEDOUT);
    assert_string_equal(a->text, "begun\n");

    /* Much more than is kept, and than a pipe holds: it ends all the same. */
    (void)run(&all, event, "head -c 10000000 /dev/zero | tr '\\0' x; exit 3", 20000, a);
    wait_answer(event, a);
    assert_int_equal(a->status, 3);
    assert_int_equal(a->len, SUBPROCESS_TEXT);
    assert_int_equal(strlen(a->text), SUBPROCESS_TEXT);

    /* Ends though a child of its own holds the pipe. */
    (void)run(&all, event, "sleep 1000 & echo $!", 20000, a);
    wait_answer(event, a);
    assert_int_equal(a->status, 0);
    assert_int_equal(kill((pid_t)strtol(a->text, NULL, 10), SIGKILL), 0);
    free(a);
}

/* Each has its own: the one that was cancelled tells nobody, and the next one is not hurt. */
static void test_replaced(void **state)
{
    struct subprocesses all = {0};
    sd_event *event = *state;
    struct child_answer *a = calloc(2, sizeof(*a));
    assert_non_null(a);
    struct subprocess *first = run(&all, event, "echo first", 20000, &a[0]);
    subprocess_cancel(first);
    (void)run(&all, event, "echo second", 20000, &a[1]);
    wait_answer(event, &a[1]);
    assert_string_equal(a[1].text, "second\n");
    assert_int_equal(a[0].times, 0);
    assert_null(all.first);
    subprocess_cancel(NULL);
    free(a);
}

static bool owned(const void *ctx, pid_t pid)
{
    return subprocess_owns(ctx, pid);
}

static pid_t ended_child(void)
{
    siginfo_t w = {0};
    assert_int_equal(waitid(P_ALL, 0, &w, WEXITED | WNOWAIT), 0);
    return w.si_pid;
}

/* It ends just before the loop reaps what is nobody's: its status was lost then, as -EIO. */
static void test_status_is_not_swept(void **state)
{
    struct subprocesses all = {0};
    sd_event *event = *state;
    struct child_answer *a = calloc(1, sizeof(*a));
    assert_non_null(a);
    while (waitpid(-1, NULL, 0) > 0) /* what the tests before have killed */
        ;
    (void)run(&all, event, "exit 66", 20000, a);
    assert_true(owned(&all, ended_child()));
    assert_true(reap_orphans(owned, &all));
    wait_answer(event, a);
    assert_int_equal(a->status, 66);

    pid_t orphan = fork();
    if (orphan == 0)
        _exit(1);
    assert_int_equal(ended_child(), orphan);
    assert_false(reap_orphans(owned, &all));
    assert_int_equal(waitpid(orphan, NULL, WNOHANG), -1); /* gone */
    free(a);
}

static void test_not_there(void **state)
{
    struct subprocesses all = {0};
    char name[] = "evenkeel-no-such-program", *argv[] = {name, NULL};
    struct subprocess_spec spec = {.argv = argv, .timeout_ms = 1000};
    struct subprocess *p = NULL;
    assert_int_equal(subprocess_run(&all, *state, &spec, on_answer, NULL, &p), -ENOENT);
    assert_null(p);
    assert_null(all.first);
}

static void test_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *text, *said;
    } cases[] = {
        {"", ""},
        {"Traceback (most recent call last):\n", ""},
        {"evenkeel-server: no such file\n", "no such file"},
        {"2026-11-22 evenkeel-server error: first\nevenkeel-server error: last\nmore\n", "last"},
        {"evenkeel-server error: not ended", "not ended"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char said[64];
        dry_answer_sentence(cases[i].text, said, sizeof(said));
        assert_string_equal(said, cases[i].said);
    }
    char little[5];
    dry_answer_sentence("evenkeel-server: no such file\n", little, sizeof(little));
    assert_string_equal(little, "no s");
}

static void test_plan(void **state)
{
    (void)state;
    static const char good[] =
        "a warning\n{\"total_bytes\": 1073741824, \"max_num_seqs\": 16, "
        "\"max_num_batched_tokens\": "
        "2048, \"utilization\": 0.5, \"bytes\": {\"swap_pool\": 1073741824}}\n";
    struct remedy_facts f;
    dry_answer_plan(EK_EXIT_OK, good, strlen(good), &f);
    assert_true(f.known && f.fits);
    assert_int_equal(f.bytes, 1073741824);
    assert_int_equal(f.plans.seqs, 16);
    assert_int_equal(f.plans.tokens, 2048);
    assert_true(f.plans.share > 0.49 && f.plans.share < 0.51);
    assert_true(f.plans.swap_gib > 0.99 && f.plans.swap_gib < 1.01);
    static const char *const none[] = {
        "", "no plan", "{", "{}", "{\"total_bytes\": -1}", "{\"total_bytes\": \"1\"}", "[1]"};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        dry_answer_plan(EK_EXIT_OK, none[i], strlen(none[i]), &f);
        assert_false(f.known);
    }
    dry_answer_plan(EK_EXIT_NO_FIT, good, strlen(good), &f);
    assert_true(f.known && !f.fits);
    dry_answer_plan(-ETIMEDOUT, good, strlen(good), &f);
    assert_false(f.known);
    dry_answer_plan(1, good, strlen(good), &f);
    assert_false(f.known);
}

static void test_who_answers(void **state)
{
    (void)state;
    char path[] = "/usr/bin/evenkeel-server", name[] = "evenkeel-server", other[] = "vllm";
    char *a[] = {path, NULL}, *b[] = {name, NULL}, *c[] = {other, NULL}, *d[] = {NULL};
    assert_true(dry_answer_can(a) && dry_answer_can(b));
    assert_false(dry_answer_can(c) || dry_answer_can(d) || dry_answer_can(NULL));
    assert_true(dry_answer_refused(EK_EXIT_USAGE) && dry_answer_refused(EK_EXIT_NO_FIT));
    assert_false(dry_answer_refused(0) || dry_answer_refused(-EIO) || dry_answer_refused(1));
}

static int setup(void **state)
{
    return sd_event_new((sd_event **)state);
}

static int teardown(void **state)
{
    sd_event_unref(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_answers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_replaced, setup, teardown),
        cmocka_unit_test_setup_teardown(test_status_is_not_swept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_there, setup, teardown),
        cmocka_unit_test(test_sentence),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_who_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
