/* What top knows and shows: rates and quantiles from pages, states, odd replicas, pictures of any
 * size; which processes are servers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"
#include "supervisor/ctl/board.h"
#include "supervisor/ctl/board_show.h"
#include "supervisor/ctl/hosts.h"
#include "supervisor/ctl/screen.h"

#define URL "http://127.0.0.1:8000"

/* A page of one vLLM with two data-parallel engines; n grows from reading to reading. */
static void page_of(struct ek_buf *out, int n)
{
    ek_buf_clear(out);
    for (int e = 0; e < 2; e++) {
        char l[64];
        (void)snprintf(l, sizeof(l), "engine=\"%d\",model_name=\"org/m\"", e);
        (void)ek_buf_printf(out, "vllm:num_requests_running{%s} %d\n", l, e ? 9 : 3);
        (void)ek_buf_printf(out, "vllm:num_requests_waiting{%s} %d\n", l, e);
        (void)ek_buf_printf(out, "vllm:kv_cache_usage_perc{%s} %g\n", l, e ? 0.9 : 0.25);
        (void)ek_buf_printf(out, "vllm:generation_tokens_total{%s} %d\n", l, n * 100 * (e + 1));
        (void)ek_buf_printf(out, "vllm:prompt_tokens_total{%s} %d\n", l, n * 10);
        (void)ek_buf_printf(out, "vllm:prefix_cache_queries_total{%s} %d\n", l, 1000 + n * 40);
        (void)ek_buf_printf(out, "vllm:prefix_cache_hits_total{%s} %d\n", l, n * 10);
        for (int b = 0; b < 2; b++)
            (void)ek_buf_printf(out, "vllm:time_to_first_token_seconds_bucket{%s,le=\"%s\"} %d\n",
                                l, b ? "+Inf" : "0.5", n * 10);
    }
}

static void push(struct board *b, int n, double at_s)
{
    struct ek_buf page = {0};
    struct sample_part parts[4] = {0};
    struct live_page now;
    page_of(&page, n);
    assert_int_equal(live_parts(page.data, page.len, parts, 4), 2);
    for (int i = 0; i < 2; i++) {
        struct board_row *r = board_row(b, URL, &parts[i]);
        assert_non_null(r);
        (void)snprintf(r->name, sizeof(r->name), "m/%s", parts[i].engine);
        live_read_part(page.data, page.len, &parts[i], &now);
        assert_int_equal(board_push(r, &now, at_s), 0);
    }
    ek_buf_done(&page);
}

static void test_rates(void **state)
{
    (void)state;
    struct board b = {0};
    struct board_rates r;
    push(&b, 1, 100);
    assert_int_equal(b.count, 2);
    assert_string_equal(b.row[1]->part.model, "org/m");
    assert_false(board_rates(b.row[0], false, &r)); /* one reading is none */
    for (int n = 2; n <= 90; n++)
        push(&b, n, 99 + n);
    assert_true(board_rates(b.row[1], false, &r));
    assert_true(fabs(r.out - 200) < 1e-9 && fabs(r.in - 10) < 1e-9 && fabs(r.seconds - 1) < 1e-9);
    assert_true(fabs(r.hit - 0.25) < 1e-9);
    assert_true(fabs(r.ttft[1] - 0.475) < 1e-9); /* linear in the bucket up to 0.5 */
    assert_true(r.itl[0] < 0 && r.preempted < 0);
    assert_true(board_rates(b.row[0], true, &r));
    assert_true(fabs(r.seconds - 60) < 1e-9 && fabs(r.out - 100) < 1e-9);
    push(&b, 1, 200); /* another process: what was before is of no use */
    assert_false(board_rates(b.row[0], true, &r));
    board_done(&b);
}

static void test_states(void **state)
{
    (void)state;
    struct board b = {0};
    struct sample_part none = {0};
    struct board_row *lost = board_row(&b, "http://gone:1", &none);
    assert_int_equal(board_state(lost, 0), BOARD_NEW);
    board_miss(lost, "connection refused", 1);
    assert_int_equal(board_state(lost, 1), BOARD_DOWN);
    push(&b, 1, 10);
    push(&b, 2, 11);
    struct board_row *r = b.row[1];
    assert_int_equal(board_state(r, 11), BOARD_UP);
    for (int i = 0; i < 20; i++)
        push(&b, 2, 12 + i); /* requests run and nothing moves */
    assert_int_equal(board_state(r, 31), BOARD_STALE);
    push(&b, 3, 32);
    assert_int_equal(board_state(r, 32), BOARD_UP);
    board_miss(r, "timeout", 33);
    assert_int_equal(board_state(r, 33), BOARD_STALE);
    board_miss(r, "timeout", 43);
    assert_int_equal(board_state(r, 43), BOARD_DOWN);
    board_forget(&b, 40); /* the others were not asked any more */
    assert_int_equal(b.count, 1);
    for (int i = 0; i < 2 * BOARD_ROWS; i++) {
        char url[40];
        (void)snprintf(url, sizeof(url), "http://h:%d", i);
        (void)board_row(&b, url, &none);
    }
    assert_true(b.count == BOARD_ROWS && b.full);
    board_done(&b);
}

static void test_odd(void **state)
{
    (void)state;
    struct board b = {0};
    struct board_odd odd[4];
    push(&b, 1, 1);
    assert_int_equal(board_odd(&b, odd, 4), 1);
    assert_true(odd[0].what == LIVE_BY_USAGE || odd[0].what == LIVE_BY_RUNNING);
    assert_int_equal(board_odd(&b, odd, 0), 0);
    /* Other ceilings, or one that drains: no replicas, whatever their model is called. */
    static const char *const infos[][2] = {
        {"{\"limits\":{\"max_num_running_seqs\":{\"ceiling\":16}}}",
         "{\"limits\":{\"max_num_running_seqs\":{\"ceiling\":64}}}"},
        {"{\"state\":\"ready\",\"ready\":true}", "{\"state\":\"draining\",\"ready\":false}"},
        {"{\"state\":\"ready\",\"ready\":true}", "{\"state\":\"ready\",\"ready\":false}"},
        {"{\"state\":\"ready\",\"ready\":true}", "{\"state\":\"ready\",\"ready\":true}"}};
    for (size_t i = 0; i < sizeof(infos) / sizeof(infos[0]); i++) {
        json_t *a = json_loads(infos[i][0], 0, NULL), *c = json_loads(infos[i][1], 0, NULL);
        b.row[0]->info = a;
        b.row[1]->info = c;
        assert_int_equal(board_odd(&b, odd, 4), i == 3);
        b.row[0]->info = b.row[1]->info = NULL;
        json_decref(a);
        json_decref(c);
    }
    board_miss(b.row[1], "gone", 2); /* what does not answer is no measure */
    assert_int_equal(board_odd(&b, odd, 4), 0);
    board_done(&b);
}

static const char INFO[] =
    "{\"name\":\"m\",\"engine\":\"vllm\",\"state\":\"ready\",\"mode\":\"act\",\"uptime_s\":70,"
    "\"restarts\":2,\"limits\":{\"max_num_running_seqs\":{\"value\":12,\"ceiling\":16,\"pinned\":"
    "true}},\"memory\":{\"resident_bytes\":2147483648,\"cgroup_bytes\":null,\"devices\":[{"
    "\"index\":"
    "0,\"used_bytes\":1073741824,\"total_bytes\":4294967296}]}}";
static const char DECISIONS[] =
    "{\"decisions\":[{\"at_s\":1.5e9,\"action\":\"lower\",\"knob\":\"max_num_running_seqs\","
    "\"from\":16,\"to\":12,\"reason\":\"LOWER_KV_HARM\",\"applied\":true,\"why\":\"a "
    "\\u001b[31m\"}]}";
static const char FAILURES[] = "{\"failures\":[{\"at_s\":1.4e9,\"class\":\"BURST_OOM\",\"next\":"
                               "\"starting again\"}]}";

static void look(const char *text, const struct screen *s)
{
    uint32_t rows = 0, cols = 0;
    for (const char *p = text; *p; p++) {
        if (*p == '\033') { /* our own sequences only: they end in m or K */
            p += strcspn(p, "mK");
            continue;
        }
        rows += *p == '\n';
        if ((*p & 0xc0) != 0x80)
            cols = *p == '\n' || *p == '\r' ? 0 : cols + 1;
        assert_true(cols <= s->cols);
    }
    if (s->rows)
        assert_true(rows < s->rows); /* never scrolls */
}

static void test_pictures(void **state)
{
    (void)state;
    static const uint32_t sizes[][2] = {{24, 80}, {40, 120}, {3, 10}, {1, 1}, {70, 300}, {0, 200}};
    struct board b = {0};
    json_t *info = json_loads(INFO, 0, NULL), *decisions = json_loads(DECISIONS, 0, NULL),
           *failures = json_loads(FAILURES, 0, NULL);
    struct board_view v = {.now_s = 1.5e9,
                           .price = 3.6,
                           .margin = 0.5,
                           .table = true,
                           .details = true,
                           .error = "no \033 answer"};
    for (int n = 1; n < 70; n++)
        push(&b, n, 1.5e9 - 70 + n);
    b.row[0]->info = info;
    b.row[0]->decisions = decisions;
    b.row[0]->failures = failures;
    (void)strcpy(b.row[0]->server, "m");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) * 4; i++) {
        struct ek_buf out = {0};
        struct screen s = {.rows = sizes[i / 4][0],
                           .cols = sizes[i / 4][1],
                           .out = &out,
                           .colour = i % 2,
                           .utf8 = i % 4 > 1};
        v.selected = (uint32_t)(i % 3);
        v.sort = (enum board_sort)(i % SORTS);
        v.keys = i == 6;
        board_show(&b, &v, &s);
        assert_true(ek_buf_ok(&out));
        look(out.data, &s);
        assert_null(strstr(out.data, "\033[31ma"));
        if (s.rows == 0) {
            static const char *const said[] = {"12 of 16  pinned", "LOWER_KV_HARM",
                                               "process 2.00 GiB", "device 0: 1.0 of 4.0",
                                               "starting again",   "out of balance: m/",
                                               "5.40 an hour",     "m/1"};
            for (size_t k = 0; k < sizeof(said) / sizeof(said[0]); k++) {
                if (!strstr(out.data, said[k]))
                    fail_msg("no '%s' in:\n%s", said[k], out.data);
            }
        }
        ek_buf_done(&out);
    }
    json_t *j = board_json(&b, &v);
    json_t *one = json_array_get(json_object_get(j, "servers"), 0);
    assert_string_equal(json_string_value(json_object_get(one, "server")), "m");
    double cost = json_number_value(json_object_get(one, "cost_per_million_tokens"));
    assert_true(fabs(cost - 3.6 * 1.5 / (100 * 3600.0) * 1e6) < 0.01);
    assert_int_equal(json_array_size(json_object_get(j, "imbalance")), 1);
    json_decref(j);
    json_decref(info);
    json_decref(decisions);
    json_decref(failures);
    board_done(&b);
}

static void test_sparks(void **state)
{
    (void)state;
    const float values[] = {0, 0.5f, NAN, 1, 3};
    struct ek_buf out = {0};
    struct screen s = {.cols = 10, .out = &out};
    screen_spark(&s, values, 5, 1);
    screen_end_line(&s);
    assert_string_equal(out.data, "_= ##\n");
    ek_buf_clear(&out);
    s.utf8 = true;
    screen_spark(&s, values, 5, 0);
    screen_column(&s, 7);
    (void)ek_buf_puts(&s.line, "abcdef");
    screen_end_line(&s);
    assert_string_equal(out.data, "▁▂ ▃█  abc\n");
    screen_done(&s);
    ek_buf_done(&out);
}

static void test_command_lines(void **state)
{
    (void)state;
    static const struct {
        const char *words; /* separated by | */
        bool is;
        uint16_t port;
        const char *what;
    } cases[] = {
        {"vllm|serve|m|--port|8123", true, 8123, "vllm serve"},
        {"/usr/bin/python3|/opt/v/bin/vllm|serve|m", true, 8000, "vllm serve"},
        {"python|-m|vllm.entrypoints.openai.api_server|--port=9", true, 9,
         "vllm.entrypoints.openai.api_server --port=9"},
        {"/usr/bin/evenkeel-server|--model|m|--port|0", true, 8000, "evenkeel-server --model"},
        {"vllm|bench|serve", false, 0, NULL},
        {"vim|vllm", false, 0, NULL},
        {"grep|-r|a|b|c|vllm|serve", false, 0, NULL},
        {"VLLM::EngineCore", false, 0, NULL},
        {"vllm|serve|--port|99999", true, 8000, "vllm serve"},
        {"", false, 0, NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char words[200], what[96];
        uint16_t port;
        size_t len = strlen(cases[i].words) + 1;
        memcpy(words, cases[i].words, len);
        for (size_t k = 0; k < len; k++)
            words[k] = words[k] == '|' ? '\0' : words[k];
        bool is = hosts_is_server(words, len, &port, what);
        if (is != cases[i].is ||
            (is && (port != cases[i].port || strcmp(what, cases[i].what) != 0)))
            fail_msg("%s: %d, port %u, %s", cases[i].words, is, port, what);
        assert_false(hosts_is_server(words, len > 1 ? len - 2 : 0, &port, what) && len < 5);
    }
}

static void put_file(const char *dir, const char *name, const char *text, size_t len)
{
    char path[300];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void test_processes(void **state)
{
    (void)state;
    static const char tcp[] = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when "
                              "retrnsmt   uid  timeout inode\n"
                              "   0: 0100007F:1F41 00000000:0000 0A 00000000:00000000 00:00000000 "
                              "00000000     0        0 111 1\n"
                              "   1: 0100007F:1F42 0100007F:0001 01 00000000:00000000 00:00000000 "
                              "00000000     0        0 112 1\n"
                              "   2: 00000000:2382 00000000:0000 0A 00000000:00000000 00:00000000 "
                              "00000000     0        0 113 1\n"
                              "junk\n";
    char root[] = "/tmp/ek-hosts-XXXXXX", path[300];
    assert_non_null(mkdtemp(root));
    static const char *const dirs[] = {"42", "42/fd", "42/net", "43", "43/net", "44", "x"};
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", root, dirs[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    static const char own[] = "vllm\0serve\0m\0--port\0"
                              "7",
                      other[] = "vllm\0serve\0m\0--port\0"
                                "9090";
    put_file(root, "42/cmdline", own, sizeof(own));
    put_file(root, "42/net/tcp", tcp, sizeof(tcp) - 1);
    put_file(root, "43/cmdline", other, sizeof(other)); /* its sockets may not be seen */
    put_file(root, "43/net/tcp", tcp, sizeof(tcp) - 1);
    put_file(root, "44/cmdline", "sh\0", 3);
    (void)snprintf(path, sizeof(path), "%s/42/fd/7", root);
    assert_int_equal(symlink("socket:[111]", path), 0);
    (void)snprintf(path, sizeof(path), "%s/42/fd/8", root);
    assert_int_equal(symlink("socket:[112]", path), 0); /* a connection, no listener */
    struct host_server found[HOSTS_MOST];
    uint32_t n = hosts_scan(root, found);
    assert_int_equal(n, 2);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(found[i].ports, 1);
        assert_int_equal(found[i].port[0], found[i].pid == 42 ? 8001 : 9090);
        assert_false(found[i].elsewhere);
    }
    assert_int_equal(hosts_scan("/nowhere", found), 0);
    char command[300];
    (void)snprintf(command, sizeof(command), "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates),     cmocka_unit_test(test_states),
        cmocka_unit_test(test_odd),       cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_sparks),    cmocka_unit_test(test_command_lines),
        cmocka_unit_test(test_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
