/* From tokens to text and to events: with the embedded model's tokenizer and a hand for an engine.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/openai.h"
#include "server/api/reply.h"
#include "server/api/served.h"
#include "server/api/sse.h"
#include "server/text/tokenizer.h"
#include "tests/unit/alloc.h"

#define MODEL "models/evenkeel-tiny"
#define EOS   2

static struct served served = {.name = {"tiny"},
                               .names = 1,
                               .max_model_len = 64,
                               .vocab = 4128,
                               .eos = {EOS},
                               .eos_count = 1,
                               .defaults = {EK_SAMPLING_NEUTRAL, 0},
                               .seed = -1,
                               .max_logprobs = 20};

static int load(void **state)
{
    struct tokenizer *t = NULL;
    struct ek_fault f = {0};
    (void)state;
    if (tokenizer_load(MODEL, &t, &f) < 0)
        return -1;
    served.tok = t;
    return 0;
}

static int unload(void **state)
{
    (void)state;
    union {
        const struct tokenizer *c;
        struct tokenizer *t;
    } tok = {.c = served.tok};
    tokenizer_free(tok.t);
    return 0;
}

static int make(const char *text, struct generation **ret_gen, struct api_error *err)
{
    static const struct generation_origin from = {
        .request_id = "r1", .arrival_us = 5, .wall_us = 7000000, .chance = 9};
    json_t *body = openai_load(text, strlen(text), err);
    int r = body ? generation_new(&served, API_PLAIN, body, &from, ret_gen, err) : -EBADMSG;
    for (uint32_t i = 0; r == 0 && i < (*ret_gen)->count; i++) {
        if (generation_request(&(*ret_gen)->choice[i]) == 0)
            continue;
        generation_free(*ret_gen);
        *ret_gen = NULL;
        r = api_no_memory(err);
    }
    return r;
}

/* What the engine would put out: tokens of `text`, one by one. */
static void give_choice(struct generation *g, uint32_t index, const char *text)
{
    struct request *q = g->choice[index].req;
    struct token_vec v = {0};
    assert_int_equal(tokenizer_encode(served.tok, text, strlen(text), true, 0, &v), 0);
    for (size_t i = 0; i < v.count; i++) {
        uint32_t n = atomic_load(&q->out_count);
        assert_true(n < q->ask.max_new_tokens);
        q->out[n] = (struct req_token){.id = v.at[i], .logprob = -0.5f};
        atomic_store(&q->out_count, n + 1);
    }
    token_vec_done(&v);
}

static void give(struct generation *g, const char *text)
{
    give_choice(g, 0, text);
}

static void end(struct generation *g, enum req_finish how)
{
    g->choice[0].req->finish = how;
    atomic_store(&g->choice[0].req->state, REQ_DONE);
}

/* Pumps and renders; the stream's bytes stay in g->out. */
static bool step(struct generation *g)
{
    if (generation_pump(g))
        sse_render(g);
    return g->choice[0].cut;
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *p = strstr(text, what); p; p = strstr(p + 1, what))
        n++;
    return n;
}

static void test_whole_answer(void **state)
{
    struct generation *g = NULL;
    struct api_error err;
    struct ek_buf out = {0};
    (void)state;
    assert_int_equal(make("{\"prompt\":\"Once\",\"max_tokens\":20}", &g, &err), 0);
    assert_true(g->choice[0].req->ask.max_new_tokens == 20 &&
                g->choice[0].req->ask.sampling.seed == 9);
    assert_true(g->choice[0].req->ask.stop_count == 1 && g->choice[0].req->ask.stop_ids[0] == EOS);
    assert_false(generation_pump(g));
    give(g, "a \xc3\xa4 \"q\"");
    g->choice[0].req->stop_token = EOS;
    give(g, "<|im_end|>");
    assert_true(generation_pump(g)); /* the stop token waits for the end */
    end(g, REQ_FIN_STOP);
    assert_true(generation_pump(g) && g->over && !g->choice[0].cut);
    assert_int_equal(generation_check(g, &err), 0);
    reply_completion(&out, g);
    json_t *j = json_loadb(out.data, out.len, 0, NULL);
    json_t *choice = json_array_get(json_object_get(j, "choices"), 0);
    assert_string_equal(json_string_value(json_object_get(choice, "text")), "a \xc3\xa4 \"q\"");
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "stop");
    assert_true(json_is_null(json_object_get(choice, "stop_reason")));
    json_t *usage = json_object_get(j, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")),
                     g->choice[0].seen);
    assert_string_equal(json_string_value(json_object_get(j, "id")), "cmpl-r1");
    json_decref(j);
    ek_buf_done(&out);
    generation_free(g);
}

static void test_stream_order(void **state)
{
    struct generation *g = NULL;
    struct api_error err;
    (void)state;
    assert_int_equal(make("{\"prompt\":\"Once\",\"max_tokens\":20,\"stream\":true,"
                          "\"stream_options\":{\"include_usage\":true}}",
                          &g, &err),
                     0);
    give(g, "one");
    assert_false(step(g));
    size_t first = g->out.len;
    assert_int_equal(strncmp(g->out.data, "data: {", 7), 0);
    give(g, " two");
    assert_false(step(g));
    assert_true(g->out.len > first);
    end(g, REQ_FIN_LENGTH);
    assert_false(step(g));
    assert_true(g->closed);
    assert_int_equal(count(g->out.data, "\"finish_reason\":\"length\""), 1);
    assert_int_equal(count(g->out.data, "\"usage\""), 1);
    const char *finish = strstr(g->out.data, "length"), *usage = strstr(g->out.data, "\"usage\"");
    const char *done = strstr(g->out.data, "data: [DONE]\n\n");
    assert_true(finish < usage && usage < done && done[14] == '\0');
    generation_free(g);
}

static void test_stop_string(void **state)
{
    struct generation *g = NULL;
    struct api_error err;
    (void)state;
    assert_int_equal(
        make("{\"prompt\":\"x\",\"max_tokens\":30,\"stream\":true,\"stop\":[\"two three\"]}", &g,
             &err),
        0);
    give(g, "one two");
    assert_false(step(g));
    assert_null(strstr(g->out.data, "two")); /* held back: it may be the beginning */
    give(g, " three four");
    assert_true(step(g)); /* the engine is to be told */
    assert_true(g->closed && g->choice[0].finish == REQ_FIN_STOP);
    assert_null(strstr(g->out.data, "four"));
    assert_non_null(strstr(g->out.data, "\"stop_reason\":\"two three\""));
    generation_free(g);
}

static void test_error_in_the_middle(void **state)
{
    struct generation *g = NULL;
    struct api_error err;
    (void)state;
    assert_int_equal(make("{\"prompt\":\"x\",\"stream\":true}", &g, &err), 0);
    give(g, "one");
    (void)step(g);
    g->choice[0].req->error = EK_EDEVICE;
    end(g, REQ_FIN_ERROR);
    (void)step(g);
    assert_non_null(strstr(g->out.data, "data: {\"error\":{"));
    assert_non_null(strstr(g->out.data, "\"code\":500}}\n\ndata: [DONE]\n\n"));
    assert_int_equal(count(g->out.data, "finish_reason\":\""), 0);
    generation_free(g);
}

/* Ended before the first token: a true status, so that clients retry. */
static void test_late_refusals(void **state)
{
    static const struct {
        enum req_finish how;
        int error, status;
    } cases[] = {{REQ_FIN_ERROR, -ETIMEDOUT, 429},
                 {REQ_FIN_ERROR, EK_EDEVMEM, 500},
                 {REQ_FIN_DEADLINE, 0, 503},
                 {REQ_FIN_ABORT, 0, 503}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct generation *g = NULL;
        struct api_error err;
        assert_int_equal(make("{\"prompt\":\"x\"}", &g, &err), 0);
        g->choice[0].req->error = cases[i].error;
        end(g, cases[i].how);
        assert_true(generation_pump(g));
        assert_int_equal(generation_check(g, &err), -EBADMSG);
        assert_int_equal(err.status, cases[i].status);
        assert_int_equal(err.retry_after_s > 0, err.status != 500);
        generation_free(g);
    }
}

static void test_too_long(void **state)
{
    struct generation *g = NULL;
    struct api_error err;
    char text[2048];
    (void)state;
    assert_int_equal(make("{\"prompt\":\"one\",\"max_tokens\":65}", &g, &err), -EBADMSG);
    assert_string_equal(err.param, "max_tokens");
    assert_non_null(strstr(err.msg, "This model's maximum context length is 64 tokens. However, "
                                    "you requested 65 output tokens"));
    /* what the model could give to some prompt is given as far as there is room after this one */
    assert_int_equal(make("{\"prompt\":\"one\",\"max_tokens\":64,\"min_tokens\":64}", &g, &err), 0);
    uint32_t room = 64 - g->choice[0].req->ask.prompt_tokens;
    assert_int_equal(g->room, room); /* and the usage tells it */
    assert_int_equal(g->choice[0].req->ask.max_new_tokens, room);
    assert_int_equal(g->choice[0].req->ask.min_tokens, room);
    generation_free(g);
    g = NULL;
    size_t n = (size_t)snprintf(text, sizeof(text), "{\"prompt\":\"");
    for (int i = 0; i < 200; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "word ");
    (void)snprintf(text + n, sizeof(text) - n, "\",\"max_tokens\":5}");
    assert_int_equal(make(text, &g, &err), -EBADMSG);
    assert_non_null(strstr(err.msg, "your prompt contains at least 65 input tokens"));
    assert_null(g);
}

static void test_logprobs(void **state)
{
    struct generation *g = NULL;
    struct api_error err;
    struct ek_buf out = {0};
    (void)state;
    assert_int_equal(make("{\"prompt\":\"x\",\"logprobs\":2,\"max_tokens\":9}", &g, &err), 0);
    give(g, "a b");
    for (uint32_t i = 0; i < atomic_load(&g->choice[0].req->out_count); i++) {
        g->choice[0].req->out[i].top = 2;
        g->choice[0].req->top_at[i * 2] =
            (struct req_top){.id = g->choice[0].req->out[i].id, .logprob = -0.5f};
        g->choice[0].req->top_at[i * 2 + 1] = (struct req_top){.id = 300, .logprob = -1e30f};
    }
    end(g, REQ_FIN_LENGTH);
    assert_true(generation_pump(g));
    reply_completion(&out, g);
    json_t *j = json_loadb(out.data, out.len, 0, NULL);
    json_t *lp = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "logprobs");
    size_t n = json_array_size(json_object_get(lp, "tokens"));
    assert_true(n == g->choice[0].seen && json_array_size(json_object_get(lp, "text_offset")) == n);
    assert_true(json_array_size(json_object_get(lp, "token_logprobs")) == n);
    const json_t *top = json_array_get(json_object_get(lp, "top_logprobs"), 0);
    assert_int_equal(json_object_size(top), 2);
    assert_non_null(strstr(out.data, "-9999"));
    json_decref(j);
    ek_buf_done(&out);
    generation_free(g);
}

/* What the engine is asked for when the client asks for everything. */
static void test_engine_ask(void **state)
{
    struct generation *g = NULL;
    struct api_error err;
    (void)state;
    assert_int_equal(
        make("{\"prompt\":[\"Once "
             "upon\",[5,6,7]],\"n\":2,\"seed\":10,\"max_tokens\":4,\"min_tokens\":"
             "2,\"frequency_penalty\":0.5,\"presence_penalty\":-1,\"repetition_penalty\":1.5,"
             "\"typical_p\":0.5,\"logit_bias\":{\"5\":2,\"6\":-3},\"bad_words\":[\" bad\"],"
             "\"allowed_token_ids\":[33,4127],\"echo\":true,\"logprobs\":3,\"stop_token_ids\":[9]}",
             &g, &err),
        0);
    assert_int_equal(g->count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        const struct choice *c = &g->choice[i];
        const struct req_ask *q = &c->req->ask;
        assert_true(c->index == i && c->prompt == i / 2 && c->of == g);
        assert_true(q->sampling.seed == 10 + i % 2 && q->score == (i % 2 == 0) && q->top == 3);
        assert_true(q->sampling.frequency == 0.5f && q->sampling.presence == -1.0f &&
                    q->sampling.repetition == 1.5f);
        assert_true(q->sampling.typical_p == 0.5f && q->min_tokens == 2 && q->stop_count == 2);
        assert_true(q->allowed == 4128 / 32 && q->biases == 2 && q->bad >= 2);
        assert_true(q->words[1] == 2 && q->words[128] == 1u << 31);
        const uint32_t *bias = q->words + q->allowed;
        assert_true(bias[0] == 5 && bias[1] == 0x40000000u && bias[2] == 6);
        assert_int_equal(bias[4] + 1, q->bad); /* one word, its length before it */
    }
    assert_int_equal(g->choice[2].req->ask.prompt_tokens, 3);
    assert_int_equal(generation_prompt_tokens(g), 3 + g->choice[0].req->ask.prompt_tokens);
    generation_free(g);
}

/* Choices come in any order; each has its own index, its text and its end. */
static void test_choices(void **state)
{
    struct generation *g = NULL;
    struct api_error err;
    struct ek_buf out = {0};
    (void)state;
    assert_int_equal(
        make("{\"prompt\":\"x\",\"n\":2,\"max_tokens\":9,\"stream\":true,\"stop\":\"!\"}", &g,
             &err),
        0);
    give_choice(g, 1, "second");
    (void)step(g);
    assert_non_null(strstr(g->out.data, "{\"index\":1,\"text\":\"second\""));
    assert_null(strstr(g->out.data, "{\"index\":0"));
    give_choice(g, 0, "first!");
    (void)step(g);
    assert_true(g->choice[0].cut && g->choice[0].over && !g->over);
    assert_int_equal(count(g->out.data, "\"finish_reason\":\"stop\""), 1);
    g->choice[1].req->finish = REQ_FIN_LENGTH;
    atomic_store(&g->choice[1].req->state, REQ_DONE);
    (void)step(g);
    assert_true(g->over && g->closed);
    assert_int_equal(count(g->out.data, "\"finish_reason\":\"length\""), 1);
    assert_int_equal(count(g->out.data, "[DONE]"), 1);
    generation_free(g);
    ek_buf_done(&out);
}

/* One choice that fails ends the stream for all. */
static void test_one_fails(void **state)
{
    struct generation *g = NULL;
    struct api_error err;
    (void)state;
    assert_int_equal(make("{\"prompt\":\"x\",\"n\":2,\"stream\":true}", &g, &err), 0);
    give_choice(g, 0, "first");
    (void)step(g);
    g->choice[1].req->error = -ENODATA;
    g->choice[1].req->finish = REQ_FIN_ERROR;
    atomic_store(&g->choice[1].req->state, REQ_DONE);
    (void)step(g);
    assert_true(g->over && g->closed);
    assert_non_null(strstr(g->out.data, "\"code\":400}}\n\ndata: [DONE]\n\n"));
    generation_free(g);
}

/* An answer that is rendered keeps no more of many choices than its numbers. */
static void test_drop(void **state)
{
    struct generation *g = NULL;
    struct api_error err;
    (void)state;
    assert_int_equal(make("{\"prompt\":[\"x\",\"y\"],\"n\":16,\"max_tokens\":9}", &g, &err), 0);
    assert_int_equal(g->count, 32);
    assert_true(generation_fixed(g) > 32 * sizeof(struct choice));
    uint32_t prompt = generation_prompt_tokens(g);
    for (uint32_t i = 0; i < 32; i++) {
        give_choice(g, i, "one");
        g->choice[i].req->finish = REQ_FIN_LENGTH;
        atomic_store(&g->choice[i].req->state, REQ_DONE);
    }
    assert_true(generation_pump(g) && g->over);
    uint32_t seen = generation_seen(g);
    assert_true(seen >= 32);
    generation_drop(g);
    assert_true(generation_fixed(g) < 2 * sizeof(struct choice));
    assert_true(generation_seen(g) == seen && generation_prompt_tokens(g) == prompt);
    assert_true(!generation_pump(g) && !generation_tick(g));
    generation_abort(g);
    generation_free(g);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        struct generation *g = NULL;
        struct api_error err = {0};
        alloc_fail_at(n);
        int r =
            make("{\"prompt\":[\"Once upon\",[5,6]],\"stop\":\"x\",\"logprobs\":1,\"n\":2,\"echo\":"
                 "true,\"logit_bias\":{\"5\":1},\"bad_words\":[\"bad\"],"
                 "\"allowed_token_ids\":[7]}",
                 &g, &err);
        bool hit = alloc_failed();
        alloc_fail_at(0);
        if (r == 0)
            generation_free(g);
        else
            assert_true(err.status == 503 || err.status == 400); /* JSON says bad input */
        if (!hit)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_answer),  cmocka_unit_test(test_stream_order),
        cmocka_unit_test(test_stop_string),   cmocka_unit_test(test_error_in_the_middle),
        cmocka_unit_test(test_late_refusals), cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_logprobs),      cmocka_unit_test(test_engine_ask),
        cmocka_unit_test(test_choices),       cmocka_unit_test(test_one_fails),
        cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_drop),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
