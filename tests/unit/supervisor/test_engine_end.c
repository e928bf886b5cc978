/* The end of an engine's process: the class of a server's end, and what of the ladder is a limit.
 */
#include "supervisor/law/engine_end.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/loss_line.h"

#define START 1795000000000000ull

static struct engine_end loss_of(int signal, int status, int exit_code)
{
    return (struct engine_end){.number = 1,
                               .ended = signal || status,
                               .signal = signal,
                               .status = status,
                               .exit_code = exit_code,
                               .running = 4,
                               .served_s = 60,
                               .tokens = 2048,
                               .seqs = 20};
}

static struct remedy_case new_case(void)
{
    return (struct remedy_case){
        .dialect = dialect_find("evenkeel"), .tokens_min = 64, .wall_us = START};
}

static void test_classes(void **state)
{
    (void)state;
    static const struct {
        int signal, status, exit_code;
        uint64_t oom_kills;
        unsigned xid;
        enum crash_class want;
    } cases[] = {
        {SIGKILL, 0, EK_EXIT_DEVICE, 0, 0, CRASH_SIGNAL},
        {SIGKILL, 0, EK_EXIT_DEVICE, 1, 0, CRASH_HOST_OOM},
        {SIGSEGV, 0, EK_EXIT_DEVICE, 0, 0, CRASH_SIGNAL},
        {SIGSEGV, 0, EK_EXIT_DEVICE, 1, 0, CRASH_SIGNAL}, /* it killed another one */
        {SIGSEGV, 0, EK_EXIT_DEVICE, 0, 31, CRASH_DEVICE},
        {0, EK_EXIT_INTERNAL, EK_EXIT_DEVICE, 0, 0, CRASH_UNKNOWN},
        {0, 0, EK_EXIT_HANG, 0, 0, CRASH_HANG_KILLED},
        {0, 0, EK_EXIT_DEVMEM_RUN, 0, 0, CRASH_BURST_OOM},
        {0, 0, EK_EXIT_DEVICE, 0, 0, CRASH_DEVICE},
        {0, 0, EK_EXIT_COMM, 0, 0, CRASH_COMM},
        {0, 0, EK_EXIT_INTERNAL, 0, 0, CRASH_UNKNOWN},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine_end loss = loss_of(cases[i].signal, cases[i].status, cases[i].exit_code);
        struct engine_seen seen = {.oom_kills = cases[i].oom_kills, .xid = cases[i].xid};
        struct remedy_memory m = {0};
        struct remedy_case c = new_case();
        struct engine_answer a;
        engine_end_judge(&loss, &seen, &m, &c, &a);
        assert_int_equal(a.verdict.cls, cases[i].want);
        assert_true(a.verdict.why[0] != '\0');
        seen.oom_kills = 0; /* the server alone saw it: a unit's cgroup */
        loss.oom_kills = cases[i].oom_kills;
        engine_end_judge(&loss, &seen, &m, &c, &a);
        assert_int_equal(a.verdict.cls, cases[i].want);
        bool memory = cases[i].want == CRASH_BURST_OOM || cases[i].want == CRASH_HOST_OOM;
        assert_int_equal(a.tokens != 0, memory);
        assert_int_equal(a.why[0] != '\0', memory);
    }
}

/* Each answer is taken, and the limits are what it said. */
static void climb(struct engine_end *loss, uint64_t oom_kills, const uint32_t (*want)[3],
                  uint32_t count)
{
    struct remedy_memory m = {0};
    for (uint32_t i = 0; i < count; i++) {
        struct remedy_case c = new_case();
        struct engine_seen seen = {.oom_kills = oom_kills};
        struct engine_answer a;
        engine_end_judge(loss, &seen, &m, &c, &a);
        assert_int_equal(a.tokens, want[i][0]);
        assert_int_equal(a.seqs, want[i][1]);
        assert_int_equal(a.set_swap ? a.swap_bytes >> 20 : 999, want[i][2]);
        assert_int_equal(a.why[0] != '\0', a.tokens || a.seqs || a.set_swap);
        if (a.plan.found)
            remedy_take(&m, &c, &a.plan);
        loss->tokens = a.tokens ? a.tokens : loss->tokens;
        loss->seqs = a.seqs ? a.seqs : loss->seqs;
        loss->swap_bytes = a.set_swap ? a.swap_bytes : loss->swap_bytes;
    }
}

static void test_ladders(void **state)
{
    (void)state;
    static const uint32_t burst[][3] = {
        {1536, 16, 999}, {1152, 12, 999}, {864, 9, 999}, {0, 0, 999}};
    struct engine_end loss = loss_of(0, 0, EK_EXIT_DEVMEM_RUN);
    climb(&loss, 0, burst, 4);

    /* Swap space first; then the tokens, down to one a sequence and the operator's floor. */
    static const uint32_t host[][3] = {{0, 0, 512},   {0, 0, 0},     {1024, 0, 999}, {512, 0, 999},
                                       {256, 0, 999}, {128, 0, 999}, {64, 0, 999},   {0, 0, 999}};
    loss = loss_of(SIGKILL, 0, EK_EXIT_DEVICE);
    loss.swap_bytes = 1ull << 30;
    climb(&loss, 1, host, sizeof(host) / sizeof(host[0]));
}

static void test_messages(void **state)
{
    (void)state;
    static const char whole[] =
        "{\"loss\":3,\"running\":5,\"ended\":true,\"signal\":9,\"status\":0,\"exit_code\":76,\"oom_"
        "kills\":2,"
        "\"why\":\"its process ended with signal 9 (Killed)\",\"steps\":812,\"served_s\":61.204,"
        "\"max_num_batched_tokens\":2048,\"max_num_running_seqs\":16,\"swap_bytes\":4096,"
        "\"later\":[]}";
    static const char *const none[] = {
        "", "{}", "[1]", "{\"loss\":0}", "{\"loss\":-1}", "{\"loss\":\"1\"}", "{\"loss\":1"};
    struct engine_end l = {.number = 77};
    assert_int_equal(loss_line_parse(whole, sizeof(whole) - 1, &l), 0);
    assert_int_equal(l.number, 3);
    assert_true(l.ended && l.oom_kills == 2 && l.signal == 9 && l.exit_code == 76 &&
                l.running == 5 && l.steps == 812);
    assert_true(l.tokens == 2048 && l.seqs == 16 && l.swap_bytes == 4096 && l.served_s > 61);
    assert_string_equal(l.why, "its process ended with signal 9 (Killed)");
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        assert_true(loss_line_parse(none[i], strlen(none[i]), &l) < 0);
        assert_int_equal(l.number, 3); /* as it was */
    }
    static const char odd[] = "{\"loss\":1,\"signal\":1e9,\"max_num_batched_tokens\":-5,"
                              "\"served_s\":\"x\",\"why\":7}";
    assert_int_equal(loss_line_parse(odd, sizeof(odd) - 1, &l), 0);
    assert_true(l.signal == 0 && l.tokens == 0 && l.served_s == 0 && l.why[0] == '\0');
}

static void test_how_much_is_heard(void **state)
{
    (void)state;
    struct loss_rate r = {0};
    assert_true(loss_rate_is_new(&r, 3));
    assert_false(loss_rate_is_new(&r, 3));
    assert_false(loss_rate_is_new(&r, 2));
    assert_true(loss_rate_is_new(&r, 4));
    for (unsigned i = 0; i < LOSS_LINE_MOST; i++)
        assert_true(loss_rate_count(&r, 1000 + i));
    assert_false(loss_rate_count(&r, 1000 + LOSS_LINE_WINDOW_US - 1));
    r = (struct loss_rate){0};
    for (unsigned i = 0; i < LOSS_LINE_MOST; i++)
        assert_true(loss_rate_count(&r, 1000));
    assert_true(loss_rate_count(&r, 1000 + LOSS_LINE_WINDOW_US)); /* another ten minutes */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_how_much_is_heard),
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_ladders),
        cmocka_unit_test(test_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
