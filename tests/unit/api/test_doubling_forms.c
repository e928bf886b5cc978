/*
 * Forms in doubling sizes, see test_doubling.c: schemas, expressions, rules, choices, structural
 * tags and the tools of a request are compiled. What is compared is the units of work that a form
 * pays; that blocks and bytes are paid for is looked at on its own, since the fuel of a form is
 * what bounds it. Some are known to take more than n log n, as an automaton of sets does: they are
 * marked.
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
#include "server/grammar/compile.h"
#include "server/grammar/grammar.h"
#include "tests/share.h"
#include "tests/unit/alloc.h"
#include "tests/unit/api/doubling.h"
#include "tests/unit/grammar/words.h"

#define UNPAID     64 /* most blocks, or bytes, for a unit of work */
#define STEP_BYTES (4u << 20)

#define OBJECT(rest)  "{\"type\":\"object\"," rest
#define TOOL(rest)    "{\"type\":\"function\",\"function\":{\"name\":\"f%u\"," rest "}}"
#define TAGS(format)  "{\"type\":\"structural_tag\",\"format\":" format
#define ANY_SCHEMA(s) "{\"type\":\"json_schema\",\"json_schema\":" s "}"

#define CAPPED 1u /* it may be refused, for its size or its fuel */
#define STEEP  2u /* it is known to cost more than n log n: each unit of that is paid for */

static const struct fed_form {
    enum grammar_kind kind;
    struct doubling_shape shape;
    unsigned how;
} forms[] = {
    {GRAMMAR_SCHEMA,
     {OBJECT("\"properties\":{"), "\"k%u\":{\"type\":\"integer\"}", ",", "}}"},
     CAPPED},
    {GRAMMAR_SCHEMA, {OBJECT("\"properties\":{"), "\"k%u\":{}", ",", "}}"}, CAPPED},
    {GRAMMAR_SCHEMA, {OBJECT("\"properties\":{\""), "k", "", "\":{}}}"}, CAPPED},
    {GRAMMAR_SCHEMA, {OBJECT("\"required\":["), "\"k%u\"", ",", "]}"}, CAPPED},
    {GRAMMAR_SCHEMA,
     {OBJECT("\"patternProperties\":{"), "\"^k%u$\":{}", ",", "}}"},
     CAPPED | STEEP},
    {GRAMMAR_SCHEMA, {"{\"enum\":[", "\"e%u\"", ",", "]}"}, 0},
    {GRAMMAR_SCHEMA, {"{\"enum\":[", "%u", ",", "]}"}, 0},
    {GRAMMAR_SCHEMA, {"{\"enum\":[", "{\"a\":%u}", ",", "]}"}, 0},
    {GRAMMAR_SCHEMA, {"{\"const\":\"", "a", "", "\"}"}, 0},
    {GRAMMAR_SCHEMA, {"{\"const\":[", "%u", ",", "]}"}, 0},
    {GRAMMAR_SCHEMA, {"{\"anyOf\":[", "{\"const\":%u}", ",", "]}"}, CAPPED},
    {GRAMMAR_SCHEMA, {"{\"anyOf\":[", "{\"type\":\"integer\"}", ",", "]}"}, CAPPED},
    {GRAMMAR_SCHEMA, {"{\"oneOf\":[", "{\"const\":%u}", ",", "]}"}, CAPPED},
    {GRAMMAR_SCHEMA, {"{\"allOf\":[", "{\"type\":\"integer\"}", ",", "]}"}, CAPPED},
    {GRAMMAR_SCHEMA, {"{\"allOf\":[", "{\"required\":[\"k%u\"]}", ",", "]}"}, CAPPED},
    {GRAMMAR_SCHEMA,
     {"{\"type\":\"array\",\"prefixItems\":[", "{\"const\":%u}", ",", "]}"},
     CAPPED},
    {GRAMMAR_SCHEMA, {"{\"type\":\"string\",\"pattern\":\"^", "a", "", "$\"}"}, 0},
    {GRAMMAR_SCHEMA, {"{\"type\":\"string\",\"pattern\":\"^(", "a%u", "|", ")$\"}"}, CAPPED},
    {GRAMMAR_SCHEMA, {"{\"$defs\":{", "\"d%u\":{\"type\":\"integer\"}", ",", "}}"}, 0},
    {GRAMMAR_SCHEMA, {"{\"default\":{", "\"k%u\":%u", ",", "}}"}, 0},
    {GRAMMAR_SCHEMA, {"{\"description\":\"", "word ", "", "\"}"}, 0},
    {GRAMMAR_SCHEMA,
     {"{\"$defs\":{\"d\":{\"type\":\"integer\"}},\"anyOf\":[", "{\"$ref\":\"#/$defs/d\"}", ",",
      "]}"},
     CAPPED},
    {GRAMMAR_REGEX, {"", "a", "", ""}, 0},
    {GRAMMAR_REGEX, {"", "a?", "", ""}, CAPPED | STEEP},
    {GRAMMAR_REGEX, {"", "[a-z%u]", "", ""}, 0},
    {GRAMMAR_REGEX, {"(", "a%u", "|", ")"}, CAPPED},
    {GRAMMAR_REGEX, {"", "a*", "", ""}, CAPPED},
    {GRAMMAR_REGEX, {"", "(a|b)", "", ""}, 0},
    {GRAMMAR_REGEX, {"[", "\\x61", "", "]"}, 0},
    {GRAMMAR_EBNF, {"root ::= \"", "a", "", "\"\n"}, 0},
    {GRAMMAR_EBNF, {"root ::= ", "\"a%u\"", " ", "\n"}, 0},
    {GRAMMAR_EBNF, {"root ::= ", "\"a%u\"", " | ", "\n"}, CAPPED},
    {GRAMMAR_EBNF, {"root ::= \"a\"\n", "r%u ::= \"b\"\n", "", ""}, CAPPED},
    {GRAMMAR_EBNF, {"root ::= \"a\"\n", "# comment\n", "", ""}, 0},
    {GRAMMAR_EBNF, {"root ::= [", "a", "", "]\n"}, 0},
    {GRAMMAR_EBNF, {"start: ", "\"a%u\"", " | ", "\n"}, CAPPED},
    {GRAMMAR_EBNF, {"start: \"a\"\n", "r%u: \"b\"\n", "", ""}, CAPPED},
    {GRAMMAR_EBNF, {"start: A\nA: /", "a", "", "/\n"}, 0},
    {GRAMMAR_CHOICE, {"[", "\"c%u\"", ",", "]"}, 0},
    {GRAMMAR_CHOICE, {"[\"", "c", "", "\"]"}, 0},
    {GRAMMAR_CALLS,
     {"{\"tools\":[", TOOL("\"parameters\":{\"type\":\"object\"}"), ",",
      "],\"name\":null,\"most\":1}"},
     CAPPED},
    {GRAMMAR_TAGS,
     {"{\"tools\":[", TOOL("\"strict\":true,\"parameters\":{\"type\":\"object\"}"), ",",
      "],\"style\":\"hermes\",\"one\":false}"},
     CAPPED},
    {GRAMMAR_TAGS,
     {"{\"tools\":[", TOOL("\"strict\":true,\"parameters\":{}"), ",",
      "],\"style\":\"qwen3_coder\",\"one\":true}"},
     CAPPED},
    {GRAMMAR_TAGS,
     {"{\"tools\":[", TOOL("\"strict\":true,\"parameters\":{}"), ",",
      "],\"style\":\"gemma4\",\"one\":true}"},
     CAPPED},
    {GRAMMAR_STRUCTURE,
     {TAGS("{\"type\":\"sequence\",\"elements\":["),
      "{\"type\":\"const_string\",\"value\":\"a%u\"}", ",", "]}}"},
     CAPPED},
    {GRAMMAR_STRUCTURE,
     {TAGS("{\"type\":\"or\",\"elements\":["), "{\"type\":\"const_string\",\"value\":\"a%u\"}", ",",
      "]}}"},
     CAPPED},
    {GRAMMAR_STRUCTURE, {TAGS("{\"type\":\"const_string\",\"value\":\""), "a", "", "\"}}"}, 0},
    {GRAMMAR_STRUCTURE, {TAGS("{\"type\":\"regex\",\"pattern\":\""), "a", "", "\"}}"}, 0},
    {GRAMMAR_STRUCTURE,
     {TAGS("{\"type\":\"json_schema\",\"json_schema\":{\"enum\":["), "%u", ",", "]}}}"},
     0},
    {GRAMMAR_STRUCTURE,
     {"{\"structures\":[", "{\"begin\":\"<a%u>\",\"schema\":{},\"end\":\"</a>\"}", ",",
      "],\"triggers\":[\"<a\"]}"},
     CAPPED},
    {GRAMMAR_STRUCTURE,
     {"{\"structures\":[{\"begin\":\"<a>\",\"schema\":{},\"end\":\"</a>\"}],\"triggers\":[",
      "\"<a%u\"", ",", "]}"},
     CAPPED},
};
#define FORMS (sizeof(forms) / sizeof(forms[0]))

static struct cost compile(const struct fed_form *f, uint32_t n)
{
    struct ek_buf text = {0};
    struct ek_work work = {.fuel = GRAMMAR_FUEL};
    struct grammar *g = NULL;
    struct ek_fault fault = {0};
    (void)ek_buf_puts(&text, f->shape.open);
    put_pieces(&text, f->shape.piece, f->shape.between, n);
    (void)ek_buf_puts(&text, f->shape.close);
    assert_true(ek_buf_ok(&text));
    uint64_t before = blocks;
    unsigned long bytes = alloc_bytes();
    int r = grammar_compile(f->kind, text.data, text.len, lexicon, &work, &g, &fault);
    if (r == 0)
        grammar_warm(g, &work);
    struct cost c = {
        .blocks = blocks - before, .bytes = alloc_bytes() - bytes, .units = work.used, .result = r};
    assert_true(r == 0 || (r == -EBADMSG && fault.msg[0]));
    assert_true(work.used <= GRAMMAR_FUEL);
    if (r < 0 && !(f->how & CAPPED))
        fail_msg("%s of %s, %u times: %s", f->shape.open, f->shape.piece, n, fault.msg);
    if (g)
        grammar_unref(g);
    ek_buf_done(&text);
    return c;
}

/* True when it costs more than n log n and is not known to, or when work was done that nobody paid
 * for. Tables that double make steps in the bytes, so that small ones are nothing. */
static bool judge_form(const struct fed_form *f, const struct cost cost[SIZES])
{
    const struct cost *from = &cost[SIZES - 2], *to = &cost[SIZES - 1];
    const uint64_t units[SIZES] = {cost[0].units, cost[1].units, cost[2].units, cost[3].units};
    const uint64_t paid = to->units > from->units ? to->units - from->units : 0;
    const uint64_t did = to->blocks > from->blocks ? to->blocks - from->blocks : 0;
    const uint64_t took = to->bytes > from->bytes ? to->bytes - from->bytes : 0;
    double times;
    bool steep = to->result == 0 && grows(units, &times);
    if (steep && !(f->how & STEEP))
        print_error("%s of %s: units grow %.1f times: %llu %llu %llu %llu\n", f->shape.open,
                    f->shape.piece, times, (unsigned long long)units[0],
                    (unsigned long long)units[1], (unsigned long long)units[2],
                    (unsigned long long)units[3]);
    bool unpaid = to->result == 0 && ((did > FREE && paid < did / UNPAID) ||
                                      (took > STEP_BYTES && paid < took / UNPAID));
    if (unpaid)
        print_error("%s of %s: %llu blocks and %llu bytes for %llu units of work\n", f->shape.open,
                    f->shape.piece, (unsigned long long)did, (unsigned long long)took,
                    (unsigned long long)paid);
    return unpaid || (steep && !(f->how & STEEP));
}

static void test_forms(void **state)
{
    uint32_t all = 0, read = 0;
    int bad = 0;
    (void)state;
    for (size_t i = 0; i < FORMS; i++) {
        struct cost cost[SIZES];
        if (!share_takes(all++))
            continue;
        for (uint32_t n = 0; n < SIZES; n++)
            cost[n] = compile(&forms[i], FIRST << n);
        bad += judge_form(&forms[i], cost);
        read += cost[0].result == 0;
        if (cost[0].result < 0)
            print_message("refused: %s %s\n", forms[i].shape.open, forms[i].shape.piece);
    }
    print_message("%u of %zu forms of the smallest size accepted\n", read, FORMS);
    assert_true(share_number("EVENKEEL_SHARE", 1) > 1 || read >= FORMS - 10);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms)};
    return cmocka_run_group_tests(tests, words_setup, words_teardown);
}
