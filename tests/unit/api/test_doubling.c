/*
 * Work that others choose the size of grows no faster than n log n. Every row of the table of
 * fields (server/api/field_table.c), of every API that has it, and answers in every style of
 * thinking and of calls are fed in doubling sizes and in several shapes, those of its own schema
 * among them (field_shapes.h); test_doubling_files.c does
 * it with a model's files, test_doubling_forms.c with forms. What is compared is what was done, not
 * how long it took (doubling.h): the basic blocks of our code that ran, when it is built to count
 * them (make doubling), and the bytes that were allocated, always. A new field is covered by being
 * in the table, a new style by its number.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/work.h"
#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/openai.h"
#include "server/text/answer/harmony.h"
#include "server/text/answer/reasoning.h"
#include "server/text/answer/toolcall.h"
#include "server/text/chat.h"
#include "server/text/tokenizer.h"
#include "tests/share.h"
#include "tests/unit/alloc.h"
#include "tests/unit/api/doubling.h"
#include "tests/unit/api/field_shapes.h"
#include "tests/unit/api/tiny_served.h"

#define MODEL  "models/evenkeel-tiny"
#define UNPAID 64 /* most blocks for a unit of work */

static int load(void **state)
{
    struct tokenizer *t = NULL;
    struct chat *chat = NULL;
    struct ek_fault f = {0};
    (void)state;
    if (tokenizer_load(MODEL, &t, &f) < 0 || chat_load(MODEL, NULL, &chat, &f) < 0)
        return -1;
    served.tok = t;
    served.chat = chat;
    return 0;
}

static int unload(void **state)
{
    union {
        const struct tokenizer *c;
        struct tokenizer *v;
    } tok = {.c = served.tok};
    union {
        const struct chat *c;
        struct chat *v;
    } chat = {.c = served.chat};
    (void)state;
    tokenizer_free(tok.v);
    chat_free(chat.v);
    return 0;
}

/* ---- shapes ---- */

static const struct doubling_shape shapes[] = {
    {"\"", "a", "", "\""},
    {"\"", "word%u ", "", "\""},
    {"\"", "<|im_end|>", "", "\""},
    {"\"", " \\n\\u00e9\\u0301", "", "\""},
    {"[", "1", ",", "]"},
    {"[", "\"a%u\"", ",", "]"},
    {"[", "[%u]", ",", "]"},
    {"[", "{\"a\":%u}", ",", "]"},
    {"{", "\"k%u\":%u", ",", "}"},
    {"{", "\"%u\":1", ",", "}"},
    {"[", "{\"role\":\"user\",\"content\":\"m%u\"}", ",", "]"},
    {"[", "{\"role\":\"developer\",\"content\":\"m%u\"}", ",", "]"},
    {"[{\"role\":\"user\",\"content\":[", "{\"type\":\"text\",\"text\":\"p%u\"}", ",", "]}]"},
    {"[{\"role\":\"user\",\"content\":\"", "word%u ", "", "\"}]"},
    {"[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":null,\"tool_"
     "calls\":[",
     "{\"id\":\"c%u\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}",
     ",", "]}]"},
    {"[{\"role\":\"assistant\",\"content\":[",
     "{\"type\":\"tool_use\",\"id\":\"c%u\",\"name\":\"f\",\"input\":{}}", ",",
     "]},{\"role\":\"user\",\"content\":\"x\"}]"},
    {"[{\"role\":\"user\",\"content\":[",
     "{\"type\":\"tool_result\",\"tool_use_id\":\"c%u\",\"content\":\"r\"}", ",", "]}]"},
    {"[", "{\"type\":\"message\",\"role\":\"user\",\"content\":\"m%u\"}", ",", "]"},
    {"[", "{\"type\":\"function_call\",\"call_id\":\"c%u\",\"name\":\"f\",\"arguments\":\"{}\"}",
     ",", "]"},
    {"[",
     "{\"type\":\"function\",\"function\":{\"name\":\"f%u\",\"parameters\":{\"type\":\"object\"}}}",
     ",", "]"},
    {"[", "{\"type\":\"function\",\"name\":\"f%u\",\"parameters\":{\"type\":\"object\"}}", ",",
     "]"},
    {"[", "{\"name\":\"f%u\",\"input_schema\":{\"type\":\"object\"}}", ",", "]"},
    {"{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":{\"type\":\"object\","
     "\"properties\":{",
     "\"k%u\":{\"type\":\"integer\"}", ",", "}}}}"},
    {"{\"choice\":[", "\"c%u\"", ",", "]}"},
    {"{\"regex\":\"", "a", "", "\"}"},
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* What a row that is needed has when another one is fed. NULL: nobody said. */
static const char *smallest(const struct field *f)
{
    static const char *const known[][2] = {
        {"messages", "[{\"role\":\"user\",\"content\":\"hi\"}]"},
        {"prompt", "\"hi\""},
        {"input", "\"hi\""},
        {"tokens", "[5]"},
        {"max_tokens", "4"},
        {"input_prefix", "\"hi\""},
        {"input_suffix", "\"hi\""},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(f->name, known[i][0]) == 0)
            return known[i][1];
    }
    return NULL;
}

static void put_body(struct ek_buf *b, enum openai_api api, const struct field *fed,
                     const struct doubling_shape *s, uint32_t n)
{
    bool tokenize = api == API_TOKENIZE && strcmp(fed->name, "messages") != 0;
    (void)ek_buf_printf(b, "{\"%s\":%s", fed->name, s->open);
    put_pieces(b, s->piece, s->between, n);
    (void)ek_buf_puts(b, s->close);
    for (uint32_t i = 0; i < field_count(); i++) {
        const struct field *f = &field_table[i];
        if (!f->needed || !(f->on & 1u << api) || strcmp(f->name, fed->name) == 0)
            continue;
        if (api == API_TOKENIZE && tokenize != (strcmp(f->name, "prompt") == 0))
            continue; /* one of the two */
        if (!smallest(f))
            fail_msg("say what the smallest `%s` is", f->name);
        (void)ek_buf_printf(b, ",\"%s\":%s", f->name, smallest(f));
    }
    (void)ek_buf_puts(b, "}");
    assert_true(ek_buf_ok(b));
}

/* ---- what is measured ---- */

/* From the bytes of a body to the tokens of its prompt. */
static struct cost read_ask(enum openai_api api, const struct ek_buf *text)
{
    struct ek_work work = {.fuel = openai_fuel(text->len)};
    struct api_error err = {0};
    struct openai_ask a;
    struct token_vec tokens = {0};
    uint64_t before = blocks;
    unsigned long bytes = alloc_bytes();
    json_t *body = openai_load(text->data, text->len, &err);
    int r = body ? openai_parse(&served, api, body, &work, &a, &err) : -EBADMSG;
    if (r == 0 && (a.messages || a.prompt))
        r = prompt_tokens(&served, &a, 0, &tokens, &err);
    struct cost c = {
        .blocks = blocks - before, .bytes = alloc_bytes() - bytes, .units = work.used, .result = r};
    if (r < 0)
        assert_true(err.status >= 400 && err.msg[0]);
    assert_false(ek_work_stopped(&work)); /* bodies like these are read */
    token_vec_done(&tokens);
    json_decref(body);
    return c;
}

/* True when work was done that nobody paid for. A basic block takes about a unit; most of what
 * libraries do is not counted. */
static bool unpaid(const char *what, const char *shape, const struct cost cost[SIZES])
{
    uint64_t did = (cost[3].blocks - cost[2].blocks), paid = cost[3].units - cost[2].units;
    if (cost[3].blocks <= cost[2].blocks || did < FREE || paid >= did / UNPAID)
        return false;
    print_error("%s of %s: %llu blocks for %llu units of work\n", what, shape,
                (unsigned long long)did, (unsigned long long)paid);
    return true;
}

static void test_fields(void **state)
{
    static const char *const apis[API_COUNT] = {
        "chat",     "completion", "response",    "message",         "embed",
        "tokenize", "detokenize", "ollama chat", "ollama generate", "ollama embed",
        "infill",   "rerank",     "score",       "classify",        "pooling"};
    uint32_t all = 0, fed = 0, read = 0;
    int bad = 0;
    (void)state;
    for (uint32_t i = 0; i < field_count(); i++) {
        struct field_shapes own;
        field_shapes(field_table[i].schema, &own);
        for (size_t k = 0; k < (SHAPES + own.count) * API_COUNT; k++) {
            enum openai_api api = (enum openai_api)(k % API_COUNT);
            const size_t shape = k / API_COUNT;
            const struct doubling_shape *s =
                shape < SHAPES ? &shapes[shape] : &own.at[shape - SHAPES];
            struct cost cost[SIZES];
            char what[128];
            if (!(field_table[i].on & 1u << api) || !share_takes(all++))
                continue;
            for (uint32_t n = 0; n < SIZES; n++) {
                struct ek_buf b = {0};
                put_body(&b, api, &field_table[i], s, FIRST << n);
                cost[n] = read_ask(api, &b);
                ek_buf_done(&b);
            }
            (void)snprintf(what, sizeof(what), "`%s` of a %s", field_table[i].name, apis[api]);
            bad += judge(what, s->piece, cost);
            bad += unpaid(what, s->piece, cost);
            fed++;
            read += cost[0].result == 0;
        }
        shapes_free(&own);
    }
    print_message("%u fields and shapes fed, %u of them accepted; %s\n", fed, read,
                  counted ? "blocks and bytes counted"
                          : "bytes counted (make doubling counts blocks)");
    assert_true(all > field_count() * SHAPES && fed > 0 && (fed < all || read > 20));
    assert_int_equal(bad, 0);
}

/* ---- what a model writes, which a client can choose by its forms and biases ---- */

#define BLANKS "                "
#define PARAM  "<parameter=k%u>1</parameter>\n"
#define KIMI   "<|tool_calls_section_begin|>"
#define INVOKE "<minimax:tool_call><invoke name="
#define CALLS  "<｜tool▁calls▁begin｜>"
#define CALL   "<｜tool▁call▁begin｜>"
#define SEP    "<｜tool▁sep｜>"
#define END    "<｜tool▁call▁end｜>"

static const struct doubling_shape answers[] = {
    {"", BLANKS, "", ""},
    {"<tool_call>", BLANKS, "", "{}"},
    {"<tool_call>{", BLANKS, "", "}"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {}", BLANKS, "", "}"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {}}", BLANKS, "", "</tool_call>"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {", "\"k%u\": 1, ", "", "\"z\": 1}}"},
    {"[TOOL_CALLS]", BLANKS, "", "[]"},
    {"[TOOL_CALLS][", BLANKS, "", "]"},
    {"[TOOL_CALLS]f", BLANKS, "", "{}"},
    {"<function=f>", BLANKS, "", "</function>"},
    {"<function=f>", PARAM, "", "</function>"},
    {"<function=f>", "<parameter=k1>1</parameter>", "", "</function>"},
    {"<function=f><parameter=a>", "word ", "", "</parameter></function>"},
    {"<function=f><parameter=", "a", "", ">1</parameter></function>"},
    {"<tool_call>", "<function=", "", ""},
    {"{", BLANKS, "", "}"},
    {"{\"name\": \"f\", \"parameters\": {}}", BLANKS, "", ";"},
    {"<|python_tag|>", BLANKS, "", "{}"},
    {"[", BLANKS, "", "]"},
    {"[f(", "a%u=1, ", "", "z=1)]"},
    {"<think>", BLANKS, "", "</think>"},
    {"<think>a", BLANKS, "", "</think>"},
    {"<think>a", "<", "", "</think>"},
    {"<think>a</think>", BLANKS, "", "b"},
    {"<think>a</think>", "<response>", "", "b"},
    {"<seed:tool_call><function=f>", PARAM, "", "</function></seed:tool_call>"},
    {"<seed:tool_call>", BLANKS, "", "<function=f>"},
    {"<seed:think>a", BLANKS, "", "</seed:think>"},
    {"<tool_call>f", BLANKS, "", "<arg_key>k</arg_key><arg_value>1</arg_value></tool_call>"},
    {"<tool_call>f", "<arg_key>k%u</arg_key><arg_value>1</arg_value>", "", "</tool_call>"},
    {"<tool_call>f", "<arg_key>k1</arg_key><arg_value>1</arg_value>", "", "</tool_call>"},
    {"<tool_call>f<arg_key>", "a", "", "</arg_key><arg_value>1</arg_value>"},
    {"<tool_call>f<arg_key>k</arg_key>", BLANKS, "", "<arg_value>1</arg_value>"},
    {"<tool_call>f<arg_key>k</arg_key><arg_value>", "<arg_key>", "", "</arg_value>"},
    {"<tool_calls>", BLANKS, "", "[{\"name\": \"f\", \"arguments\": {}}]"},
    {"<tool_calls>[", "{\"name\": \"f%u\", \"arguments\": {}}, ", "", "]</tool_calls>"},
    {"<tool_calls>[{\"name\": \"f\", \"arguments\": {}}", BLANKS, "", "]</tool_calls>"},
    {CALLS, BLANKS, "", CALL "function" SEP "f\n```json\n{}\n```" END},
    {CALLS CALL, BLANKS, "", "f" SEP "{}" END},
    {CALLS CALL "function" SEP "f\n", BLANKS, "", "```json\n{}\n```" END},
    {CALLS CALL "function" SEP "f\n```json\n{\"k\": \"", "a", "", "\"}\n```" END},
    {CALLS CALL "f" SEP "{\"k\": \"", "```", "", "\"}" END},
    {CALLS, CALL "f" SEP "{}" END, "", "<｜tool▁calls▁end｜>"},
    {CALLS CALL "f" SEP "{}", BLANKS, "", END},
    {"<|tool_call>call:f{", "k%u:1,", "", "}<tool_call|>"},
    {"<|tool_call>call:f{", "k1:<|\"|>a<|\"|>,", "", "}<tool_call|>"},
    {"<|tool_call>call:f{k1:[", "[1],{a:1},", "", "]}<tool_call|>"},
    {"<|tool_call>call:f{k1:", "[", "", "}<tool_call|>"},
    {"<|tool_call>call:f{k1:<|\"|>", "<|\"", "", "<|\"|>}<tool_call|>"},
    {"<|tool_call>call:f{k1:", BLANKS, "", "1}<tool_call|>"},
    {"<|tool_call>call:f{", ",", "", "}<tool_call|>"},
    {"<|tool_call>call:f{", "a", "", ":1}<tool_call|>"},
    {"<|tool_call>call:f{<|\"|>", "<|}", "", "<|\"|>:1}<tool_call|>"},
    {"<|tool_call>call:f{k1:1}", BLANKS, "", "<tool_call|>"},
    {"<|channel>thought\n", "<channel|", "", "<channel|>b"},
    {"<|channel>", "<|channel>a<channel|>b", "", ""},
    {"", "<|tool_call>call:f{}<tool_call|>", "", ""},
    {KIMI "<|tool_call_begin|>", BLANKS, "",
     "functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"},
    {KIMI "<|tool_call_begin|>functions.", "f", "",
     ":0<|tool_call_argument_begin|>{}<|tool_call_end|>"},
    {KIMI, "<|tool_call_begin|>functions.f:%u<|tool_call_argument_begin|>{}<|tool_call_end|>", "",
     "<|tool_calls_section_end|>"},
    {KIMI "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{\"k\": \"", "<|tool_call_", "",
     "\"}<|tool_call_end|>"},
    {KIMI, BLANKS, "", "<|tool_calls_section_end|>"},
    {"<minimax:tool_call>", BLANKS, "", "<invoke name=\"f\"></invoke></minimax:tool_call>"},
    {INVOKE, "f", "", "></invoke></minimax:tool_call>"},
    {INVOKE "\"f\">", "<parameter name=\"k%u\">1</parameter>\n", "", "</invoke>"},
    {INVOKE "\"f\"><parameter name=\"k1\">", "</param", "", "</parameter></invoke>"},
    {INVOKE "\"f\"><parameter name=\"", "k", "", "\">1</parameter></invoke>"},
    {"<minimax:tool_call>", "<invoke name=\"f\"></invoke>", "", "</minimax:tool_call>"},
    {"<|tool_call|>", BLANKS, "", "[{\"name\": \"f\", \"arguments\": {}}]"},
    {"<tool_call>[", "{\"name\": \"f%u\", \"arguments\": {}}, ", "", "]"},
    {"<tool_call>", "<|tool_call|>", "", "[{\"name\": \"f\", \"arguments\": {}}]"},
    {"", "functools", "", "[{\"name\": \"f\", \"arguments\": {}}]"},
    {"functools[", "{\"name\": \"f%u\", \"arguments\": {}}, ", "", "]"},
    {"<TOOLCALL>", BLANKS, "", "[{\"name\": \"f\", \"arguments\": {}}]</TOOLCALL>"},
    {"<TOOLCALL>[", "{\"name\": \"f%u\", \"arguments\": {}}, ", "", "]</TOOLCALL>"},
    {"<|tool_call_start|>[", "f(k1=%u), ", "", "g()]<|tool_call_end|>"},
    {"<|tool_call_start|>[f(k1=\"", "]<|tool_call_end|>", "", "\")]<|tool_call_end|>"},
    {"", "<|tool_call_start|>[f()]<|tool_call_end|>", "", ""},
    {"<function_calls>", "f(k1=%u)\n", "", "</function_calls>"},
    {"<function_calls>f(k1=\"", "</function_calls>", "", "\")</function_calls>"},
    {"<function_calls>", BLANKS, "", "f()</function_calls>"},
    {"[THINK]a", "[/THINK", "", "[/THINK]b"},
    {"[THINK]a", BLANKS, "", "[/THINK]b"},
    {"Here is my thought process:", "Here is my response", "", ": b"},
    {"", "Here is my ", "", "thought process: a"},
};
#define ANSWERS (sizeof(answers) / sizeof(answers[0]))

/* Tools of the request, of which the last one is called, with many types of its parameter. */
static json_t *many_tools(uint32_t n)
{
    json_t *tools = json_array(), *types = json_array();
    for (uint32_t i = 0; i < n; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "g%u", i);
        assert_int_equal(json_array_append_new(types, json_string("string")), 0);
        json_t *tool =
            json_pack("{s:{s:s, s:{s:{s:{s:O}}}}}", "function", "name", i + 1 < n ? name : "f",
                      "parameters", "properties", "k1", "type", types);
        assert_int_equal(json_array_append_new(tools, tool), 0);
    }
    json_decref(types);
    return tools;
}

/* The thinking that goes with a style of calls, so that all styles of both come. */
static enum thinkstyle thinking_of(enum toolstyle style)
{
    switch (style) {
    case TOOLS_QWEN3_CODER: return THINK_QWEN3;
    case TOOLS_SEED_OSS: return THINK_SEED_OSS;
    case TOOLS_ERNIE45: return THINK_ERNIE45;
    case TOOLS_HUNYUAN: return THINK_HUNYUAN;
    case TOOLS_HY_V3: return THINK_HY_V3;
    case TOOLS_GEMMA4: return THINK_GEMMA4;
    case TOOLS_KIMI_K2: return THINK_KIMI_K2;
    case TOOLS_MINIMAX_M2: return THINK_MINIMAX_M2;
    case TOOLS_GRANITE: return THINK_GRANITE;
    case TOOLS_PHI4_MINI: return THINK_MISTRAL;
    case TOOLS_DEEPSEEK_V3: return THINK_ALWAYS;
    case TOOLS_COHERE: return THINK_COHERE;
    case TOOLS_KIMI_K3: return THINK_KIMI_K3;
    case TOOLS_MISTRAL: return THINK_NONE;
    case TOOLS_NONE:
    case TOOLS_HERMES:
    case TOOLS_LLAMA3_JSON:
    case TOOLS_PYTHONIC:
    case TOOLS_GLM45:
    case TOOLS_DEEPSEEK_V31:
    case TOOLS_NEMOTRON:
    case TOOLS_LFM2:
    case TOOLS_OLMO3:
    case TOOLS_DOTS:
    case TOOLS_DEEPSEEK_V32:
    case TOOLS_LONGCAT:
    case TOOLS_INTERNLM:
    case TOOLS_GRANITE_20B:
    case TOOLS_GIGACHAT3:
    case TOOLS_APERTUS:
    case TOOLS_XLAM:
    case TOOLS_DEEPSEEK_V41:
    case TOOLS_STEP3:
    case TOOLS_MINICPM5:
    case TOOLS_MIMO:
    case TOOLS_FUNCTIONGEMMA:
    case TOOLS_OPENAI: break;
    }
    return THINK_TAGS;
}

/* Piece number i of an answer of n pieces between two others. */
static void put_answer(struct ek_buf *b, const struct doubling_shape *s, uint32_t i, uint32_t n)
{
    ek_buf_clear(b);
    put_piece(b, i == 0 ? s->open : i <= n ? s->piece : s->close, i);
    assert_true(ek_buf_ok(b));
}

/* An answer that comes piece by piece. */
static struct cost read_answer(enum toolstyle style, const json_t *tools,
                               const struct doubling_shape *s, uint32_t n)
{
    struct toolcalls calls = {.style = style, .tools = tools};
    struct reasoning think;
    struct ek_buf thought = {0}, said = {0}, text = {0}, piece = {0};
    uint64_t before = blocks;
    unsigned long bytes = alloc_bytes();
    int r = 0;
    reasoning_begin(&think, thinking_of(style), "", 0);
    for (uint32_t i = 0; i < n + 2 && r == 0; i++) {
        put_answer(&piece, s, i, n);
        ek_buf_clear(&said);
        if (piece.len > 0)
            r = reasoning_push(&think, piece.data, piece.len, &thought, &said);
        if (r == 0 && said.len > 0)
            r = toolcalls_push(&calls, said.data, said.len, &text);
    }
    ek_buf_clear(&said);
    if (r == 0)
        r = reasoning_end(&think, &thought, &said);
    if (r == 0 && said.len > 0)
        r = toolcalls_push(&calls, said.data, said.len, &text);
    if (r == 0)
        r = toolcalls_end(&calls, &text);
    struct cost c = {.blocks = blocks - before, .bytes = alloc_bytes() - bytes, .result = r};
    reasoning_done(&think);
    toolcalls_done(&calls);
    ek_buf_done(&thought);
    ek_buf_done(&said);
    ek_buf_done(&text);
    ek_buf_done(&piece);
    return c;
}

/* The same in harmony's form, whose marks are no text: those whose bits are set come before each
 * piece. */
static struct cost read_harmony(const json_t *tools, uint32_t marks, const struct doubling_shape *s,
                                uint32_t n)
{
    struct toolcalls calls = {.style = TOOLS_OPENAI, .tools = tools};
    struct ek_buf thought = {0}, text = {0}, piece = {0};
    struct harmony_out out = {&thought, &text, &calls};
    struct harmony h;
    uint64_t before = blocks;
    unsigned long bytes = alloc_bytes();
    int r = 0;
    harmony_begin(&h, true);
    harmony_open(&h);
    for (uint32_t i = 0; i < n + 2 && r == 0; i++) {
        for (uint32_t m = 0; m < HARMONY_MARKS && r == 0; m++)
            r = marks & 1u << m ? harmony_mark(&h, (enum harmony_mark)m, &out) : 0;
        put_answer(&piece, s, i, n);
        if (r == 0 && piece.len > 0)
            r = harmony_push(&h, piece.data, piece.len, &out);
    }
    if (r == 0)
        r = harmony_end(&h, &out);
    struct cost c = {.blocks = blocks - before, .bytes = alloc_bytes() - bytes, .result = r};
    toolcalls_done(&calls);
    ek_buf_done(&thought);
    ek_buf_done(&text);
    ek_buf_done(&piece);
    return c;
}

static void test_answers(void **state)
{
    uint32_t all = 0, fed = 0;
    int bad = 0;
    (void)state;
    for (size_t i = 0; i < ANSWERS * TOOLS_OPENAI; i++) {
        enum toolstyle style = (enum toolstyle)(i % TOOLS_OPENAI);
        const struct doubling_shape *s = &answers[i / TOOLS_OPENAI];
        struct cost cost[SIZES];
        char what[128];
        if (!share_takes(all++))
            continue;
        for (uint32_t n = 0; n < SIZES; n++) {
            json_t *tools = many_tools(FIRST << n);
            cost[n] = read_answer(style, tools, s, FIRST << n);
            assert_int_equal(cost[n].result, 0);
            json_decref(tools);
        }
        (void)snprintf(what, sizeof(what), "answer in the style `%s` behind `%s`",
                       toolstyle_name(style), s->open);
        bad += judge(what, s->piece, cost);
        fed++;
    }
    assert_true(fed > 0);
    assert_int_equal(bad, 0);
}

static void test_harmony(void **state)
{
    static const struct doubling_shape pieces[] = {
        {"", "", "", ""},
        {"", "a", "", ""},
        {"", BLANKS, "", "a"},
        {"analysis", "analysis", "", "final"},
        {"commentary to=functions.f", "{\"k\": 1", "", "}"},
        {"", "commentary to=functions.f", "", ""}};
    int bad = 0;
    (void)state;
    for (uint32_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        for (uint32_t marks = 0; marks < 1u << HARMONY_MARKS; marks++) {
            struct cost cost[SIZES];
            char what[128];
            if (!share_takes(marks))
                continue;
            for (uint32_t n = 0; n < SIZES; n++) {
                json_t *tools = many_tools(FIRST << n);
                cost[n] = read_harmony(tools, marks, &pieces[i], FIRST << n);
                assert_int_equal(cost[n].result, 0);
                json_decref(tools);
            }
            (void)snprintf(what, sizeof(what), "harmony with marks 0x%x", marks);
            bad += judge(what, pieces[i].piece, cost);
        }
    }
    assert_int_equal(bad, 0);
}

/* The test itself: what is quadratic is found. */
static void test_finds(void **state)
{
    const struct cost square[SIZES] = {
        {.bytes = 1 << 20}, {.bytes = 4 << 20}, {.bytes = 16 << 20}, {.bytes = 64 << 20}};
    const struct cost line[SIZES] = {
        {.bytes = 9 << 20}, {.bytes = 10 << 20}, {.bytes = 12 << 20}, {.bytes = 16 << 20}};
    double times;
    (void)state;
    const uint64_t s[SIZES] = {square[0].bytes, square[1].bytes, square[2].bytes, square[3].bytes};
    const uint64_t l[SIZES] = {line[0].bytes, line[1].bytes, line[2].bytes, line[3].bytes};
    assert_true(grows(s, &times));
    assert_false(grows(l, &times));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_harmony),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
