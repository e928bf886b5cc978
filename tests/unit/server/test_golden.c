/*
 * The embedded model against what the reference implementation answered (tests/fixtures): tokens
 * and logits, per dtype and instruction tier; once more with the device in a forked child; and one
 * request's answer bitwise the same alone and among 15 others. Run from the root of the tree.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/err.h"
#include "kernels/backend.h"
#include "kernels/registry.h"
#include "server/model/model.h"
#include "tests/share.h"
#include "tests/unit/kernels/tiles.h"
#include "tests/unit/server/proxy_backend.h"

#define MODEL_DIR "models/evenkeel-tiny"
#define EXPECTED  "tests/fixtures/expected.json"

enum { BLOCK_SIZE = 16, SEQS = 16, SEQ_BLOCKS = 64, MOST_TOKENS = SEQ_BLOCKS * BLOCK_SIZE };

struct golden_engine {
    const struct ek_backend *b;
    struct ek_device *d;
    struct model *model;
    struct ek_step_ceiling ceiling;
    struct ek_step *step;
    struct ek_result *result;
    uint64_t id;
};

struct seq {
    uint32_t slot, known, computed, asked; /* tokens known; in the cache; when to stop */
    int32_t token[MOST_TOKENS];
    struct ek_result_seq *heard; /* one per generated token, if wanted */
    uint32_t heard_count;
};

/* Products of all weights by the functions of a tier. */
static void form_all(const struct ek_backend *b, const struct ek_graph *g, const char *isa,
                     const char *form, struct ek_forms *forms)
{
    const struct ek_open_params open = {.isa = isa};

    *forms = (struct ek_forms){0};
    assert_int_equal(b->choose(&open, g, forms, NULL), 0);
    for (uint32_t i = 0; i < forms->used; i++)
        (void)snprintf(forms->form[i].name, sizeof(forms->form[i].name), "%s", form);
}

/* `form`: NULL for that of the tier. */
static void engine_open_as(struct golden_engine *e, const struct ek_backend *b, const char *isa,
                           const char *form, enum model_dtype dtype, uint32_t threads)
{
    struct ek_forms forms;
    const struct ek_open_params open = {
        .threads = threads, .isa = isa, .forms = form ? &forms : NULL};
    const struct ek_kv_params kv = {1 + SEQS * SEQ_BLOCKS, 0, BLOCK_SIZE, SEQS};
    struct ek_fault fault = {.msg = ""};

    *e = (struct golden_engine){.b = b, .ceiling = {MOST_TOKENS, SEQS, SEQS * SEQ_BLOCKS, 0, 0, 0}};
    if (model_open(MODEL_DIR, dtype, &e->model, &fault) < 0)
        fail_msg("%s", fault.msg);
    struct ek_plan_request q = {.graph = &e->model->graph,
                                .ceiling = e->ceiling,
                                .logit_rows = SEQS,
                                .block_size = BLOCK_SIZE};
    if (form)
        form_all(b, q.graph, isa, form, &forms);
    assert_int_equal(b->open(&open, &e->d, &fault), 0);
    assert_int_equal(b->load(e->d, &q, &e->model->files, NULL, NULL, &fault), 0);
    model_close_files(e->model);
    assert_int_equal(b->kv_open(e->d, &kv), 0);
    e->step = malloc(ek_step_size(&e->ceiling));
    e->result = malloc(ek_result_size(SEQS));
    ek_step_layout(e->step, &e->ceiling);
}

static void engine_open(struct golden_engine *e, const struct ek_backend *b, const char *isa,
                        enum model_dtype dtype, uint32_t threads)
{
    engine_open_as(e, b, isa, NULL, dtype, threads);
}

static void engine_close(struct golden_engine *e)
{
    e->b->close(e->d);
    model_free(e->model);
    free(e->step);
    free(e->result);
}

static void enter(struct golden_engine *e, const struct seq *s)
{
    ek_step_sets(e->step)[e->step->sets++] =
        (struct ek_slot_set){.slot = s->slot, .sampling.top_p = 1.0f, .top = EK_TOP_MOST};
}

/* Adds the next rows of the sequence; its blocks are those of its slot. */
static void add_rows(struct golden_engine *e, struct seq *s, uint32_t rows)
{
    struct ek_step *p = e->step;
    uint32_t blocks = (s->computed + rows + BLOCK_SIZE - 1) / BLOCK_SIZE;
    bool sample = s->computed + rows == s->known;

    ek_step_seqs(p)[p->seqs++] = (struct ek_step_seq){.slot = s->slot,
                                                      .row = p->rows,
                                                      .rows = rows,
                                                      .context = s->computed + rows,
                                                      .table = p->entries,
                                                      .blocks = blocks,
                                                      .sample = sample,
                                                      .logit_row = sample ? p->logit_rows++ : 0};
    for (uint32_t i = 0; i < blocks; i++)
        ek_step_tables(p)[p->entries++] = 1 + i * SEQS + s->slot;
    for (uint32_t i = 0; i < rows; i++, p->rows++, s->computed++) {
        uint32_t block = 1 + s->computed / BLOCK_SIZE * SEQS + s->slot;
        ek_step_tokens(p)[p->rows] = s->token[s->computed];
        ek_step_positions(p)[p->rows] = s->computed;
        ek_step_kv_slots(p)[p->rows] = block * BLOCK_SIZE + s->computed % BLOCK_SIZE;
    }
}

/* Runs the step and hands the sampled tokens to the sequences by slot. */
static void run(struct golden_engine *e, struct seq **by_slot)
{
    e->step->id = ++e->id;
    assert_int_equal(e->b->forward(e->d, e->step), 0);
    assert_int_equal(e->b->sample(e->d, e->step, NULL), 0);
    assert_int_equal(e->b->wait(e->d, e->id, e->result, ek_result_size(SEQS), 60000000), 0);
    assert_int_equal(e->result->error, 0);
    for (uint32_t i = 0; i < e->result->seqs; i++) {
        const struct ek_result_seq *r = &e->result->seq[i];
        struct seq *s = by_slot[r->slot];
        if (r->tokens == 0 || s->known >= MOST_TOKENS)
            continue;
        s->token[s->known++] = r->token[0];
        if (s->heard)
            s->heard[s->heard_count] = *r;
        s->heard_count++;
    }
    ek_step_layout(e->step, &e->ceiling);
}

static void read_tokens(const json_t *array, int32_t *tokens)
{
    for (size_t i = 0; i < json_array_size(array); i++)
        tokens[i] = (int32_t)json_integer_value(json_array_get(array, i));
}

/* The reference's 20 largest logits against ours. */
static void check_logits(const char *name, const json_t *want, const struct ek_result_seq *r)
{
    for (size_t i = 0; i < json_array_size(want); i++) {
        const json_t *pair = json_array_get(want, i);
        int32_t id = (int32_t)json_integer_value(json_array_get(pair, 0));
        double logit = json_number_value(json_array_get(pair, 1));
        double got = (double)r->top_logit[r->top - 1]; /* one just pushed out by a tie */
        for (uint32_t k = 0; k < r->top; k++)
            if (r->top_id[k] == id)
                got = (double)r->top_logit[k];
        if (!(fabs(got - logit) < 2e-3))
            fail_msg("%s: the logit of %d is %g instead of %g", name, id, got, logit);
    }
}

static void run_case(struct golden_engine *e, const json_t *c, bool exact)
{
    const json_t *prompt = json_object_get(c, "prompt_token_ids");
    const json_t *output = json_object_get(c, "output_token_ids");
    const char *name = json_string_value(json_object_get(c, "name"));
    uint32_t n = (uint32_t)json_array_size(prompt), more = (uint32_t)json_array_size(output);
    struct seq *s = calloc(1, sizeof(*s)), *by_slot[SEQS] = {s};
    struct ek_result_seq first = {.tokens = 0}, last = {.tokens = 0};
    int32_t want[MOST_TOKENS];

    assert_true(n + more < MOST_TOKENS);
    read_tokens(prompt, s->token);
    read_tokens(output, want);
    s->known = n;
    enter(e, s);
    while (s->known < n + more) {
        add_rows(e, s, s->known - s->computed);
        run(e, by_slot);
        last = e->result->seq[0];
        if (s->known == n + 1)
            first = last;
    }
    bool firm = json_number_value(json_object_get(c, "smallest_margin")) > 0.05;
    for (uint32_t i = 0; i < more && (exact || firm); i++)
        if (s->token[n + i] != want[i])
            fail_msg("%s: token %u is %d instead of %d", name, i, s->token[n + i], want[i]);
    if (exact) {
        check_logits(name, json_object_get(c, "first_logits"), &first);
        check_logits(name, json_object_get(c, "last_logits"), &last);
    }
    free(s);
}

/* Cases of up to `most` tokens; returns how many. */
static uint32_t run_short(const struct ek_backend *b, const char *isa, const char *form,
                          enum model_dtype dtype, uint32_t most)
{
    json_t *root = json_load_file(EXPECTED, 0, NULL);
    const json_t *cases = json_object_get(root, "cases");
    uint32_t run = 0;
    struct golden_engine e;

    assert_non_null(root);
    engine_open_as(&e, b, isa, form, dtype, 2);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        if (json_is_true(json_object_get(c, "too_long")) ||
            json_array_size(json_object_get(c, "prompt_token_ids")) +
                    json_array_size(json_object_get(c, "output_token_ids")) >
                most)
            continue;
        if (share_takes(run))
            run_case(&e, c, dtype == MODEL_DTYPE_F32);
        run++;
    }
    engine_close(&e);
    json_decref(root);
    return run;
}

static void run_cases(const struct ek_backend *b, const char *isa, enum model_dtype dtype)
{
    assert_int_equal(run_short(b, isa, NULL, dtype, MOST_TOKENS), 17);
}

static bool has_tier(const char *isa)
{
    const struct ek_open_params open = {.isa = isa};
    struct ek_device_info info;
    return ek_backend_find("cpu", NULL)->probe(&open, &info, NULL) == 0;
}

static void test_float32(void **state)
{
    (void)state;
    run_cases(ek_backend_find("cpu", NULL), NULL, MODEL_DTYPE_F32);
    if (has_tier("avx2"))
        run_cases(ek_backend_find("cpu", NULL), "avx2", MODEL_DTYPE_F32);
}

static void test_bfloat16(void **state)
{
    (void)state;
    run_cases(ek_backend_find("cpu", NULL), NULL, MODEL_DTYPE_BF16);
    if (has_tier("avx2"))
        run_cases(ek_backend_find("cpu", NULL), "avx2", MODEL_DTYPE_BF16);
    if (has_tier("amx") && tiles_emulated()) /* slowly */
        assert_true(run_short(ek_backend_find("cpu", NULL), "amx", NULL, MODEL_DTYPE_BF16, 25) > 0);
    else if (has_tier("amx"))
        run_cases(ek_backend_find("cpu", NULL), "amx", MODEL_DTYPE_BF16);
}

/* A tier whose products are another one's, as measuring may choose it. */
static void test_forms(void **state)
{
    static const char *const form[] = {"avx512bf16", "avx512vnni", "avx512-wide", "avx2"};
    const struct ek_backend *b = ek_backend_find("cpu", NULL);
    (void)state;

    for (size_t i = 0; i < sizeof(form) / sizeof(form[0]); i++) {
        char tier[EK_FORM_NAME];
        (void)snprintf(tier, sizeof(tier), "%.*s", (int)strcspn(form[i], "-"), form[i]);
        if (!has_tier(tier))
            continue;
        assert_true(run_short(b, NULL, form[i], MODEL_DTYPE_F32, 60) > 0);
        assert_true(run_short(b, NULL, form[i], MODEL_DTYPE_BF16, 60) > 0);
    }
}

static void test_in_a_child(void **state)
{
    (void)state;
    run_cases(proxy_backend(), NULL, MODEL_DTYPE_F32);
    run_cases(proxy_backend(), NULL, MODEL_DTYPE_BF16);
}

static void load_prompt(const json_t *cases, size_t index, struct seq *s)
{
    const json_t *prompt = json_object_get(json_array_get(cases, index), "prompt_token_ids");

    s->known = (uint32_t)json_array_size(prompt);
    if (s->known > 300) /* the others need no long prompts */
        s->known = 20;
    for (uint32_t i = 0; i < s->known; i++)
        s->token[i] = (int32_t)json_integer_value(json_array_get(prompt, i));
    s->asked = s->known + 60;
}

/* All sequences together: decodes first, then chunks of at most 9 rows, 40 rows a step in all. */
static void run_together(struct golden_engine *e, struct seq **by_slot)
{
    uint32_t left = 1;

    for (uint32_t i = 0; i < SEQS; i++)
        enter(e, by_slot[i]);
    while (left > 0) {
        left = 0;
        for (uint32_t i = 0; i < SEQS; i++) {
            struct seq *s = by_slot[i];
            uint32_t rows = s->known - s->computed, room = 40 - e->step->rows;
            if (s->known >= s->asked)
                continue;
            left++;
            rows = rows > 9 ? 9 : rows;
            rows = rows > room ? room : rows;
            if (rows > 0)
                add_rows(e, s, rows);
        }
        if (left > 0)
            run(e, by_slot);
    }
}

static void test_alone_and_among(void **state)
{
    (void)state;
    json_t *root = json_load_file(EXPECTED, 0, NULL);
    const json_t *cases = json_object_get(root, "cases");
    struct seq *alone = calloc(1, sizeof(*alone)), *others = calloc(SEQS, sizeof(*others));
    struct seq *by_slot[SEQS] = {alone};
    struct golden_engine e;

    engine_open(&e, ek_backend_find("cpu", NULL), NULL, MODEL_DTYPE_BF16, 2);
    load_prompt(cases, 0, alone);
    alone->heard = calloc(64, sizeof(*alone->heard));
    enter(&e, alone);
    while (alone->known < alone->asked) {
        add_rows(&e, alone, alone->known - alone->computed);
        run(&e, by_slot);
    }
    for (uint32_t i = 0; i < SEQS; i++) {
        by_slot[i] = &others[i];
        others[i].slot = i;
        load_prompt(cases, i == 11 ? 0 : i, &others[i]);
    }
    struct seq *same = &others[11];
    same->heard = calloc(64, sizeof(*same->heard));
    run_together(&e, by_slot);
    assert_int_equal(same->known, alone->known);
    assert_memory_equal(same->token, alone->token, alone->known * sizeof(alone->token[0]));
    for (uint32_t i = 0; i < alone->heard_count; i++) {
        same->heard[i].slot = alone->heard[i].slot;
        assert_memory_equal(&same->heard[i], &alone->heard[i], sizeof(same->heard[i]));
    }
    engine_close(&e);
    free(alone->heard);
    free(same->heard);
    free(alone);
    free(others);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_a_child), /* first: forks before there are threads */
        cmocka_unit_test(test_float32),    cmocka_unit_test(test_bfloat16),
        cmocka_unit_test(test_forms),      cmocka_unit_test(test_alone_and_among),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
