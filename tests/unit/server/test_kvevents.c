/* --kv-events-config as vLLM's users write it, and batches byte by byte. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/kvevents.h"
#include "tests/unit/alloc.h"

static void test_config(void **state)
{
    static const struct {
        const char *json;
        bool on;
        const char *endpoint, *replay;
        uint32_t steps;
    } cases[] = {
        {NULL, false, "tcp://*:5557", "", 10000},
        {"{}", false, "tcp://*:5557", "", 10000},
        {"{\"enable_kv_cache_events\": true}", true, "tcp://*:5557", "", 10000},
        {"{\"enable_kv_cache_events\": true, \"publisher\": \"null\"}", false, "tcp://*:5557", "",
         10000},
        {"{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \"endpoint\": "
         "\"ipc:///run/e\", \"replay_endpoint\": \"tcp://*:5558\", \"buffer_steps\": 7, \"hwm\": "
         "5, \"max_queue_size\": 9, \"topic\": \"kv@a@b\"}",
         true, "ipc:///run/e", "tcp://*:5558", 7},
        {"{\"enable_kv_cache_events\": true, \"replay_endpoint\": null}", true, "tcp://*:5557", "",
         10000},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kvevents_config c;
        struct ek_fault f = {0};
        assert_int_equal(kvevents_config_parse(cases[i].json, &c, &f), 0);
        assert_int_equal(c.on, cases[i].on);
        assert_string_equal(c.endpoint, cases[i].endpoint);
        assert_string_equal(c.replay_endpoint, cases[i].replay);
        assert_int_equal(c.buffer_steps, cases[i].steps);
    }
}

static void test_bad_config(void **state)
{
    static const char *const cases[][2] = {
        {"", "no JSON object"},
        {"[]", "no JSON object"},
        {"{\"enable_kv_cache_events\": 1}", "true or false"},
        {"{\"enpoint\": \"x\"}", "there is no 'enpoint'"},
        {"{\"endpoint\": 5}", "must be a string"},
        {"{\"publisher\": \"kafka\"}", "zmq or null"},
        {"{\"hwm\": 0}", "from 1 to 100000"},
        {"{\"buffer_steps\": 100001}", "from 1 to 100000"},
        {"{\"max_queue_size\": 1.5}", "whole number"},
        {"{\"enable_kv_cache_events\": true, \"endpoint\": \"*:5557\"}", "names no transport"},
        {"{\"endpoint\": \"tcp://*:70000\"}", "a port from 1 to 65535"},
        {"{\"endpoint\": \"tcp://*\"}", "a port from 1 to 65535"},
        {"{\"replay_endpoint\": \"tcp://*:0x1\"}", "replay_endpoint 'tcp://*:0x1' must end"},
        {"{\"hwm\": 1, \"hwm\": 2}", "no JSON object"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kvevents_config c = {.hwm = 77};
        struct ek_fault f = {0};
        assert_int_equal(kvevents_config_parse(cases[i][0], &c, &f), -EBADMSG);
        assert_non_null(strstr(f.msg, cases[i][1]));
        assert_string_equal(f.field, "kv-events-config");
        assert_int_equal(c.hwm, 77);
    }
}

static void fill(struct kvlog *l)
{
    static const int32_t tokens[] = {1, 2, 300, 4};
    const struct prefix_name none = {0, 0}, a = {10, 1}, b = {11, 1}, c = {12, 1};
    kvlog_stored(l, KV_DEVICE, a, none, tokens);
    kvlog_stored(l, KV_DEVICE, b, a, tokens + 2);
    kvlog_stored(l, KV_HOST, c, b, tokens);
    kvlog_removed(l, KV_DEVICE, a);
    kvlog_removed(l, KV_DEVICE, b);
    kvlog_cleared(l);
    kvlog_commit(l);
}

#define GROUP "\xa9group_idx\x00"
#define NONE  "\xa7lora_id\xc0"
#define NAMED "\xa9lora_name\xc0"
static const char batch[] =
    "\x93\xcb\x3f\xf8\0\0\0\0\0\0\x94"
    "\x89\xa4type\xab"
    "BlockStored\xac"
    "block_hashes\x92\x0a\x0b\xb1parent_block_hash\xc0\xa9token_ids\x94\x01\x02\xcd\x01\x2c\x04"
    "\xaa"
    "block_size\x02" NONE "\xa6medium\xa3GPU" NAMED GROUP "\x89\xa4type\xab"
    "BlockStored\xac"
    "block_hashes\x91\x0c\xb1parent_block_hash\x0b\xa9token_ids\x92\x01\x02\xaa"
    "block_size\x02" NONE "\xa6medium\xa3"
    "CPU" NAMED GROUP "\x84\xa4type\xac"
    "BlockRemoved\xac"
    "block_hashes\x92\x0a\x0b\xa6medium\xa3GPU" GROUP "\x81\xa4type\xb0"
    "AllBlocksCleared\x00";

static void test_batch(void **state)
{
    struct kvlog *l = NULL;
    struct ek_buf out = {0};
    uint64_t from;
    (void)state;
    assert_int_equal(kvlog_new(64, 2, &l), 0);
    fill(l);
    uint32_t n = kvlog_pending(l, &from);
    assert_int_equal(n, 6);
    assert_int_equal(kvevents_encode(l, from, n, 1.5, &out), 0);
    assert_int_equal(out.len, sizeof(batch) - 1);
    assert_memory_equal(out.data, batch, out.len);
    ek_buf_done(&out);
    for (long k = 1;; k++) {
        alloc_fail_at(k);
        int r = kvevents_encode(l, from, n, 1.5, &out);
        ek_buf_done(&out);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
    }
    alloc_fail_at(0);
    kvlog_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_bad_config),
        cmocka_unit_test(test_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
