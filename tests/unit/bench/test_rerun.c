/* A recorded load through the real scheduler: what is read, what is refused, and that a load of
 * which the answer is known meets what it has to, with the recorded limits and with others. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/bench/rerun.h"
#include "tests/unit/alloc.h"

#define HEAD                                                                                       \
    "{\"end\":{\"workload\":{\"block_size\":16,\"blocks\":40,\"max_num_seqs\":8,"                  \
    "\"max_num_batched_tokens\":512,\"base_us\":1000,\"row_us\":10,\"lasted_us\":10000000,"        \
    "\"steps\":400,\"preemptions\":2,\"generated\":900,\"used_blocks_most\":40,"                   \
    "\"waiting_most\":3,\"older\":1,\"pace\":[1,2],\"requests\":"
#define TAIL "}}}"

static int read_text(const char *text, struct rerun_load *l, struct ek_fault *f)
{
    json_t *doc = json_loads(text, 0, NULL);
    assert_non_null(doc);
    int r = rerun_read(doc, l, f);
    json_decref(doc);
    return r;
}

static void refused(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{}", "no \"workload\""},
        {"{\"end\":null}", "no \"workload\""},
        {"{\"workload\":{}}", "workload.block_size"},
        {"{\"workload\":{\"blocks\":0,\"requests\":[]}}", "nothing to run again"},
        {"{\"workload\":{\"block_size\":0}}", "workload.block_size"},
        {HEAD "[]" TAIL, "nothing to run again"},
        {HEAD "[[0,7,5,9]]" TAIL, "the cached part"},
        {HEAD "[[0,-7,5,9,0]]" TAIL, "the prompt"},
        {HEAD "[[-1,7,5,9,0]]" TAIL, "the time"},
        {HEAD "[[0,7,\"5\",9,0]]" TAIL, "the answer"},
        {HEAD "[[0,7,99999999,9,0]]" TAIL, "the answer"},
        {HEAD "[7]" TAIL, "the time"},
        {HEAD "[[0,7,16777216,9,0],[0,7,16777216,9,0],[0,7,16777216,9,0],[0,7,16777216,9,0],"
              "[0,7,5,9,0]]" TAIL,
         "tokens in all"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rerun_load l = {0};
        struct ek_fault f = {.msg = ""};
        assert_int_equal(read_text(cases[i].text, &l, &f), -EBADMSG);
        if (!strstr(f.msg, cases[i].says))
            fail_msg("case %zu says: %s", i, f.msg);
        assert_null(l.trace.request);
    }
}

/* Eight that need 9 blocks each at last, in a pool of 40, and one whose end is not known. */
static const char load[] =
    HEAD "[[0,16,128,128,0],[0,16,128,128,0],[0,16,128,128,0],[5,16,128,128,0],[5,16,128,128,0],"
         "[5,16,128,128,0],[9,16,128,128,0],[8,64,128,128,32],[10,64,null,200,0]]" TAIL;

static void reads(void **state)
{
    struct rerun_load l;
    struct ek_fault f = {.msg = ""};
    (void)state;
    assert_int_equal(read_text(load, &l, &f), 0);
    assert_int_equal(l.trace.count, 9);
    assert_int_equal(l.unfinished, 1);
    assert_int_equal(l.trace.request[8].output, 200);
    assert_int_equal(l.trace.request[7].hashes, 2);
    assert_true(l.trace.request[7].at_s == l.trace.request[6].at_s); /* time does not go back */
    assert_int_equal(l.max_len, 400);
    assert_true(l.cost.paces == 2 && l.cost.pace[1] == 2.0f);
    rerun_done(&l);

    /* more seconds than are read; an answer that is half of all; more found than there was */
    json_t *doc = json_loads(HEAD "[[0,7,5,9,900]]" TAIL, 0, NULL);
    json_t *w = json_object_get(json_object_get(doc, "end"), "workload");
    assert_int_equal(rerun_read(doc, &l, &f), 0);
    assert_true(l.lasted_s == 10 && l.trace.request[0].hashes == 0 && l.max_len == 12);
    rerun_done(&l);
    json_t *pace = json_object_get(w, "pace");
    while (json_array_size(pace) <= 3600)
        assert_int_equal(json_array_append_new(pace, json_integer(1)), 0);
    assert_int_equal(rerun_read(doc, &l, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "workload.pace has 3601"));
    json_decref(doc);
}

static void runs(void **state)
{
    const struct rerun_limits none = {0}, two = {.seqs = 2}, pool = {.blocks = 2},
                              tokens = {.tokens = 8}, vast = {.blocks = (1u << 28) + 40};
    struct schedsim_result same, fewer, small, again;
    struct rerun_load l;
    struct ek_fault f = {.msg = ""};
    struct ek_buf out = {0};
    (void)state;
    assert_int_equal(read_text(load, &l, &f), 0);
    assert_int_equal(rerun_run(&l, &none, &same), 0);
    assert_int_equal(same.requests, 9);
    assert_int_equal(same.output_tokens, 8 * 128 + 200);
    assert_true(same.used_blocks_most <= 40 && same.used_blocks_most >= 18);
    assert_true(same.waiting_most > 0 && same.seconds < 10);
    assert_int_equal(rerun_run(&l, &none, &again), 0);
    assert_true(again.steps == same.steps && again.seconds == same.seconds);

    assert_int_equal(rerun_run(&l, &two, &fewer), 0);
    assert_int_equal(fewer.output_tokens, same.output_tokens);
    assert_true(fewer.steps > same.steps && fewer.waiting_most == 7);
    assert_true(fewer.used_blocks_most < same.used_blocks_most && fewer.preemptions == 0);
    assert_int_equal(rerun_run(&l, &tokens, &small), 0);
    assert_true(small.output_tokens == same.output_tokens && small.steps > same.steps);
    assert_int_equal(rerun_run(&l, &pool, &small), 0);
    assert_int_equal(small.refused, 9); /* none fits, which is no failure */
    assert_int_equal(rerun_run(&l, &vast, &small), -EINVAL);

    l.lasted_s = same.seconds / 2; /* a killed server did not answer all */
    assert_int_equal(rerun_run(&l, &none, &again), 0);
    assert_true(again.output_tokens < same.output_tokens && again.seconds < same.seconds * 0.6);

    rerun_tell(&l, &same, &fewer, &out);
    assert_non_null(strstr(out.data, "9 requests in "));
    assert_non_null(strstr(out.data, "1 of them had not ended"));
    assert_non_null(strstr(out.data, "1 more had come before"));
    assert_non_null(strstr(out.data, "steps                                400"));
    ek_buf_done(&out);
    rerun_done(&l);
}

static void without_memory(void **state)
{
    (void)state;
    json_t *doc = json_loads(load, 0, NULL);
    struct rerun_load l = {0};
    int r = -ENOMEM;
    for (unsigned i = 1; r == -ENOMEM && i < 100; i++) {
        alloc_fail_at(i);
        r = rerun_read(doc, &l, NULL);
        alloc_fail_at(0);
        assert_true(r == 0 || (r == -ENOMEM && !l.trace.request));
    }
    assert_int_equal(r, 0);
    rerun_done(&l);
    json_decref(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(refused), cmocka_unit_test(reads),
                                       cmocka_unit_test(runs), cmocka_unit_test(without_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
