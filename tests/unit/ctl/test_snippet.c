/* What evenkeelctl prints for routers and for Prometheus, word by word. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "supervisor/ctl/snippet.h"
#include "tests/unit/alloc.h"

static const char servers[] =
    "{\"listen\":\"127.0.0.1:9464\",\"servers\":["
    "{\"name\":\"main\",\"model\":\"my \\\"model\\\"\",\"url\":\"http://127.0.0.1:8000\","
    "\"edge\":\"0.0.0.0:9465\"},"
    "{\"name\":\"inside\",\"model\":\"m\",\"url\":\"unix\"},"
    "{\"name\":\"other\",\"model\":\"m\",\"url\":\"http://127.0.0.1:8001\"}]}";

static const char *const cases[][2] = {
    {"haproxy",
     "# in a backend or listen section, mode http; the balance algorithm must use weights\n"
     "    # 503 while it loads, drains or has failed, when its port still answers.\n"
     "    option httpchk GET /health\n"
     "    http-check expect status 200\n"
     "    # What is refused before that was seen goes to another one. Only a request that is in\n"
     "    # one buffer as a whole (tune.bufsize, 16 kB by default) can be asked again.\n"
     "    option http-buffer-request\n"
     "    retries 3\n"
     "    option redispatch 1\n"
     "    retry-on conn-failure 503\n"
     "    server gpu1-main gpu1:8000 weight 100 check inter 1s fastinter 200ms agent-check "
     "agent-addr gpu1 agent-port 9465 agent-inter 1s\n"
     "    server gpu1-other gpu1:8001 weight 100 check inter 1s fastinter 200ms\n"},
    {"prometheus", "# a file for file_sd_configs\n"
                   "- targets: [\"gpu1:8000\"]\n  labels: {job: evenkeel-server, host: \"gpu1\", "
                   "server: main}\n"
                   "- targets: [\"gpu1:8001\"]\n  labels: {job: evenkeel-server, host: \"gpu1\", "
                   "server: other}\n"
                   "- targets: [\"gpu1:9464\"]\n  labels: {job: evenkeeld, host: \"gpu1\"}\n"},
    {"envoy", "# below load_assignment.endpoints of a cluster\n- lb_endpoints:\n"
              "    - endpoint: {address: {socket_address: {address: gpu1, port_value: 8000}}} # "
              "main\n"
              "    - endpoint: {address: {socket_address: {address: gpu1, port_value: 8001}}} # "
              "other\n"},
    {"vllm-router", "vllm-router --worker-urls http://gpu1:8000 http://gpu1:8001\n"},
    {"llm-d", "# endpoints of file-discovery\n"
              "- name: gpu1-main\n  address: \"gpu1\" # llm-d wants digits here\n  port: "
              "\"8000\"\n  labels: {llm-d.ai/engine-type: vllm, model: \"my \\\"model\\\"\"}\n"
              "- name: gpu1-other\n  address: \"gpu1\" # llm-d wants digits here\n  port: "
              "\"8001\"\n  labels: {llm-d.ai/engine-type: vllm, model: \"m\"}\n"},
};

static void test_forms(void **state)
{
    (void)state;
    json_t *list = json_loads(servers, 0, NULL);
    assert_non_null(list);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_buf out = {0};
        assert_int_equal(snippet_write(cases[i][0], list, "gpu1", &out), 0);
        assert_string_equal(out.data, cases[i][1]);
        ek_buf_done(&out);
        assert_non_null(strstr(snippet_forms, cases[i][0]));
        for (long n = 1;; n++) {
            alloc_fail_at(n);
            int r = snippet_write(cases[i][0], list, "gpu1", &out);
            ek_buf_done(&out);
            if (!alloc_failed()) {
                assert_int_equal(r, 0);
                break;
            }
            assert_int_equal(r, -ENOMEM);
        }
        alloc_fail_at(0);
    }
    json_decref(list);
}

static void test_nothing_to_tell(void **state)
{
    static const char *const none[] = {"{}", "{\"servers\":[]}", "{\"servers\":[{\"url\":5}]}",
                                       "{\"servers\":[{\"name\":\"a\",\"url\":\"unix\"}]}"};
    (void)state;
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        struct ek_buf out = {0};
        json_t *list = json_loads(none[i], 0, NULL);
        assert_int_equal(snippet_write("envoy", list, "h", &out), -ENOENT);
        assert_int_equal(snippet_write("nginx", list, "h", &out), -EINVAL);
        ek_buf_done(&out);
        json_decref(list);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms),
                                       cmocka_unit_test(test_nothing_to_tell)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
