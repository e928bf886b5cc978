/*
 * What published models say of themselves (tests/fixtures/configs.json, each with its source):
 * their values are read, or the refusal names the nearest family. Run from the root of the tree.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/err.h"
#include "server/model/config.h"

static void same(const char *model, const json_t *expect, const char *key, uint32_t is)
{
    const json_t *v = json_object_get(expect, key);
    assert_true(json_is_integer(v));
    if (json_integer_value(v) != (json_int_t)is)
        fail_msg("%s: %s is %u instead of %lld", model, key, is, (long long)json_integer_value(v));
}

static void check(const char *model, const json_t *expect, const struct model_config *c)
{
    const json_t *eos = json_object_get(expect, "eos");
    uint32_t windowed = 0;
    for (uint32_t i = 0; c->window > 0 && i < c->layers; i++)
        windowed += c->windowed[i];
    same(model, expect, "layers", c->layers);
    same(model, expect, "kv_heads", c->kv_heads);
    same(model, expect, "head_dim", c->head_dim);
    same(model, expect, "vocab", c->vocab);
    same(model, expect, "max_model_len", c->max_model_len);
    same(model, expect, "window", c->window);
    same(model, expect, "windowed", windowed);
    assert_int_equal(c->eos_count, json_array_size(eos));
    for (uint32_t i = 0; i < c->eos_count; i++)
        assert_int_equal(c->eos[i], json_integer_value(json_array_get(eos, i)));
}

static void read_one(const json_t *of)
{
    const char *model = json_string_value(json_object_get(of, "model"));
    const char *refused = json_string_value(json_object_get(of, "refused"));
    const json_t *generation = json_object_get(of, "generation");
    char *text = json_dumps(json_object_get(of, "config"), 0);
    struct model_config *c = calloc(1, sizeof(*c));
    struct model_defaults d;
    struct ek_fault f = {.msg = ""};
    assert_true(model && text && c);
    assert_non_null(json_string_value(json_object_get(of, "source")));
    int r = config_parse(text, strlen(text), c, &f);
    free(text);
    if (r == 0 && generation) {
        text = json_dumps(generation, 0);
        assert_non_null(text);
        r = config_parse_generation(text, strlen(text), c, &d, &f);
        free(text);
    }
    if (refused && (r == 0 || !strstr(f.msg, refused)))
        fail_msg("%s: %d, %s", model, r, f.msg);
    if (!refused && r < 0)
        fail_msg("%s: %s", model, f.msg);
    if (!refused)
        check(model, json_object_get(of, "expect"), c);
    free(c);
}

static void test_published(void **state)
{
    json_error_t e;
    json_t *all = json_load_file("tests/fixtures/configs.json", 0, &e);
    (void)state;
    if (!all)
        fail_msg("line %d: %s", e.line, e.text);
    assert_true(json_array_size(all) >= 20);
    for (size_t i = 0; i < json_array_size(all); i++)
        read_one(json_array_get(all, i));
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_published)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
