/*
 * The memory plan, on numbers worked out by hand: what fits, what does not, and that the remedy it
 * names does make it fit.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/memplan.h"
#include "tests/unit/alloc.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)

/* 1000 MiB, half of it the share; 100 + 50 + 2 + 8 fixed, 40 for the host: 300 MiB are left, 1200
 * blocks of 256 KiB, 16 tokens each. */
static const struct ek_plan need = {.weight_bytes = 100 * MIB,
                                    .activation_bytes = 50 * MIB,
                                    .slot_bytes = 2 * MIB,
                                    .block_bytes = 256 << 10,
                                    .overhead_bytes = 8 * MIB};

static struct memplan_params params(void)
{
    return (struct memplan_params){.memory_bytes = 1000 * MIB,
                                   .utilization = 0.5,
                                   .block_size = 16,
                                   .max_num_seqs = 64,
                                   .max_num_batched_tokens = 2048,
                                   .host_bytes = 40 * MIB};
}

static uint64_t sum(const struct memplan *plan, const struct memplan_params *p)
{
    uint64_t s = memplan_left(plan, p);
    for (int i = 0; i < MEMPLAN_ITEMS; i++)
        if (!memplan_apart(p, (enum memplan_item)i))
            s += plan->bytes[i];
    return s;
}

static void test_what_is_left(void **state)
{
    (void)state;
    struct memplan_params p = params();
    struct memplan plan;
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, NULL), 0);
    assert_int_equal(plan.share_bytes, 500 * MIB);
    assert_int_equal(plan.blocks, 1200);
    assert_int_equal(plan.bytes[MEMPLAN_KV], 300 * MIB);
    assert_int_equal(plan.host_blocks, 0);
    assert_int_equal(plan.max_model_len, 2048);
    assert_true(fabs(plan.concurrency - 1199.0 / 128.0) < 1e-9);
    assert_int_equal(sum(&plan, &p), plan.share_bytes);
    assert_int_equal(memplan_left(&plan, &p), 0);
}

/* Recurrent states are fixed, whatever the pool. */
static void test_states(void **state)
{
    (void)state;
    struct memplan_params p = params();
    struct ek_plan n = need;
    struct memplan plan;

    n.state_bytes = MIB;
    p.states = 80;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, NULL), 0);
    assert_int_equal(plan.bytes[MEMPLAN_STATES], 80 * MIB);
    assert_int_equal(plan.blocks, 880);
    assert_int_equal(sum(&plan, &p), plan.share_bytes);
    p.snapshots = 20;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, NULL), 0);
    assert_int_equal(plan.bytes[MEMPLAN_STATES], 100 * MIB);
    assert_int_equal(plan.snapshots, 20);
    struct ek_fault f = {0};
    p.snapshots = 240; /* of the 220 MiB that are left, and a pool of two blocks */
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), -E2BIG);
    assert_string_equal(f.field, "state-snapshots");
    assert_non_null(strstr(f.msg, "lower --state-snapshots to 219 or"));
    p.snapshots = 220;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), -E2BIG);
    p.snapshots = 219;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), 0);
    p.snapshots = -1; /* a quarter of the 220 MiB that are left */
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, NULL), 0);
    assert_int_equal(plan.snapshots, 55);
    assert_int_equal(plan.blocks, 165 * 4);
    p.kv_most_bytes = 40 * MIB; /* a quarter of the pool that there would be */
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, NULL), 0);
    assert_int_equal(plan.snapshots, 10);
    p.kv_most_bytes = 0;
    p.states = 8; /* two for each */
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, NULL), 0);
    assert_int_equal(plan.snapshots, 16);
    p.states = 80;
    p.max_model_len = 13600; /* 851 blocks of the 880 */
    assert_int_equal(memplan_make(&p, &n, 16384, &plan, NULL), 0);
    assert_int_equal(plan.snapshots, 7);
    assert_true(plan.blocks >= 851);
    n.state_bytes = 0;
    assert_int_equal(memplan_make(&p, &n, 16384, &plan, NULL), 0);
    assert_int_equal(plan.snapshots, 0);
}

struct fit_case {
    const char *what;
    uint64_t kv, most, swap;
    uint32_t override, len, model_len;
    bool apart;
    uint32_t blocks, host_blocks, fitted;
};

static const struct fit_case fit_cases[] = {
    {"the CPU's bound", 0, 64 * MIB, 0, 0, 0, 2048, false, 256, 0, 2048},
    {"a bound above what is left", 0, 4 * GIB, 0, 0, 0, 2048, false, 1200, 0, 2048},
    {"a length that needs more than the bound", 0, MIB, 0, 0, 2048, 2048, false, 129, 0, 2048},
    {"the length is fitted", 0, MIB, 0, 0, 0, 2048, false, 4, 0, 48},
    {"all that is left is fitted", 0, 0, 0, 0, 0, 1u << 26, false, 1200, 0, 1199 * 16},
    {"bytes asked for", 10 * MIB + 1, MIB, 0, 0, 0, 100, false, 40, 0, 100},
    {"blocks asked for", 0, MIB, 0, 7, 0, 100, false, 7, 0, 96},
    {"blocks asked for, exactly one request", 0, 0, 0, 7, 96, 100, false, 7, 0, 96},
    {"swap takes from the pool", 0, 0, 100 * MIB, 0, 0, 2048, false, 800, 400, 2048},
    {"swap lies elsewhere", 0, 0, 100 * MIB, 0, 0, 2048, true, 1360, 400, 2048},
    {"swap too small for a block", 0, 0, 300 << 10, 0, 0, 2048, false, 1200, 0, 2048},
    {"over the share, as asked", 800 * MIB, 0, 0, 0, 0, 2048, false, 3200, 0, 2048},
    {"one token", 0, MIB, 0, 0, 1, 2048, false, 4, 0, 1},
};

struct tier_case {
    const char *what;
    uint64_t swap, offload;
    uint32_t host, prefixes; /* blocks */
};

/* Blocks are 256 KiB. */
static const struct tier_case tier_cases[] = {
    {"both", 2 * MIB, 3 * MIB, 20, 12},
    {"prefixes alone: one of them is block 0", 0, 2 * MIB, 8, 7},
    {"one block holds nothing", 0, 300 << 10, 0, 0},
    {"too little swap", 300 << 10, 2 * MIB, 8, 7},
    {"one block beside swap", MIB, 300 << 10, 5, 1},
};

static void test_tiers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(tier_cases) / sizeof(tier_cases[0]); i++) {
        const struct tier_case *c = &tier_cases[i];
        struct memplan_params p = params();
        struct memplan plan;
        p.swap_bytes = c->swap;
        p.offload_bytes = c->offload;
        assert_int_equal(memplan_make(&p, &need, 2048, &plan, NULL), 0);
        if (plan.host_blocks != c->host || plan.offload_blocks != c->prefixes)
            fail_msg("%s: %u %u", c->what, plan.host_blocks, plan.offload_blocks);
        assert_int_equal(plan.bytes[MEMPLAN_SWAP] + plan.bytes[MEMPLAN_OFFLOAD],
                         c->host * (256ull << 10));
        assert_int_equal(sum(&plan, &p), plan.share_bytes);
    }
}

static void test_fits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(fit_cases) / sizeof(fit_cases[0]); i++) {
        const struct fit_case *c = &fit_cases[i];
        struct memplan_params p = params();
        p.kv_cache_bytes = c->kv;
        p.kv_most_bytes = c->most;
        p.swap_bytes = c->swap;
        p.blocks_override = c->override;
        p.max_model_len = c->len;
        p.host_apart = c->apart;
        struct memplan plan;
        struct ek_fault f = {0};
        int r = memplan_make(&p, &need, c->model_len, &plan, &f);
        if (r != 0 || plan.blocks != c->blocks || plan.host_blocks != c->host_blocks ||
            plan.max_model_len != c->fitted)
            fail_msg("%s: %d '%s' %u %u %u", c->what, r, f.msg, plan.blocks, plan.host_blocks,
                     plan.max_model_len);
        if (c->kv <= 300 * MIB)
            assert_int_equal(sum(&plan, &p), plan.share_bytes);
        assert_true(sum(&plan, &p) <= p.memory_bytes);
    }
}

/* Tables grow with the blocks: 256 KiB and 64 KiB of a table each. */
static void test_tables(void **state)
{
    (void)state;
    struct memplan plan;
    struct memplan_params p = params();
    p.table_bytes = 20 * MIB;
    p.block_table_bytes = 64 << 10;
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, NULL), 0);
    assert_int_equal(plan.blocks, 280 * MIB / (320 << 10));
    assert_int_equal(plan.bytes[MEMPLAN_TABLES], 20 * MIB + plan.blocks * (64ull << 10));
    assert_int_equal(sum(&plan, &p), plan.share_bytes);
    assert_true(memplan_left(&plan, &p) < 320 << 10);

    p.host_apart = true; /* nothing of it in the share */
    p.swap_bytes = 64 * MIB;
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, NULL), 0);
    assert_int_equal(plan.blocks, 340 * MIB / (256 << 10));
    assert_int_equal(plan.bytes[MEMPLAN_TABLES], 20 * MIB + (plan.blocks + 256) * (64ull << 10));

    /* The host must hold it: 20 + 101 MiB of tables, 40 for clients, 64 of swap. */
    struct ek_fault f = {0};
    p.host_memory_bytes = 226 * MIB;
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, &f), 0);
    p.host_memory_bytes = 220 * MIB;
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, &f), -E2BIG);
    assert_string_equal(f.field, "swap-space");
    assert_non_null(strstr(f.msg, "220.0 MiB; lower --swap-space to 0.0"));
    p.offload_bytes = 32 * MIB;
    p.host_memory_bytes = 245 * MIB;
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, &f), -E2BIG);
    assert_string_equal(f.field, "kv-offloading-size");
    p.offload_bytes = 0;
    p.host_memory_bytes = 100 * MIB;
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, &f), -E2BIG);
    assert_string_equal(f.field, "max-connections");
}

/* 100 MiB of weights, of which 60 are in host memory and need buffers of 20 on the card. */
static void test_host_weights(void **state)
{
    (void)state;
    struct memplan plan;
    struct ek_buf out = {0};
    struct ek_fault f = {0};
    struct ek_plan n = need;
    struct memplan_params p = params();
    p.host_apart = true;
    n.offload_most_bytes = 90 * MIB;
    n.staging_most_bytes = 20 * MIB;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, NULL), 0);
    const uint32_t blocks = plan.blocks;
    assert_int_equal(plan.gained_blocks, 0);
    n.weight_bytes = 40 * MIB;
    n.host_weight_bytes = 60 * MIB;
    n.staging_bytes = 20 * MIB;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, NULL), 0);
    assert_int_equal(plan.blocks, blocks + 40 * 4);
    assert_int_equal(plan.gained_blocks, 40 * 4);
    assert_int_equal(plan.bytes[MEMPLAN_STAGING], 20 * MIB);
    assert_int_equal(plan.bytes[MEMPLAN_HOST_WEIGHTS], 60 * MIB);
    assert_int_equal(sum(&plan, &p), plan.share_bytes);
    assert_int_equal(memplan_write(&plan, &p, false, &out), 0);
    assert_non_null(strstr(out.data, "  weight buffers       20.0 MiB    4.0 %\n"));
    assert_non_null(strstr(out.data, "  weights, host        60.0 MiB           for 160 KV blocks  "
                                     "in host memory\n"));
    ek_buf_done(&out);

    /* Weight files that are kept are in the host once, whatever the cards. */
    p.file_bytes = 30 * MIB;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, NULL), 0);
    assert_int_equal(plan.bytes[MEMPLAN_FILES], 30 * MIB);
    assert_int_equal(plan.blocks, blocks + 40 * 4);
    p.host_memory_bytes = 129 * MIB;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), -E2BIG);
    p.host_memory_bytes = 130 * MIB;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), 0);
    p.host_apart = false;
    p.host_memory_bytes = 0;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, NULL), 0);
    assert_int_equal(sum(&plan, &p), plan.share_bytes); /* of a CPU they are a part of its share */
    p.host_apart = true;
    p.file_bytes = 0;

    /* Of each card; the host has to hold all of it: 2 x 60 + 40 for clients. */
    p.ranks = 2;
    p.host_memory_bytes = 160 * MIB;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), 0);
    assert_int_equal(plan.bytes[MEMPLAN_HOST_WEIGHTS], 120 * MIB);
    p.host_memory_bytes = 100 * MIB;
    p.ranks_here = 1; /* the other is on another machine */
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), 0);
    assert_int_equal(plan.bytes[MEMPLAN_HOST_WEIGHTS], 60 * MIB);
    p.ranks_here = 2;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), -E2BIG);
    assert_string_equal(f.field, "cpu-offload-gb");
    assert_non_null(strstr(f.msg, "needs 160.0 MiB of host memory but there are 100.0 MiB; lower "
                                  "--cpu-offload-gb to 0.02"));

    /* Too much for a card of 130 MiB: 40 are missing, and what buffers take and rounding leaves. */
    n = need;
    n.activation_bytes = n.slot_bytes = 0;
    n.weight_bytes = 162 * MIB;
    n.offload_most_bytes = 90 * MIB;
    n.staging_most_bytes = 20 * MIB;
    p = params();
    p.host_apart = true;
    p.memory_bytes = 130 * MIB;
    p.utilization = 1;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), -E2BIG);
    assert_non_null(strstr(f.msg, "40.5 MiB too much; use a smaller model, --tensor-parallel-size "
                                  "2 on as many cards, --cpu-offload-gb 0.07 (slow) or a device"));
    p.host_memory_bytes = 70 * MIB; /* the host cannot hold that */
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), -E2BIG);
    assert_null(strstr(f.msg, "cpu-offload-gb"));
    p.host_memory_bytes = 0;
    n.offload_most_bytes = 70 * MIB; /* nor is there so much */
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), -E2BIG);
    assert_null(strstr(f.msg, "cpu-offload-gb"));
}

struct no_case {
    const char *what;
    double utilization;
    uint64_t memory, kv, swap;
    uint32_t override, len;
    int code;
    const char *field, *says;
};

static const struct no_case no_cases[] = {
    /* 200 MiB fixed, 2048 tokens need 129 blocks = 32.25 MiB: 232.25 of 220 MiB. 80 blocks are
     * left: 79 * 16 = 1264 tokens. 0.24 * 1000 = 240 MiB is enough, 0.23 is not. */
    {"length", 0.22, 1000 * MIB, 0, 0, 0, 2048, -E2BIG, "max-model-len",
     "The plan needs 232.2 MiB but the share is 220.0 MiB (0.22 of 1000.0 MiB): 12.2 MiB too much; "
     "lower --max-model-len to 1264 or raise --gpu-memory-utilization to 0.24"},
    {"bytes", 0.5, 1000 * MIB, 801 * MIB, 0, 0, 0, -E2BIG, "kv-cache-memory-bytes",
     "The plan needs 1001.0 MiB but the memory is 1000.0 MiB: 1.0 MiB too much; lower "
     "--kv-cache-memory-bytes to 838860800"},
    {"blocks", 0.5, 1000 * MIB, 0, 0, 3201, 0, -E2BIG, "num-gpu-blocks-override",
     "256.0 KiB too much; lower --num-gpu-blocks-override to 3200"},
    /* 1 GiB of swap in 1000 MiB: 200 + 1024 + 0.5 of 500: 724.5 short, 299.5 MiB stay. */
    {"swap", 0.5, 1000 * MIB, 0, GIB, 0, 0, -E2BIG, "swap-space", "lower --swap-space to 0.29"},
    /* 200.5 of 180 MiB: 20.5 of the 52 MiB of a step must go: 0.6057 stay. */
    {"step", 1.0, 180 * MIB, 0, 0, 0, 0, -E2BIG, "max-num-batched-tokens",
     "20.5 MiB too much; lower --max-num-batched-tokens to 1240 and --max-num-seqs to 38"},
    {"share", 0.1, 1000 * MIB, 0, 0, 0, 0, -E2BIG, "gpu-memory-utilization",
     "raise --gpu-memory-utilization to 0.21"},
    {"device", 1.0, 100 * MIB, 0, 0, 0, 0, -E2BIG, "gpu-memory-utilization",
     "use a smaller model or give it memory of at least 220.5 MiB"},
    {"no memory", 1.0, 0, 0, 0, 0, 0, -E2BIG, "gpu-memory-utilization", "a smaller model"},
    {"override below the length", 0.5, 1000 * MIB, 0, 0, 3, 2048, -E2BIG, "num-gpu-blocks-override",
     "--num-gpu-blocks-override 3 is too little for one request of 2048 tokens (--max-model-len), "
     "which needs 129 blocks with block 0; raise it to 129 or lower --max-model-len to 32"},
    {"bytes below a block", 0.5, 1000 * MIB, 1000, 0, 0, 0, -E2BIG, "kv-cache-memory-bytes",
     "raise it to 524288"},
    {"one block", 0.5, 1000 * MIB, 0, 0, 1, 0, -EBADMSG, "num-gpu-blocks-override", "2 or more"},
    {"both", 0.5, 1000 * MIB, MIB, 0, 9, 0, -EBADMSG, "num-gpu-blocks-override", "leave one out"},
    {"longer than the model", 0.5, 1000 * MIB, 0, 0, 0, 4096, -EBADMSG, "max-model-len",
     "--max-model-len 4096 is more than the model's 2048 tokens; set it to 2048 or less"},
    {"no share", 0, 1000 * MIB, 0, 0, 0, 0, -EBADMSG, "gpu-memory-utilization", "above 0"},
    {"too large a share", 1.01, 1000 * MIB, 0, 0, 0, 0, -EBADMSG, "gpu-memory-utilization", ""},
    {"no number", NAN, 1000 * MIB, 0, 0, 0, 0, -EBADMSG, "gpu-memory-utilization", ""},
    {"huge pool", 0.5, 1000 * MIB, UINT64_MAX, 0, 0, 0, -EBADMSG, "block-size", "more than"},
};

static void test_does_not_fit(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(no_cases) / sizeof(no_cases[0]); i++) {
        const struct no_case *c = &no_cases[i];
        struct memplan_params p = params();
        p.utilization = c->utilization;
        p.memory_bytes = c->memory;
        p.kv_cache_bytes = c->kv;
        p.swap_bytes = c->swap;
        p.blocks_override = c->override;
        p.max_model_len = c->len;
        struct memplan plan = {.blocks = 77};
        struct ek_fault f = {0};
        int r = memplan_make(&p, &need, 2048, &plan, &f);
        if (r != c->code || strcmp(f.field, c->field) != 0 || !strstr(f.msg, c->says))
            fail_msg("%s: %d [%s] %s", c->what, r, f.field, f.msg);
        assert_int_equal(plan.blocks, 77); /* unchanged */
    }
}

/* Follows each remedy and checks that the plan then fits. */
static void test_remedies_fit(void **state)
{
    (void)state;
    struct memplan plan;
    struct memplan_params p = params();
    p.utilization = 0.22;
    p.max_model_len = 1264;
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, NULL), 0);
    p.max_model_len = 1265;
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, NULL), -E2BIG);
    p.max_model_len = 2048;
    p.utilization = 0.24;
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, NULL), 0);
    p.utilization = 0.23;
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, NULL), -E2BIG);

    p = params();
    p.swap_bytes = (uint64_t)(0.29 * (double)GIB);
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, NULL), 0);

    p = params();
    p.utilization = 1;
    p.memory_bytes = 180 * MIB;
    struct ek_plan less = need;
    less.activation_bytes = need.activation_bytes * 1240 / 2048;
    less.slot_bytes = need.slot_bytes * 38 / 64;
    assert_int_equal(memplan_make(&p, &less, 2048, &plan, NULL), 0);
}

static void test_extremes(void **state)
{
    (void)state;
    struct memplan plan;
    struct ek_fault f = {0};
    struct memplan_params p = params();
    struct ek_plan n = need;

    /* All the memory that a number can say: the pool is bounded by 32-bit slot numbers. */
    p.memory_bytes = UINT64_MAX;
    p.utilization = 1;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), 0);
    assert_int_equal(plan.share_bytes, UINT64_MAX - 1);
    assert_int_equal(plan.blocks, UINT32_MAX / 16);
    assert_int_equal(sum(&plan, &p), plan.share_bytes);

    /* Sums that overflow do not fit. */
    n.weight_bytes = UINT64_MAX - 1;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), -E2BIG);
    n = need;
    n.block_bytes = UINT64_MAX;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), -E2BIG);
    n.block_bytes = 0;
    assert_int_equal(memplan_make(&p, &n, 2048, &plan, &f), -EBADMSG);
    assert_int_equal(memplan_make(&p, &need, 0, &plan, &f), -EBADMSG);
    p.block_size = 0;
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, &f), -EBADMSG);

    /* Large blocks: least_blocks within bounds, bytes exact. */
    p = params();
    p.block_size = UINT32_MAX;
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, &f), -EBADMSG);
    p.block_size = 128;
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, &f), 0);
    assert_int_equal(sum(&plan, &p), plan.share_bytes);
}

static void test_text(void **state)
{
    (void)state;
    struct memplan_params p = params();
    struct memplan plan;
    struct ek_buf out = {0};
    p.swap_bytes = 100 * MIB;
    p.kv_most_bytes = 128 * MIB;
    p.weights_note = "int8, 24 matrices";
    p.kv_note = "int8";
    assert_int_equal(memplan_make(&p, &need, 2048, &plan, NULL), 0);
    assert_int_equal(memplan_write(&plan, &p, false, &out), 0);
    assert_string_equal(out.data,
                        "Memory plan: 0.50 of 1000.0 MiB\n"
                        "  weights             100.0 MiB   20.0 %  int8, 24 matrices\n"
                        "  activations          50.0 MiB   10.0 %\n"
                        "  sampling state        2.0 MiB    0.4 %\n"
                        "  KV pool             128.0 MiB   25.6 %  512 blocks of 16 tokens, int8\n"
                        "  swap pool           100.0 MiB   20.0 %  400 blocks\n"
                        "  requests, HTTP       40.0 MiB    8.0 %\n"
                        "  overhead              8.0 MiB    1.6 %\n"
                        "  left over            72.0 MiB   14.4 %\n"
                        "  share               500.0 MiB  100.0 %\n"
                        "A block is 256.0 KiB. Requests may have 2048 tokens;\n"
                        "the KV pool holds 3.99 of that length at once; a step has at most\n"
                        "64 sequences and 2048 tokens.\n");

    ek_buf_clear(&out);
    assert_int_equal(memplan_write(&plan, &p, true, &out), 0);
    json_t *root = json_loadb(out.data, out.len, 0, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "weights")), p.weights_note);
    assert_string_equal(json_string_value(json_object_get(root, "kv_cache")), "int8");
    const json_t *items = json_object_get(root, "bytes");
    assert_int_equal(json_object_size(items), MEMPLAN_ITEMS);
    uint64_t total = (uint64_t)json_integer_value(json_object_get(root, "left_bytes"));
    for (int i = 0; i < MEMPLAN_ITEMS; i++)
        total += (uint64_t)json_integer_value(json_object_get(items, memplan_item_name(i)));
    assert_int_equal(total, json_integer_value(json_object_get(root, "share_bytes")));
    assert_int_equal(json_integer_value(json_object_get(root, "num_blocks")), 512);
    json_decref(root);
    ek_buf_done(&out);
}

/* No line is wider than a terminal, whatever the numbers. */
static void test_text_width(void **state)
{
    (void)state;
    struct memplan_params p = {.memory_bytes = UINT64_MAX,
                               .utilization = 1,
                               .block_size = 128,
                               .swap_bytes = UINT64_MAX / 4,
                               .host_bytes = GIB,
                               .host_apart = true,
                               .kv_note = "int8"};
    struct ek_plan n = need;
    n.block_bytes = 64 * GIB;
    struct memplan plan;
    struct ek_buf out = {0};
    assert_int_equal(memplan_make(&p, &n, 1u << 26, &plan, NULL), 0);
    assert_int_equal(memplan_write(&plan, &p, false, &out), 0);
    for (const char *line = out.data; *line; line = strchr(line, '\n') + 1)
        assert_true(strcspn(line, "\n") <= 80);
    ek_buf_done(&out);

    alloc_fail_at(1);
    assert_int_equal(memplan_write(&plan, &p, true, &out), -ENOMEM);
    assert_true(alloc_failed());
    ek_buf_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_left), cmocka_unit_test(test_states),
        cmocka_unit_test(test_tiers),        cmocka_unit_test(test_fits),
        cmocka_unit_test(test_does_not_fit), cmocka_unit_test(test_remedies_fit),
        cmocka_unit_test(test_extremes),     cmocka_unit_test(test_text),
        cmocka_unit_test(test_text_width),   cmocka_unit_test(test_tables),
        cmocka_unit_test(test_host_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
