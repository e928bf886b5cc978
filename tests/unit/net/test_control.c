/* The control socket's bodies, and that the table of routes and names is sound. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/buf.h"
#include "server/api/error.h"
#include "server/api/openai.h"
#include "server/api/reply.h"
#include "server/engine/limits.h"
#include "server/net/control.h"
#include "server/net/metrics.h"
#include "server/net/request.h"

static void test_limits_round_trip(void **state)
{
    struct limits l = {.generation = 3};
    struct ek_buf out = {0};
    (void)state;
    for (int i = 0; i < LIMIT_COUNT; i++) {
        l.value[i] = 5000000 + (uint64_t)i;
        l.ceiling[i] = 9000000;
    }
    l.changed_us[LIMIT_RUNNING_SEQS] = 1000000;
    l.expires_us[LIMIT_RUNNING_SEQS] = 12000000;
    l.expires_us[LIMIT_WATERMARK] = 9000000;
    memcpy(l.reason, "a \"reason\"", 11);
    control_write_limits(&l, 4000000, &out);
    json_t *j = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(j);
    assert_int_equal(json_integer_value(json_object_get(j, "max_num_running_seqs")), 5000000);
    assert_true(json_number_value(json_object_get(j, "queue_deadline_s")) > 4.99);
    assert_int_equal(json_integer_value(json_object_get(j, "generation")), 3);
    assert_string_equal(json_string_value(json_object_get(j, "reason")), "a \"reason\"");
    assert_true(json_number_value(json_object_get(j, "expires_in_s")) == 5.0);
    json_t *ceiling = json_object_get(j, "ceiling"), *ago = json_object_get(j, "changed_s_ago");
    assert_true(json_object_size(ceiling) == LIMIT_COUNT);
    assert_true(json_number_value(json_object_get(ago, "max_num_running_seqs")) == 3.0);
    assert_true(json_is_null(json_object_get(ago, "watermark")));
    json_t *ahead = json_object_get(j, "expiring_in_s");
    assert_true(json_number_value(json_object_get(ahead, "max_num_running_seqs")) == 8.0);
    assert_true(json_number_value(json_object_get(ahead, "watermark")) == 5.0);
    assert_true(json_is_null(json_object_get(ahead, "admission_low")));
    json_decref(j);
    ek_buf_done(&out);
}

static void test_patch(void **state)
{
    static const struct {
        const char *body, *param;
        int r;
    } cases[] = {
        {"", "", -EBADMSG},
        {"{}", "", -EBADMSG},
        {"{\"max_seqs\":4}", "max_seqs", -EBADMSG},
        {"{\"max_num_running_seqs\":\"4\"}", "max_num_running_seqs", -EBADMSG},
        {"{\"max_num_running_seqs\":4.5}", "max_num_running_seqs", -EBADMSG},
        {"{\"max_num_running_seqs\":-4}", "max_num_running_seqs", -EBADMSG},
        {"{\"max_num_running_seqs\":4,\"origin\":5}", "origin", -EBADMSG},
        {"{\"max_num_running_seqs\":4,\"generation\":-1}", "generation", -EBADMSG},
        {"{\"max_num_running_seqs\":4,\"expires_in_s\":\"x\"}", "expires_in_s", -EBADMSG},
        {"{\"origin\":\"x\"}", "", -EBADMSG},
        {"{\"max_num_running_seqs\":4,\"queue_deadline_s\":1.5,\"generation\":7,"
         "\"expires_in_s\":2,\"origin\":\"evenkeeld\",\"reason\":\"LOWER_KV_HARM\"}",
         "", 0},
    };
    struct limits_change c;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct api_error err = {0};
        int r = control_parse_limits(cases[i].body, strlen(cases[i].body), &c, &err);
        if (r != cases[i].r || strcmp(err.param, cases[i].param) != 0)
            fail_msg("%s: %d, '%s', %s", cases[i].body, r, err.param, err.msg);
    }
    assert_int_equal(c.set, 1u << LIMIT_RUNNING_SEQS | 1u << LIMIT_QUEUE_DEADLINE);
    assert_int_equal(c.value[LIMIT_QUEUE_DEADLINE], 1500000);
    assert_true(c.generation == 7 && c.expires_in_us == 2000000);
    assert_string_equal(c.origin, "evenkeeld");
}

static void test_routes(void **state)
{
    const char *allow;
    (void)state;
    assert_non_null(route_find("POST", "/v1/chat/completions", &allow));
    assert_null(route_find("GET", "/v1/chat/completions", &allow));
    assert_string_equal(allow, "POST");
    assert_non_null(route_find("HEAD", "/health", &allow));
    assert_non_null(route_find("GET", "/v1/models/a/b", &allow));
    assert_ptr_equal(route_find("GET", "/v1/models/", &allow),
                     route_find("GET", "/v1/models", &allow));
    assert_null(route_find("GET", "/docs/", &allow)); /* its links are beside it */
    assert_null(route_find("DELETE", "/v1/responses/a/input_items/", &allow));
    assert_null(route_find("GET", "/V1/models", &allow));
    assert_null(route_find("GET", "//v1/models", &allow));
    assert_null(route_find("GET", "/v1%2fmodels", &allow));
    assert_null(allow);
    assert_null(route_find("DELETE", "/drain", &allow));
    assert_null(allow); /* admin routes are not told about */
}

static void test_error_object(void **state)
{
    struct api_error err;
    struct ek_buf out = {0};
    (void)state;
    assert_int_equal(api_refuse(&err, 404, "model", "The model `%s` does not exist.", "\"x\""),
                     -EBADMSG);
    reply_error(&out, &err);
    assert_string_equal(out.data,
                        "{\"error\":{\"message\":\"The model `\\\"x\\\"` does not exist.\","
                        "\"type\":\"NotFoundError\",\"param\":\"model\",\"code\":404}}");
    ek_buf_clear(&out);
    (void)api_refuse(&err, 429, NULL, "busy");
    reply_error(&out, &err);
    assert_string_equal(out.data, "{\"error\":{\"message\":\"busy\",\"type\":\"RateLimitError\","
                                  "\"param\":null,\"code\":429}}");
    ek_buf_done(&out);
}

static void test_names_are_sound(void **state)
{
    (void)state;
    for (const struct ek_metric *m = metrics_table; m->name; m++) {
        size_t n = strlen(m->name);
        bool total = n > 6 && strcmp(m->name + n - 6, "_total") == 0;
        assert_true(m->help && m->help[0] && m->labels);
        if (m->type == EK_COUNTER)
            assert_true(total);
        if (m->type == EK_GAUGE)
            assert_false(total);
        for (const struct ek_metric *o = metrics_table; o != m; o++)
            assert_string_not_equal(o->name, m->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits_round_trip),
        cmocka_unit_test(test_patch),
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_error_object),
        cmocka_unit_test(test_names_are_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
