/* What is kept between runs, and what comes back from a server's control socket. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "supervisor/io/control.h"
#include "supervisor/io/state.h"

static void test_round_trip(void **state)
{
    (void)state;
    char dir[] = "/tmp/evenkeel-state-XXXXXX", path[64];
    struct state s = {0}, back;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(state_load(dir, &back), 0); /* no file yet */
    assert_int_equal(back.count, 0);
    struct state_server *a = state_of(&s, "a");
    assert_non_null(a);
    a->value[KNOB_SEQS] = 12;
    a->pinned[KNOB_SEQS] = true;
    a->wall_us = 1795000000000000;
    assert_ptr_equal(state_of(&s, "a"), a);
    assert_int_equal(state_save(dir, &s), 0);
    assert_int_equal(state_load(dir, &back), 0);
    assert_int_equal(back.count, 1);
    assert_string_equal(back.at[0].name, "a");
    assert_int_equal(back.at[0].value[KNOB_SEQS], 12);
    assert_true(back.at[0].pinned[KNOB_SEQS]);
    assert_false(back.at[0].pinned[KNOB_TOKENS]);
    assert_int_equal(back.at[0].wall_us, 1795000000000000);
    state_free(&back);
    state_free(&s);

    (void)snprintf(path, sizeof(path), "%s/state.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs("{\"version\":1,\"serv", f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(state_load(dir, &back), -EBADMSG); /* put aside, not lost */
    assert_int_equal(back.count, 0);
    assert_int_equal(access(path, F_OK), -1);
    (void)snprintf(path, sizeof(path), "%s/state.json.bad", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(state_save("/nonexistent", &s), -ENOENT);
}

/* Where it is in its life comes back as it was; of a file of before, that the breaker was open. */
static void test_lives(void **state)
{
    (void)state;
    char dir[] = "/tmp/evenkeel-state-XXXXXX", path[64];
    struct state s = {0}, back;
    assert_non_null(mkdtemp(dir));
    struct state_server *a = state_of(&s, "a");
    a->life = (struct life){.boot = UINT64_MAX >> 1,
                            .state = SRV_DRAINING,
                            .want = WANT_RESTART,
                            .pid = 4711,
                            .until_us = 123456789,
                            .ramp = 16,
                            .planned = true,
                            .planned_name = "FRAG_CHRONIC",
                            .asked = true,
                            .waits = true,
                            .found = true,
                            .loosened = true};
    a->backoff = (struct backoff){.next_s = 8,
                                  .ready_us = 5,
                                  .start_class = CRASH_DISK,
                                  .start_failures = 2,
                                  .open = true,
                                  .by_start = true};
    for (uint64_t i = 1; i <= 11; i++) /* three more than are remembered */
        a->backoff.exits_us[a->backoff.exits++ % BACKOFF_REMEMBERS] = i;
    assert_int_equal(state_save(dir, &s), 0);
    assert_int_equal(state_load(dir, &back), 0);
    const struct backoff *b = &back.at[0].backoff;
    assert_true(life_equal(&back.at[0].life, &a->life));
    assert_int_equal(b->exits, BACKOFF_REMEMBERS);
    for (uint32_t i = 0; i < b->exits; i++)
        assert_int_equal(b->exits_us[i], 4 + i);
    assert_true(b->open && b->by_start && b->start_class == CRASH_DISK && b->next_s > 7.9);
    state_free(&back);
    state_free(&s);
    (void)snprintf(path, sizeof(path), "%s/state.json", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);

    static const char before[] = "{\"version\":1,\"servers\":{\"a\":{\"breaker_open\":true}}}";
    assert_int_equal(state_parse(before, strlen(before), &back), 0);
    assert_true(back.at[0].backoff.open && back.at[0].life.boot == 0);
    state_free(&back);
    static const char older[] = "{\"version\":1,\"servers\":{\"a\":{\"life\":{\"boot\":7,\"state\":"
                                "\"starting\",\"want\":\"run\",\"pid\":12}}}}";
    assert_int_equal(state_parse(older, strlen(older), &back), 0);
    assert_true(back.at[0].life.boot == 7 && !back.at[0].life.loosened);
    state_free(&back);
    static const char odd[] = "{\"version\":1,\"servers\":{\"a\":{\"life\":{\"boot\":-3,\"state\":"
                              "\"flying\",\"want\":5,\"pid\":1e300},\"backoff\":{\"next_s\":1e9,"
                              "\"exits_us\":[1,2,3,4,5,6,7,8,9,10,11,12],\"start_class\":3}}}}";
    assert_int_equal(state_parse(odd, strlen(odd), &back), 0);
    assert_int_equal(back.at[0].life.boot, 0);
    assert_int_equal(back.at[0].backoff.exits, BACKOFF_REMEMBERS);
    assert_true(back.at[0].backoff.next_s < 1);
    state_free(&back);
}

static void test_bad_states(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"version\":3,\"servers\":{}}",
        "{\"version\":1}",
        "{\"version\":1,\"servers\":{\"a\":5}}",
        "{\"version\":1,\"servers\":{\"0123456789012345678901234567890123456789\":{}}}",
        "{\"version\":1,\"servers\":{\"a\\\"b\":{}}}",
        "{\"version\":1,\"servers\":{\"\":{}}}",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct state s;
        assert_int_equal(state_parse(bad[i], strlen(bad[i]), &s), -EBADMSG);
    }
    struct state s;
    static const char odd[] = "{\"version\":1,\"servers\":{\"a\":{\"wall_us\":-1,"
                              "\"max_num_running_seqs\":{\"value\":-4,\"pinned\":1}}}}";
    assert_int_equal(state_parse(odd, strlen(odd), &s), 0);
    assert_int_equal(s.at[0].value[KNOB_SEQS], 0);
    assert_int_equal(s.at[0].wall_us, 0);
    assert_false(s.at[0].pinned[KNOB_SEQS]);
    state_free(&s);
}

static void test_runtime_config(void **state)
{
    (void)state;
    static const char good[] = "{\"max_num_running_seqs\":9,\"generation\":7,"
                               "\"ceiling\":{\"max_num_running_seqs\":16},"
                               "\"floor\":{\"max_num_running_seqs\":1},\"watermark\":0.04,"
                               "\"start\":{\"watermark\":0.01}}";
    struct control_limits l;
    assert_int_equal(control_parse(good, strlen(good), &l), 0);
    assert_int_equal(l.generation, 7);
    assert_true(l.knob[KNOB_SEQS].known);
    assert_int_equal(l.knob[KNOB_SEQS].value, 9);
    assert_int_equal(l.knob[KNOB_SEQS].ceiling, 16);
    assert_int_equal(l.knob[KNOB_SEQS].floor, 1);
    assert_false(l.knob[KNOB_TOKENS].known);
    assert_true(l.reserve == 0.04 && l.reserve_start == 0.01);
    static const char bare[] = "{\"max_num_batched_tokens\":2048,\"max_num_running_seqs\":-1}";
    assert_int_equal(control_parse(bare, strlen(bare), &l), 0);
    assert_int_equal(l.knob[KNOB_TOKENS].value, 2048);
    assert_false(l.knob[KNOB_SEQS].known);
    assert_int_equal(control_parse("<html>", 6, &l), -EBADMSG);
    assert_int_equal(control_parse("[1]", 3, &l), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_lives),
        cmocka_unit_test(test_bad_states),
        cmocka_unit_test(test_runtime_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
