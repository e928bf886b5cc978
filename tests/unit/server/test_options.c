/* Flags as people type them: right ones are understood, wrong ones named, old ones warned about. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/engine/limits.h"
#include "server/options.h"

struct warnings {
    int count;
    char last[320];
};

static void warn(void *ctx, const char *msg)
{
    struct warnings *w = ctx;
    w->count++;
    (void)snprintf(w->last, sizeof(w->last), "%s", msg);
}

#define ARGS 40
static int read_line(struct options *o, const char *line, struct warnings *w, struct ek_fault *f)
{
    char text[1024], *argv[ARGS] = {NULL};
    int argc = 0;
    *o = (struct options){0};
    *w = (struct warnings){0};
    *f = (struct ek_fault){0};
    (void)snprintf(text, sizeof(text), "evenkeel-server %s", line);
    for (char *word = strtok(text, " "); word && argc < ARGS; word = strtok(NULL, " "))
        argv[argc++] = word;
    return options_read(o, argc, argv, warn, w, f);
}

static void test_guide(void **state)
{
    struct options o;
    struct warnings w;
    struct ek_fault f;
    (void)state;
    int r = read_line(&o,
                      "--model DIR --tensor-parallel-size 4 --port 8000 --host 0.0.0.0 "
                      "--gpu-memory-utilization 0.88 --max-model-len 32768 --max-num-seqs 64 "
                      "--max-num-batched-tokens 24576 --block-size 16 --swap-space 8 "
                      "--disable-log-requests --enable-chunked-prefill "
                      "--max-num-on-the-fly-batches 4 --dtype bfloat16 --trust-remote-code "
                      "--cpu-offload-gb 20 --enable-prefix-caching",
                      &w, &f);
    assert_int_equal(r, 0);
    assert_string_equal(o.model, "DIR");
    assert_true(o.max_num_seqs == 64 && o.max_model_len == 32768 && o.swap_space == 8.0);
    assert_true(o.cpu_offload_gb == 20.0);
    assert_true(o.gpu_memory_utilization == 0.88 && o.enable_prefix_caching);
    assert_int_equal(o.tensor_parallel_size, 4);
    assert_int_equal(w.count, 3);
    options_done(&o);
}

static void test_defaults(void **state)
{
    struct options o;
    struct warnings w;
    struct ek_fault f;
    (void)state;
    assert_int_equal(read_line(&o, "some/model --no-enable-prefix-caching", &w, &f), 0);
    assert_string_equal(o.model, "some/model");
    assert_true(o.port == 8000 && o.block_size == 16 && o.max_num_seqs == 0);
    assert_true(!o.enable_prefix_caching && o.seed == -1 && o.shutdown_timeout == 60.0);
    assert_int_equal(w.count, 0);
    assert_false(options_kv_i8(&o));
    options_done(&o);
    assert_int_equal(read_line(&o, "m --kv-cache-dtype int8_per_token_head", &w, &f), 0);
    assert_true(options_kv_i8(&o));
    options_done(&o);
    assert_int_equal(read_line(&o, "m --device cuda:3,0 --tensor-parallel-size 2", &w, &f), 0);
    options_done(&o);
    assert_int_equal(read_line(&o, "m --device cuda:7", &w, &f), 0);
    options_done(&o);
}

static void test_refused(void **state)
{
    static const struct {
        const char *line, *field;
    } cases[] = {
        {"--max-num-seq 4", "max-num-seq"},
        {"--max-num-seqs 0", "max-num-seqs"},
        {"--max-num-seqs many", "max-num-seqs"},
        {"--max-num-seqs", "max-num-seqs"},
        {"--block-size 12", "block-size"},
        {"--block-size 256", "block-size"},
        {"--port 70000", "port"},
        {"--dtype int3", "dtype"},
        {"--kv-cache-dtype int3", "kv-cache-dtype"},
        {"--gpu-memory-utilization 1.5", "gpu-memory-utilization"},
        {"--data-parallel-size 2", "data-parallel-size"},
        {"--max-num-seqs 64 --max-num-batched-tokens 32", "max-num-batched-tokens"},
        {"--listen-from-control", "listen-from-control"},
        {"one two", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct options o;
        struct warnings w;
        struct ek_fault f;
        int r = read_line(&o, cases[i].line, &w, &f);
        if (r != -EBADMSG || strcmp(f.field, cases[i].field) != 0)
            fail_msg("%s: %d, '%s', %s", cases[i].line, r, f.field, f.msg);
        options_done(&o);
    }
}

static void test_nearest(void **state)
{
    struct options o;
    struct warnings w;
    struct ek_fault f;
    (void)state;
    assert_int_equal(read_line(&o, "--max-num-seq 4", &w, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "--max-num-seqs"));
    options_done(&o);
}

/* Limits that are zero, negative, huge or contradict each other: field, bound and remedy. */
static void test_limits(void **state)
{
    static const struct {
        const char *line, *field, *says[2];
    } cases[] = {
        {"--max-num-seqs -3", "max-num-seqs", {"-3", "1 to 4096"}},
        {"--max-num-seqs 99999999999999999999", "max-num-seqs", {"1 to 4096"}},
        {"--max-num-batched-tokens 0", "max-num-batched-tokens", {"1 to 1048576"}},
        {"--max-num-batched-tokens 2m", "max-num-batched-tokens", {"1 to 1048576"}},
        {"--max-num-batched-tokens 10 --max-num-seqs 20",
         "max-num-batched-tokens",
         {"--max-num-seqs 20", "raise it or lower --max-num-seqs"}},
        {"--device gpu", "device", {"gpu", "cuda:0,1"}},
        {"--device cpu:0", "device", {"cpu:0", "each once"}},
        {"--device cuda:", "device", {"cuda:"}},
        {"--device cuda:1,", "device", {"cuda:1,"}},
        {"--device cuda:,1", "device", {"cuda:,1"}},
        {"--device cuda:1,1", "device", {"each once"}},
        {"--device cuda:-1", "device", {"cuda:-1"}},
        {"--device cuda:99999999999999999999", "device", {"cuda:9999"}},
        {"--device cudas:1", "device", {"cudas:1"}},
        {"--device cuda:1,3", "device", {"2 cards", "--tensor-parallel-size 1"}},
        {"--device cuda:1 -tp 2", "device", {"1 card,", "--tensor-parallel-size 2"}},
        {"--block-size 0", "block-size", {"choose 8, 16, 32, 64 or 128"}},
        {"--block-size 7", "block-size", {"choose 8, 16, 32, 64 or 128"}},
        {"--block-size 24", "block-size", {"choose 8, 16, 32, 64 or 128"}},
        {"--block-size 256", "block-size", {"choose 8, 16, 32, 64 or 128"}},
        {"--swap-space -1", "swap-space", {"0 to 4096"}},
        {"--swap-space 99999", "swap-space", {"0 to 4096"}},
        {"--swap-space nan", "swap-space", {"not a number"}},
        {"--num-gpu-blocks-override 1", "num-gpu-blocks-override", {"2 to "}},
        {"--kv-cache-memory-bytes -5", "kv-cache-memory-bytes", {"-5"}},
        {"--gpu-memory-utilization 0", "gpu-memory-utilization", {"0.01 to 1"}},
        {"--max-model-len 0", "max-model-len", {"1 to "}},
        {"--max-num-queued-reqs 0", "max-num-queued-reqs", {"1 to 1048576"}},
        {"--max-num-queued-tokens 0", "max-num-queued-tokens", {"1 to "}},
        {"--queue-deadline -1", "queue-deadline", {"0 to 86400"}},
        {"--watermark 0.7", "watermark", {"0 to 0.5"}},
        {"--admission-high 0.5", "admission-low", {"above --admission-high 0.5", "lower it"}},
        {"--admission-high 1.2", "admission-high", {"0 to 1"}},
        {"--cached-share-per-salt 2", "cached-share-per-salt", {"0 to 1"}},
        {"--kv-offloading-size -1", "kv-offloading-size", {"0 to"}},
        {"--kv-offloading-size 1 --no-enable-prefix-caching",
         "kv-offloading-size",
         {"--no-enable-prefix-caching", "leave one out"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct options o;
        struct warnings w;
        struct ek_fault f;
        int r = read_line(&o, cases[i].line, &w, &f);
        bool ok = r == -EBADMSG && strcmp(f.field, cases[i].field) == 0;
        for (int k = 0; ok && k < 2 && cases[i].says[k]; k++)
            ok = strstr(f.msg, cases[i].says[k]) != NULL;
        if (!ok)
            fail_msg("%s: %d, '%s', %s", cases[i].line, r, f.field, f.msg);
        options_done(&o);
    }
}

/* What is ignored must say what to use instead; everything must have a help text. */
static void test_table(void **state)
{
    struct ek_buf text = {0};
    (void)state;
    for (const struct ek_opt *o = option_table; o->name; o++) {
        assert_true(o->help && strlen(o->help) > 10);
        assert_int_equal(o->help[strlen(o->help) - 1], '.');
        for (const struct ek_opt *p = option_table; p != o; p++)
            assert_string_not_equal(o->name, p->name);
    }
    for (uint32_t i = 0; i < LIMIT_COUNT; i++) {
        const struct limit_info *l = &limit_table[i];
        uint32_t rows = 0;
        for (const struct ek_opt *o = option_table; l->option && o->name; o++)
            rows += strcmp(o->name, l->option) == 0 &&
                    (o->type == OPT_UINT || o->type == OPT_FRACTION || o->type == OPT_SECONDS ||
                     o->type == OPT_BOOL);
        assert_true(rows == 1 || !l->option);
    }
    assert_int_equal(ek_opt_write(option_table, EK_OPT_HELP, &text), 0);
    assert_non_null(strstr(text.data, "--max-num-batched-tokens"));
    ek_buf_done(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guide),   cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_table),   cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
