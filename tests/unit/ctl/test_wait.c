/* When a drain, resume or restart is done, and when it never will be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/ctl/wait.h"

static json_t *server(const char *state, int pid)
{
    return json_pack("{s:s, s:b, s:i}", "state", state, "ready", strcmp(state, "ready") == 0, "pid",
                     pid);
}

/* It was to come in its turn, and its successor cannot start by then. */
static void test_refused_later(void **state)
{
    (void)state;
    struct wait w;
    const char *why = NULL;
    json_t *before = server("ready", 7), *now = server("ready", 7);
    wait_begin(&w, CMD_ROLL, before);
    assert_int_equal(wait_look(&w, now, &why), WAIT_ON);
    assert_int_equal(json_object_set_new(now, "restart_refused", json_string("no model")), 0);
    assert_int_equal(wait_look(&w, now, &why), WAIT_FAILED);
    assert_string_equal(why, "no model");
    wait_begin(&w, CMD_RESUME, before);
    assert_int_equal(wait_look(&w, now, &why), WAIT_DONE);
    json_decref(before);
    json_decref(now);
}

static void test_look(void **state)
{
    (void)state;
    static const struct {
        enum ctl_command command;
        struct {
            const char *state;
            int pid;
        } seen[5]; /* the first: before */
        enum wait_state ends;
    } cases[] = {
        {CMD_DRAIN, {{"ready", 7}, {"draining", 7}}, WAIT_ON},
        {CMD_DRAIN, {{"ready", 7}, {"draining", 7}, {"drained", 7}}, WAIT_DONE},
        {CMD_DRAIN, {{"ready", 7}, {"draining", 7}, {"ready", 7}}, WAIT_FAILED},
        {CMD_DRAIN, {{"backoff", 0}, {"breaker_open", 0}}, WAIT_FAILED},
        {CMD_RESUME, {{"drained", 7}, {"drained", 7}}, WAIT_ON},
        {CMD_RESUME, {{"drained", 7}, {"ready", 7}}, WAIT_DONE},
        {CMD_RESTART, {{"ready", 7}, {"ready", 7}}, WAIT_ON}, /* its successor is proven first */
        {CMD_RESTART, {{"ready", 7}, {"draining", 7}, {"starting", 8}}, WAIT_ON},
        {CMD_RESTART, {{"ready", 7}, {"draining", 7}, {"starting", 8}, {"ready", 8}}, WAIT_DONE},
        {CMD_RESTART, {{"ready", 7}, {"draining", 7}, {"ready", 7}}, WAIT_FAILED},
        {CMD_RESTART, {{"ready", 7}, {"stopping", 7}, {"breaker_open", 0}}, WAIT_FAILED},
        {CMD_RESTART, {{"breaker_open", 0}, {"starting", 8}, {"ready", 8}}, WAIT_DONE},
        {CMD_RESTART, {{"breaker_open", 0}, {"breaker_open", 0}, {"ready", 8}}, WAIT_DONE},
        {CMD_RESTART, {{"breaker_open", 0}, {"starting", 8}, {"breaker_open", 0}}, WAIT_FAILED},
        {CMD_ROLL, {{"ready", 7}, {"ready", 7}, {"ready", 7}}, WAIT_ON}, /* not its turn yet */
        {CMD_ROLL, {{"ready", 7}, {"draining", 7}, {"ready", 9}}, WAIT_DONE},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct wait w;
        const char *why = NULL;
        enum wait_state got = WAIT_ON;
        for (size_t k = 0; k < 5 && cases[i].seen[k].state; k++) {
            json_t *now = server(cases[i].seen[k].state, cases[i].seen[k].pid);
            assert_non_null(now);
            assert_int_equal(got, WAIT_ON);
            if (k == 0)
                wait_begin(&w, cases[i].command, now);
            else
                got = wait_look(&w, now, &why);
            json_decref(now);
        }
        assert_int_equal(got, cases[i].ends);
        assert_true((why != NULL) == (got == WAIT_FAILED));
    }
}

/* Of the engine's process: the pid stays, the figures tell. */
static void test_engine(void **state)
{
    (void)state;
    static const struct {
        enum ctl_command command;
        struct {
            const char *state;
            int pid, planned;
        } seen[4]; /* the first: before */
        enum wait_state ends;
    } cases[] = {
        {CMD_ENGINE_RESTART, {{"running", 7, 2}, {"running", 7, 2}, {"starting", 7, 2}}, WAIT_ON},
        {CMD_ENGINE_RESTART, {{"running", 7, 2}, {"starting", 7, 2}, {"running", 7, 3}}, WAIT_DONE},
        {CMD_ENGINE_RESTART, {{"running", 7, 2}, {"running", 8, 0}}, WAIT_FAILED},
        {CMD_ENGINE_RELEASE, {{"running", 7, 2}, {"running", 7, 2}}, WAIT_ON},
        {CMD_ENGINE_RELEASE, {{"running", 7, 2}, {"released", 7, 2}}, WAIT_DONE},
        {CMD_ENGINE_ACQUIRE, {{"running", 7, 2}, {"running", 7, 2}, {"released", 7, 2}}, WAIT_ON},
        {CMD_ENGINE_ACQUIRE,
         {{"released", 7, 2}, {"starting", 7, 2}, {"running", 7, 3}},
         WAIT_DONE},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct wait w;
        const char *why = NULL;
        enum wait_state got = WAIT_ON;
        for (size_t k = 0; k < 4 && cases[i].seen[k].pid; k++) {
            json_t *now = server("ready", cases[i].seen[k].pid);
            json_t *process = json_pack("{s:s, s:i}", "state", cases[i].seen[k].state, "planned",
                                        cases[i].seen[k].planned);
            assert_int_equal(json_object_set_new(now, "engine_process", process), 0);
            assert_int_equal(got, WAIT_ON);
            if (k == 0)
                wait_begin(&w, cases[i].command, now);
            else
                got = wait_look(&w, now, &why);
            json_decref(now);
        }
        assert_int_equal(got, cases[i].ends);
        assert_true((why != NULL) == (got == WAIT_FAILED));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused_later),
                                       cmocka_unit_test(test_look), cmocka_unit_test(test_engine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
