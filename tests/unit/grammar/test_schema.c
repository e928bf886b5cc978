/*
 * Schemas: which texts are in the grammar and which are not, and what is refused with which JSON
 * pointer. That all texts are valid is shown with random schemas by tests/e2e/test_constrained.py.
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
#include "tests/unit/grammar/words.h"

struct schema_text_case {
    const char *schema, *yes[8], *no[8];
};

static const struct schema_text_case cases[] = {
    {"true", {"1", "\"x\"", "{}", "[]", "null", "[1, {\"a\": true}]"}, {"", "tru", "[1,]"}},
    {"{}", {"1", "{\"a\":1}", "false"}, {"nul"}},
    {"{\"type\":\"null\"}", {"null"}, {"0"}},
    {"{\"type\":\"boolean\"}", {"true", "false"}, {"null", "True"}},
    {"{\"type\":[\"null\",\"boolean\"]}", {"null", "true"}, {"1"}},
    {"{\"type\":\"integer\"}",
     {"0", "-1", "123456789012345"},
     {"01", "1.0", "-", "+1", "1e3", "1234567890123456"}},
    {"{\"type\":\"number\"}",
     {"0", "-0.5", "1e10", "1.5E-3", "12"},
     {"1.", ".5", "1e", "00", "1e999"}},
    {"{\"type\":[\"integer\",\"number\"]}", {"1", "1.5"}, {"x"}},
    /* whole numbers within bounds */
    {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":7}",
     {"3", "5", "7"},
     {"2", "8", "33", "-3", "03"}},
    {"{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105}",
     {"-12", "-1", "0", "99", "100", "105"},
     {"-13", "106", "-0", "110", "1000"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":0}", {"1", "10", "999999999999999"}, {"0", "-1"}},
    {"{\"type\":\"integer\",\"exclusiveMaximum\":0}", {"-1", "-999"}, {"0", "1"}},
    {"{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":2.5}", {"1", "2"}, {"0", "3"}},
    {"{\"type\":\"integer\",\"minimum\":5,\"exclusiveMinimum\":5}", {"6"}, {"5"}},
    {"{\"type\":\"integer\",\"format\":\"int32\"}", {"2147483647", "-2147483648"}, {"2147483648"}},
    {"{\"type\":\"integer\",\"multipleOf\":1}", {"7"}, {"7.5"}},
    {"{\"minimum\":995,\"maximum\":1005,\"type\":\"integer\"}",
     {"995", "999", "1000", "1005"},
     {"994", "1006", "99"}},
    /* numbers within bounds */
    {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
     {"0", "1", "0.5", "0.0001", "1.0"},
     {"1.1", "-0.1", "1.0001", "2"}},
    {"{\"type\":\"number\",\"minimum\":0.25,\"maximum\":0.75}",
     {"0.25", "0.3", "0.7499", "0.75", "0.7500"},
     {"0.24", "0.2", "0.76", "0", "1", "0.7501"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":1.5,\"exclusiveMaximum\":3}",
     {"1.6", "2", "2.9999"},
     {"1.5", "3", "1.5000", "3.0"}},
    {"{\"type\":\"number\",\"minimum\":-2.5,\"maximum\":-0.5}",
     {"-2.5", "-1", "-0.5", "-2.4"},
     {"-2.6", "-0.4", "0", "1"}},
    {"{\"type\":\"number\",\"minimum\":-1,\"maximum\":1}",
     {"-1", "-0.5", "0", "0.5", "1"},
     {"-1.5", "1.5"}},
    {"{\"type\":\"number\",\"minimum\":10}",
     {"10", "10.5", "123456", "5000000000"},
     {"9", "9.9", "-10"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0}", {"0.0001", "1", "1.5"}, {"0", "0.0", "-1"}},
    {"{\"maximum\":5}", {"5", "4.9999", "-100"}, {"5.1", "\"x\""}},
    /* strings */
    {"{\"type\":\"string\"}",
     {"\"\"", "\"a\\n\\u00e9\xc3\xa9\"", "\"\\\"\\\\\""},
     {"\"", "\"\n\"", "\"\\x\"", "\"\\ud800\"", "\"\xff\"", "a"}},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"abc\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\"\\n\\u0041x\""},
     {"\"a\"", "\"abcd\"", "\"\""}},
    {"{\"minLength\":1}", {"\"a\"", "\"abcdef\""}, {"\"\"", "1"}},
    {"{\"type\":\"string\",\"maxLength\":0}", {"\"\""}, {"\"a\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-c]+$\"}", {"\"a\"", "\"abc\""}, {"\"\"", "\"d\""}},
    {"{\"type\":\"string\",\"pattern\":\"b\"}", {"\"b\"", "\"abc\""}, {"\"ac\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-c]*$\",\"minLength\":1,\"maxLength\":2}",
     {"\"a\"", "\"ab\""},
     {"\"\"", "\"abc\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-28\"", "\"1999-12-31\""},
     {"\"2024-02-30\"", "\"2024-13-01\"", "\"24-01-01\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2024-02-28T23:59:59Z\"", "\"2024-01-01T00:00:00.5+02:00\""},
     {"\"2024-02-28\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"01234567-89ab-cdef-0123-456789abcdef\""},
     {"\"0123\""}},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}",
     {"\"127.0.0.1\"", "\"255.255.255.255\""},
     {"\"256.0.0.1\"", "\"1.2.3\""}},
    {"{\"type\":\"string\",\"format\":\"email\"}", {"\"a.b@c.org\""}, {"\"a.b\""}},
    /* values */
    {"{\"const\":\"x\\\"y\"}", {"\"x\\\"y\""}, {"\"x\""}},
    {"{\"const\":{\"a\":[1,null]}}", {"{\"a\":[1,null]}"}, {"{}"}},
    {"{\"enum\":[\"a\",\"ab\",1,null,true,1.5]}",
     {"\"a\"", "\"ab\"", "1", "null", "true", "1.5"},
     {"\"b\"", "2", "false"}},
    {"{\"type\":\"string\",\"enum\":[\"a\",1]}", {"\"a\""}, {"1"}},
    {"{\"enum\":[1,2,3,\"x\"],\"minimum\":2}", {"2", "3", "\"x\""}, {"1"}},
    {"{\"enum\":[1,2],\"const\":2}", {"2"}, {"1"}},
    /* arrays */
    {"{\"type\":\"array\"}", {"[]", "[1]", "[1, \"a\",\n []]"}, {"[", "[,]", "[1 ,2]"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}",
     {"[]", "[1]", "[1,2,\n3]"},
     {"[\"a\"]", "[1,]"}},
    {"{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":1,\"maxItems\":3}",
     {"[1]", "[1,1,1]"},
     {"[]", "[1,1,1,1]"}},
    {"{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":2}",
     {"[1,1]", "[1,1,1,1]"},
     {"[]", "[1]"}},
    {"{\"type\":\"array\",\"maxItems\":0}", {"[]"}, {"[1]"}},
    {"{\"type\":\"array\",\"items\":false}", {"[]"}, {"[1]"}},
    {"{\"prefixItems\":[{\"const\":1},{\"const\":2}]}", {"[]", "[1]", "[1,2]"}, {"[2]", "[1,2,3]"}},
    {"{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"minItems\":2,\"items\":{\"const\":3}}",
     {"[1,2]", "[1,2,3,3]"},
     {"[1]", "[1,2,4]"}},
    {"{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"minItems\":1,\"maxItems\":1}",
     {"[1]"},
     {"[]", "[1,2]"}},
    {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"b\",3]}}",
     {"[]", "[\"b\"]", "[3,\"a\"]", "[\"b\", 3, \"a\"]"},
     {"[3,3]", "[\"a\",\"b\",\"a\"]", "[4]"}},
    {"{\"uniqueItems\":true,\"items\":{\"type\":[\"boolean\",\"null\"]},\"minItems\":2}",
     {"[true,null]", "[null,false,true]"},
     {"[]", "[null]", "[null,null]"}},
    {"{\"uniqueItems\":true,\"items\":{\"enum\":[1,2,3,4,5,6,7,8,1.0]},\"minItems\":1,\"maxItems\":"
     "3}",
     {"[1]", "[1,2]", "[3,5,8]"},
     {"[]", "[1,1]", "[1,2,3,4]", "[1,1.0]"}},
    {"{\"uniqueItems\":true,\"items\":{\"type\":\"integer\"},\"maxItems\":1}",
     {"[]", "[7]"},
     {"[1,1]"}},
    /* not */
    {"{\"type\":[\"integer\",\"null\"],\"not\":{\"enum\":[3,null]}}",
     {"2", "4", "-7", "30"},
     {"3", "null"}},
    {"{\"not\":{\"type\":[\"object\",\"array\",\"string\"]}}",
     {"1.5", "null", "true"},
     {"{}", "\"a\""}},
    {"{\"not\":{\"type\":\"integer\"}}", {"\"a\"", "[]", "null"}, {"1", "1.0"}},
    {"{\"type\":\"string\",\"not\":{\"enum\":[\"ab\",\"b\"]}}",
     {"\"a\"", "\"abc\"", "\"\"", "\"x\""},
     {"\"ab\"", "\"b\"", "\"\\u0062\""}},
    {"{\"type\":\"number\",\"minimum\":0,\"maximum\":2,\"not\":{\"const\":1}}",
     {"0", "0.5", "1.5", "2"},
     {"1", "1.0", "3"}},
    {"{\"enum\":[1,2,\"x\"],\"not\":{\"const\":2}}", {"1", "\"x\""}, {"2"}},
    {"{\"type\":\"integer\",\"not\":{\"minimum\":10}}", {"9", "-3"}, {"10", "11"}},
    {"{\"type\":\"string\",\"not\":{\"maxLength\":2}}", {"\"abc\""}, {"\"ab\""}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}},\"not\":{"
     "\"required\":["
     "\"a\",\"b\"]}}",
     {"{}", "{\"a\":1}", "{\"b\":2}"},
     {"{\"a\":1,\"b\":2}"}},
    {"{\"type\":\"boolean\",\"not\":{\"not\":{\"const\":true}}}", {"true"}, {"false"}},
    {"{\"type\":\"integer\",\"not\":{\"anyOf\":[{\"maximum\":3},{\"const\":5}]}}",
     {"4", "6"},
     {"3", "5", "-1"}},
    /* if, dependent... */
    {"{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"a\",\"b\"]},\"x\":{\"const\":1},"
     "\"y\":{"
     "\"const\":2}},\"required\":[\"k\"],\"if\":{\"properties\":{\"k\":{\"const\":\"a\"}}},"
     "\"then\":{"
     "\"required\":[\"x\"]},\"else\":{\"required\":[\"y\"]}}",
     {"{\"k\":\"a\",\"x\":1}", "{\"k\":\"b\",\"y\":2}", "{\"k\":\"b\",\"x\":1,\"y\":2}"},
     {"{\"k\":\"a\"}", "{\"k\":\"a\",\"y\":2}", "{\"k\":\"b\",\"x\":1}"}},
    {"{\"type\":\"integer\",\"if\":{\"minimum\":10},\"then\":{\"maximum\":20}}",
     {"3", "10", "20"},
     {"21", "30"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}},"
     "\"dependentRequired\":{\"a\":[\"b\"]}}",
     {"{}", "{\"b\":2}", "{\"a\":1,\"b\":2}"},
     {"{\"a\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"type\":\"integer\"}},"
     "\"dependentSchemas\":{\"a\":{\"properties\":{\"b\":{\"minimum\":5}}}}}",
     {"{}", "{\"b\":2}", "{\"a\":1,\"b\":5}"},
     {"{\"a\":1,\"b\":4}"}},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"allOf\":[{\"anyOf\":[{\"minimum\":"
     "3,"
     "\"type\":\"integer\"},{\"const\":\"x\"}]}]}",
     {"3", "4"},
     {"2", "null", "\"x\""}},
    /* names */
    {"{\"properties\":{\"a\":false}}", {"{}", "{\"b\":1}"}, {"{\"a\":1}"}},
    {"{\"properties\":{\"a\":false,\"b\":{\"const\":1}},\"additionalProperties\":true}",
     {"{}", "{\"b\":1}", "{\"c\":1}"},
     {"{\"a\":1}"}},
    {"{\"patternProperties\":{\"^a[0-9]$\":{\"const\":1},\"^b\":{\"const\":2}}}",
     {"{}", "{\"a1\":1}", "{\"a1\":1,\"bx\":2}"},
     {"{\"a1\":2}", "{\"c\":1}", "{\"a11\":1}"}},
    {"{\"properties\":{\"n\":{\"const\":0}},\"required\":[\"n\"],\"patternProperties\":{\"^x-\":{"
     "\"const\":1}},\"additionalProperties\":false}",
     {"{\"n\":0}", "{\"n\":0,\"x-y\":1}"},
     {"{\"x-y\":1}", "{\"n\":0,\"y\":1}"}},
    {"{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"a\",\"b\",3]},\"additionalProperties\":{"
     "\"const\":1}}",
     {"{}", "{\"b\":1,\"a\":1}"},
     {"{\"c\":1}", "{\"a\":2}"}},
    /* objects */
    {"{\"type\":\"object\"}",
     {"{}", "{\"a\":1}", "{\n  \"a\": {}, \"b\":[]\n}"},
     {"{a:1}", "{\"a\"}", "{\"a\":1,}"}},
    {"{\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}}}",
     {"{}", "{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2}", "{ \"a\": 1, \"b\": 2 }"},
     {"{\"b\":2,\"a\":1}", "{\"c\":3}", "{\"a\":2}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{"
     "\"const\":3}},\"required\":[\"b\"]}",
     {"{\"b\":2}", "{\"a\":1,\"b\":2,\"c\":3}", "{\"b\":2,\"c\":3}"},
     {"{}", "{\"a\":1}", "{\"a\":1,\"c\":3}"}},
    {"{\"properties\":{\"a\":{\"const\":1}},\"additionalProperties\":{\"const\":2}}",
     {"{}", "{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2,\"ab\":2}", "{\"\":2}"},
     {"{\"a\":2}", "{\"b\":1}", "{\"b\":2,\"a\":1}", "{\"\\u0061\":2}"}},
    {"{\"properties\":{\"ab\":{\"const\":1},\"abc\":{\"const\":1}},\"required\":[\"ab\",\"abc\"],"
     "\"additionalProperties\":true}",
     {"{\"ab\":1,\"abc\":1}", "{\"ab\":1,\"abc\":1,\"a\":[],\"abcd\":0,\"x\":null}"},
     {"{\"ab\":1,\"abc\":1,\"abc\":0}", "{\"ab\":1,\"abc\":1,\"ab\":0}"}},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{}", "{\"x\":1}"},
     {"{\"x\":\"\"}"}},
    {"{\"type\":\"object\",\"additionalProperties\":false}", {"{}"}, {"{\"x\":1}"}},
    {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}",
     {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
     {"{}", "{\"a\":1,\"b\":2,\"c\":3}"}},
    {"{\"type\":\"object\",\"required\":[\"x\"]}", {"{\"x\":1}", "{\"x\":{}}"}, {"{}"}},
    {"{\"properties\":{\"a\":false,\"b\":true}}", {"{\"b\":0}", "{}"}, {"{\"a\":1}"}},
    {"{\"properties\":{\"a\\\"b\":{\"const\":1}},\"required\":[\"a\\\"b\"]}",
     {"{\"a\\\"b\":1}"},
     {"{\"ab\":1}"}},
    /* combinations */
    {"{\"anyOf\":[{\"const\":1},{\"type\":\"string\"}]}", {"1", "\"x\""}, {"2"}},
    {"{\"anyOf\":[{\"const\":1},false]}", {"1"}, {"2"}},
    {"{\"type\":\"integer\",\"anyOf\":[{\"maximum\":2},{\"minimum\":8}],\"minimum\":0,\"maximum\":"
     "9}",
     {"0", "2", "8", "9"},
     {"3", "7", "-1", "10"}},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", {"1", "\"a\""}, {"1.5"}},
    {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"v\":{\"const\":1}}"
     ",\"required\":[\"k\",\"v\"]},"
     "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"},\"w\":{\"const\":2}},"
     "\"required\":[\"k\",\"w\"]}]}",
     {"{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\",\"w\":2}"},
     {"{\"k\":\"a\",\"w\":2}", "{\"k\":\"b\",\"v\":1}"}},
    {"{\"allOf\":[{\"type\":\"integer\",\"minimum\":3},{\"maximum\":5}]}", {"3", "5"}, {"2", "6"}},
    {"{\"allOf\":[{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},{\"properties\":{"
     "\"b\":{\"const\":2}},\"required\":[\"b\"]}]}",
     {"{\"a\":1,\"b\":2}"},
     {"{\"a\":1}", "{\"b\":2}"}},
    {"{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[2,3,4]}],\"maximum\":2}", {"2"}, {"1", "3"}},
    {"{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":1}}},{\"properties\":{\"a\":{\"type\":"
     "\"integer\",\"maximum\":2}}}]}",
     {"{\"a\":1}", "{\"a\":2}"},
     {"{\"a\":0}", "{\"a\":3}"}},
    {"{\"allOf\":[{\"properties\":{\"a\":{\"const\":1}},\"additionalProperties\":false},{"
     "\"properties\":{\"a\":true,\"b\":{\"const\":1}}}]}",
     {"{}", "{\"a\":1}"},
     {"{\"b\":1}"}},
    /* references */
    {"{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"const\":1}}}", {"1"}, {"2"}},
    {"{\"$ref\":\"#/definitions/a~1b%20\",\"definitions\":{\"a/b \":{\"const\":1}}}", {"1"}, {"2"}},
    {"{\"$ref\":\"#/$defs/"
     "x\",\"maximum\":3,\"$defs\":{\"x\":{\"type\":\"integer\",\"minimum\":2}}}",
     {"2", "3"},
     {"1", "4"}},
    {"{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$"
     "ref\":\"#\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}",
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}"},
     {"{\"v\":1,\"next\":{}}"}},
    {"{\"$defs\":{\"t\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"}}},\"$ref\":\"#/"
     "$defs/t\"}",
     {"[]", "[[],[[]]]"},
     {"[1]", "[[]"}},
    /* multiples */
    {"{\"type\":\"integer\",\"multipleOf\":5}", {"0", "5", "-10", "100"}, {"1", "7", "05", "-0"}},
    {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":7,\"exclusiveMaximum\":28}",
     {"7", "14", "21"},
     {"0", "28", "8", "-7"}},
    {"{\"type\":\"integer\",\"multipleOf\":7,\"maximum\":-7}", {"-7", "-14"}, {"0", "7", "-8"}},
    {"{\"type\":\"number\",\"multipleOf\":1}", {"3", "-4"}, {"1.5"}},
    {"{\"type\":\"number\",\"multipleOf\":0.5,\"maximum\":10}",
     {"0", "0.5", "1", "-2.5", "10"},
     {"0.25", "10.5", "1.0", "-0"}},
    {"{\"type\":\"number\",\"multipleOf\":0.3,\"exclusiveMinimum\":0.3,\"maximum\":1.2}",
     {"0.6", "0.9", "1.2"},
     {"0.3", "1.5", "1"}},
    {"{\"type\":\"integer\",\"multipleOf\":0.1}", {"1", "7", "-12"}, {"0.5", "1.0"}},
    {"{\"type\":\"integer\",\"multipleOf\":2.5}", {"0", "5", "-10"}, {"2", "2.5"}},
    {"{\"type\":\"number\",\"multipleOf\":2.5}", {"2.5", "-5", "7.5"}, {"2", "25.5"}},
    {"{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0}",
     {"0", "0.5", "19.99", "100"},
     {"0.001", "-1", "19.999"}},
    /* a format and a length; formats that only tell; other drafts */
    {"{\"type\":\"string\",\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083}",
     {"\"https://example.com/a?b=c#d\""},
     {"\"\"", "\"no uri\""}},
    {"{\"type\":\"string\",\"format\":\"date\",\"maxLength\":3}",
     {"\"abc\"", "\"\""},
     {"\"abcd\""}},
    {"{\"type\":\"string\",\"format\":\"date\",\"minLength\":10}",
     {"\"2024-02-28\""},
     {"\"abcdefghij\""}},
    {"{\"type\":\"string\",\"format\":\"password\",\"writeOnly\":true}", {"\"x\""}, {"1"}},
    {"{\"type\":\"string\",\"format\":\"date\",\"pattern\":\"^[ab]$\"}", {"\"a\""}, {"\"c\""}},
    {"{\"type\":\"string\",\"contentMediaType\":\"application/json\",\"contentSchema\":{}}",
     {"\"x\""},
     {"1"}},
    {"{\"type\":\"string\",\"nullable\":true,\"maxLength\":1}", {"null", "\"a\""}, {"1", "\"ab\""}},
    {"{\"type\":\"string\",\"nullable\":true,\"enum\":[\"a\"]}", {"null", "\"a\""}, {"\"b\""}},
    {"{\"type\":\"string\",\"nullable\":false}", {"\"a\""}, {"null"}},
    {"{\"type\":\"array\",\"items\":[{\"const\":1},{\"const\":2}],\"minItems\":2,\"maxItems\":2}",
     {"[1,2]"},
     {"[1]", "[2,1]", "[1,2,3]"}},
    {"{\"items\":[{\"const\":1}],\"additionalItems\":{\"const\":3}}",
     {"[]", "[1]", "[1,3,3]"},
     {"[3]", "[1,2]"}},
    {"{\"items\":[{\"const\":1}],\"additionalItems\":false}", {"[]", "[1]"}, {"[1,1]"}},
    {"{\"items\":{\"const\":1},\"additionalItems\":false}", {"[]", "[1,1]"}, {"[2]"}},
    {"{\"discriminator\":{\"propertyName\":\"k\"},\"oneOf\":[{\"type\":\"object\",\"properties\":"
     "{\"k\":{\"const\":\"a\",\"default\":\"a\"}},\"additionalProperties\":false},{\"type\":"
     "\"object\",\"properties\":{\"k\":{\"const\":\"b\",\"default\":\"b\"},\"n\":{\"const\":1}},"
     "\"additionalProperties\":false}]}",
     {"{\"k\":\"a\"}", "{\"k\":\"b\"}", "{\"k\":\"b\",\"n\":1}"},
     {"{}", "{\"k\":\"a\",\"n\":1}", "{\"k\":\"c\"}"}},
    /* annotations */
    {"{\"title\":\"t\",\"description\":\"d\",\"default\":3,\"examples\":[],\"$schema\":\"x\",\"$"
     "id\":\"y\",\"x-mine\":1,\"const\":2}",
     {"2"},
     {"3"}},
};

static void test_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct schema_text_case *c = &cases[i];
        struct grammar *g;
        struct ek_fault f = {0};
        int r =
            grammar_compile(GRAMMAR_SCHEMA, c->schema, strlen(c->schema), lexicon, NULL, &g, &f);
        if (r != 0)
            fail_msg("%s: %d %s", c->schema, r, f.msg);
        for (int k = 0; k < 8 && c->yes[k]; k++)
            if (words_fit(g, c->yes[k]) != 2)
                fail_msg("%s leaves out %s", c->schema, c->yes[k]);
        for (int k = 0; k < 8 && c->no[k]; k++)
            if (words_fit(g, c->no[k]) == 2)
                fail_msg("%s lets in %s", c->schema, c->no[k]);
        grammar_unref(g);
    }
}

/* Schemas that are refused, with the place that the error names and a part of what it says. */
static const struct refused_schema {
    const char *schema, *pointer, *says;
} refused[] = {
    {"", "", "not valid JSON"},
    {"{", "", "not valid JSON"},
    {"3", "", "must be an object"},
    {"false", "", "no value"},
    {"{\"type\":\"text\"}", "/type", "`type` must be"},
    {"{\"type\":[]}", "/type", "no type"},
    {"{\"nonsense\":1}", "/nonsense", "not offered"},
    {"{\"not\":{}}", "", "no value"},
    {"{\"not\":3}", "/not", "must be an object"},
    {"{\"not\":{\"pattern\":\"a\"}}", "/not/pattern", "below `not`"},
    {"{\"not\":{\"items\":{\"type\":\"null\"}}}", "/not/items", "below `not`"},
    {"{\"not\":{\"anyOf\":[{\"type\":\"null\"},{\"format\":\"date\"}]}}", "/not/anyOf/format",
     "below `not`"},
    {"{\"not\":{\"const\":[1]}}", "/not", "a list or an object"},
    {"{\"type\":\"string\",\"maxLength\":9,\"not\":{\"const\":\"a\"}}", "/maxLength", "beside a"},
    {"{\"if\":{\"pattern\":\"a\"},\"then\":{}}", "/if/pattern", "below `not`"},
    {"{\"if\":{},\"then\":{\"contains\":{}}}", "/then/contains", "not offered"},
    {"{\"patternProperties\":3}", "/patternProperties", "must be an object"},
    {"{\"patternProperties\":{\"^a(?!b)\":{}}}", "/patternProperties/^a(?!b)", "look-around"},
    {"{\"patternProperties\":{\"^a\":{},\"b$\":{\"type\":\"null\"}}}", "/patternProperties",
     "both"},
    {"{\"properties\":{\"abc\":{}},\"patternProperties\":{\"^a\":{\"type\":\"null\"}}}",
     "/patternProperties", "one schema"},
    {"{\"patternProperties\":{\"^a\":{}},\"additionalProperties\":{\"type\":\"null\"}}",
     "/additionalProperties", "beside"},
    {"{\"properties\":{\"a\":{}},\"propertyNames\":{\"maxLength\":3}}", "/propertyNames", "beside"},
    {"{\"dependentRequired\":{\"a\":3}}", "/dependentRequired", "lists of names"},
    {"{\"properties\":{\"a/b\":{\"items\":{\"contains\":{}}}}}", "/properties/a~1b/items/contains",
     "not offered"},
    {"{\"items\":{\"anyOf\":[{},{\"unevaluatedItems\":{}}]}}", "/items/anyOf/1/unevaluatedItems",
     "not offered"},
    {"{\"$ref\":\"http://x/y\"}", "/$ref", "only references into"},
    {"{\"$ref\":\"#/nowhere\"}", "/$ref", "there is nothing"},
    {"{\"$ref\":5}", "/$ref", "must be a string"},
    {"{\"$ref\":\"#\"}", "", "no text at all"},
    {"{\"anyOf\":[{\"$ref\":\"#\"},{\"const\":1}]}", "", "begin with itself"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "",
     "no text at all"},
    {"{\"type\":\"string\",\"pattern\":\"a(?=a)\"}", "/pattern", "look-around"},
    {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "/maxLength", "below"},
    {"{\"type\":\"string\",\"maxLength\":-1}", "/maxLength", "whole number"},
    {"{\"type\":\"string\",\"maxLength\":100000}", "/maxLength", "above"},
    {"{\"type\":\"integer\",\"minimum\":\"3\"}", "/minimum", "must be a number"},
    {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "", "no number"},
    {"{\"type\":\"integer\",\"minimum\":1e300}", "/minimum", "1e15"},
    {"{\"type\":\"number\",\"multipleOf\":0.00000030}", "/multipleOf", "are offered"},
    {"{\"type\":\"integer\",\"multipleOf\":0.00000030}", "/multipleOf", "are offered"},
    {"{\"type\":\"integer\",\"multipleOf\":0}", "/multipleOf", "above 0"},
    {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":15,\"maximum\":20}", "/multipleOf",
     "no multiple"},
    {"{\"type\":\"string\",\"nullable\":1}", "/nullable", "true or false"},
    {"{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"}}},{\"properties\":{\"k\":{"
     "\"const\":\"b\"}}}]}",
     "/oneOf", "may both be valid"},
    {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "/maxItems", "below"},
    {"{\"type\":\"array\",\"minItems\":1,\"items\":false}", "/minItems", "not so many"},
    {"{\"type\":\"array\",\"maxItems\":99999999}", "/maxItems", "not counted"},
    {"{\"required\":\"a\"}", "/required", "list of names"},
    {"{\"properties\":{\"a\":true},\"required\":[\"b\"],\"additionalProperties\":false}",
     "/required", "not let in"},
    {"{\"properties\":{\"a\":true},\"minProperties\":1}", "/minProperties", "not offered"},
    {"{\"enum\":[]}", "/enum", "1 to"},
    {"{\"type\":\"string\",\"enum\":[1,2]}", "/enum", "no value"},
    {"{\"enum\":[\"a\"],\"pattern\":\"a\"}", "/pattern", "beside"},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "/oneOf", "may both be valid"},
    {"{\"oneOf\":[{\"minimum\":3},{\"type\":\"string\"}]}", "/oneOf", "may both be valid"},
    {"{\"oneOf\":[{\"const\":1},{\"type\":\"integer\"}]}", "/oneOf", "may both be valid"},
    {"{\"anyOf\":[],\"type\":\"string\"}", "/anyOf", "1 to"},
    {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", "/pattern", "cannot be joined"},
    {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", "/type", "no type"},
    {"{\"a\":1,\"a\":2}", "", "not valid JSON"},
};

/* What a schema negates leads back to it, in each way that one is rewritten: the stack held as long
 * as there was fuel, 8 MB were not enough. Refused or not, each ends. */
static void test_circles(void **state)
{
    static const char *const circles[] = {
        "{\"not\":{\"not\":{\"$ref\":\"#\"}}}",
        "{\"not\":{\"oneOf\":[{\"$ref\":\"#\"},{\"type\":\"string\"}]}}",
        "{\"not\":{\"anyOf\":[{\"not\":{\"$ref\":\"#\"}},{\"type\":\"string\"}]}}",
        "{\"not\":{\"allOf\":[{\"$ref\":\"#\"},{\"type\":\"string\"}]}}",
        "{\"not\":{\"properties\":{\"a\":{\"not\":{\"$ref\":\"#\"}}}}}",
        "{\"not\":{\"$ref\":\"#\"}}",
        "{\"if\":{\"$ref\":\"#\"},\"then\":{\"type\":\"string\"}}",
        "{\"if\":{\"not\":{\"$ref\":\"#\"}},\"then\":{\"type\":\"string\"},\"else\":{\"$ref\":\"#"
        "\"}}",
        "{\"oneOf\":[{\"$ref\":\"#\"},{\"not\":{\"$ref\":\"#\"}}]}",
        "{\"allOf\":[{\"not\":{\"oneOf\":[{\"$ref\":\"#\"},{\"const\":1}]}},{\"$ref\":\"#\"}]}",
        "{\"dependentSchemas\":{\"a\":{\"not\":{\"$ref\":\"#\"}}}}",
        "{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"not\":{\"required\":[\"a\"],\"not\":{\"$ref\":"
        "\"#/properties/a\"}}}",
        "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"not\":{\"oneOf\":[{\"$ref\":\"#/$defs/b\"},{"
        "\"type\":\"string\"}]}},\"b\":{\"if\":{\"$ref\":\"#/$defs/a\"},\"then\":{\"const\":1}}}}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(circles) / sizeof(circles[0]); i++) {
        struct ek_work work = {.fuel = GRAMMAR_FUEL};
        struct ek_fault f = {0};
        struct grammar *g = NULL;
        int r =
            grammar_compile(GRAMMAR_SCHEMA, circles[i], strlen(circles[i]), lexicon, &work, &g, &f);
        if (r == 0)
            grammar_unref(g);
        else if (r != -EBADMSG || !f.msg[0])
            fail_msg("%s: %d %s", circles[i], r, f.msg);
    }
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct ek_fault f = {0};
        struct grammar *g;
        int r = grammar_compile(GRAMMAR_SCHEMA, refused[i].schema, strlen(refused[i].schema),
                                lexicon, NULL, &g, &f);
        if (r != -EBADMSG || strcmp(f.field, refused[i].pointer) != 0 ||
            !strstr(f.msg, refused[i].says))
            fail_msg("%s: %d [%s] %s", refused[i].schema, r, f.field, f.msg);
    }
}

/* Nested as deep as anybody likes: refused, not crashed. */
static void test_depth(void **state)
{
    char text[4000] = "";
    struct ek_fault f = {0};
    struct grammar *g;
    (void)state;
    for (int i = 0; i < 100; i++)
        strcat(text, "{\"items\":");
    strcat(text, "{}");
    for (int i = 0; i < 100; i++)
        strcat(text, "}");
    assert_int_equal(grammar_compile(GRAMMAR_SCHEMA, text, strlen(text), lexicon, NULL, &g, &f),
                     -EBADMSG);
    assert_non_null(strstr(f.msg, "nest deeper"));
    char *large = calloc(1, GRAMMAR_TEXT_MOST + 2);
    assert_non_null(large);
    memset(large, ' ', GRAMMAR_TEXT_MOST + 1);
    assert_int_equal(
        grammar_compile(GRAMMAR_SCHEMA, large, GRAMMAR_TEXT_MOST + 1, lexicon, NULL, &g, &f),
        -EBADMSG);
    assert_non_null(strstr(f.msg, "bytes"));
    free(large);
}

/* What no automaton can tell is served without it, and it is known; the rest is kept. */
static void test_loose(void **state)
{
    static const struct {
        const char *text;
        bool loose;
        const char *yes, *no;
    } forms[] = {
        {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\"},\"minItems\":1,"
         "\"maxItems\":2}",
         true, "[\"a\", \"a\"]", "[]"},
        {"{\"$defs\":{\"q\":{\"uniqueItems\":true}},\"$ref\":\"#/$defs/q\"}", true, "[1, 1]",
         "[1,]"},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"prefixItems\":[{\"const\":1}],\"items\":{"
         "\"const\":"
         "2}}",
         true, "[1, 2, 2]", "[2]"},
        {"{\"properties\":{\"a\":{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"$ref\":\"#/"
         "$defs/"
         "n\"}}},\"$defs\":{\"n\":{\"type\":\"integer\"}}}",
         true, "{\"a\": [1, 1]}", "{\"a\": [\"\"]}"},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"b\"]}}", false,
         "[\"b\", \"a\"]", "[\"a\", \"a\"]"},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"boolean\"}}", false,
         "[true, false]", "[true, true]"},
        {"{\"type\":\"array\",\"uniqueItems\":false,\"items\":{\"type\":\"string\"}}", false,
         "[\"a\", \"a\"]", "[1]"},
    };
    struct ek_buf b = {0};
    struct ek_fault f = {0};
    struct grammar *g = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (grammar_compile(GRAMMAR_SCHEMA, forms[i].text, strlen(forms[i].text), lexicon, NULL, &g,
                            &f))
            fail_msg("%s: %s", forms[i].text, f.msg);
        if (grammar_is_loose(g) != forms[i].loose || words_fit(g, forms[i].yes) != 2 ||
            words_fit(g, forms[i].no) == 2)
            fail_msg("%s: loose %d", forms[i].text, grammar_is_loose(g));
        grammar_unref(g);
    }
    /* Of many values there are too many orders. */
    (void)ek_buf_puts(&b, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[0");
    for (int i = 1; i < 300; i++)
        (void)ek_buf_printf(&b, ",%d", i);
    (void)ek_buf_puts(&b, "]}}");
    assert_true(ek_buf_ok(&b));
    assert_int_equal(grammar_compile(GRAMMAR_SCHEMA, b.data, b.len, lexicon, NULL, &g, &f), 0);
    assert_true(grammar_is_loose(g));
    grammar_unref(g);
    ek_buf_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),   cmocka_unit_test(test_circles),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_depth),
        cmocka_unit_test(test_loose),
    };
    return cmocka_run_group_tests(tests, words_setup, words_teardown);
}
