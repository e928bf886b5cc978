/*
 * Ranks that compute together: sums and columns through shared memory, a rank
 * that stays away, one device out of several (sizes, cards that differ, failures of one rank), and
 * a small model divided among CPU ranks against the plain computation.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/memplan.h"
#include "kernels/cpu/group.h"
#include "kernels/cpu/pool.h"
#include "kernels/ranks.h"
#include "kernels/registry.h"
#include "kernels/shard.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"
#include "tests/unit/kernels/tiny_plain.h"

/* ---- sums and columns ---- */

enum { RANKS = 3, TEAM = 2, ROWS = 5, WIDTH = 150, STRIDE = 160, ROUNDS = 200 };

struct ranks_crowd {
    struct ek_group *g;
    uint32_t begin[RANKS + 1];
    float data[RANKS][ROWS * STRIDE], sum[ROWS * WIDTH];
};

struct ranks_one {
    struct ranks_crowd *c;
    uint32_t rank;
    struct cpu_pool *pool;
    struct ek_collective *end;
    int result;
    pthread_t thread;
};

static float at(uint32_t rank, uint32_t round, uint32_t row, uint32_t col)
{
    uint64_t seed = ((uint64_t)rank * 1000 + round) * 100000 + row * 1000 + col;
    return tiny_float(&seed) * (rank == 1 ? 1e4f : 1.0f); /* so that the order can be seen */
}

static void fill(struct ranks_one *o, uint32_t round)
{
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t col = 0; col < WIDTH; col++)
            o->c->data[o->rank][row * STRIDE + col] = at(o->rank, round, row, col);
}

static int wrong(const struct ranks_one *o, uint32_t round, bool gathered)
{
    int bad = 0;

    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t col = 0; col < WIDTH; col++) {
            float want = at(0, round, row, col);
            for (uint32_t r = 1; r < RANKS && !gathered; r++)
                want += at(r, round, row, col);
            for (uint32_t r = 0; r < RANKS && gathered; r++)
                if (col >= o->c->begin[r] && col < o->c->begin[r + 1])
                    want = at(r, round, row, col);
            bad += o->c->data[o->rank][row * STRIDE + col] != want;
        }
    return bad;
}

static void talk(void *ctx, uint32_t member)
{
    struct ranks_one *o = ctx;
    struct ek_exchange x = {.data = o->c->data[o->rank],
                            .dtype = EK_F32,
                            .rows = ROWS,
                            .width = WIDTH,
                            .stride = STRIDE,
                            .begin = o->c->begin,
                            .member = member};

    for (uint32_t round = 0; round < ROUNDS; round++) {
        if (member == 0)
            fill(o, round);
        int r = round % 2 ? o->end->ops->gather(o->end, &x) : o->end->ops->reduce(o->end, &x);
        if (member == 0)
            o->result += r < 0 ? 1 : wrong(o, round, round % 2);
    }
}

static void *rank_main(void *arg)
{
    struct ranks_one *o = arg;

    cpu_pool_run(o->pool, talk, o);
    return NULL;
}

static void crowd_open(struct ranks_crowd *c, struct ranks_one *one, uint64_t deadline_us)
{
    assert_int_equal(cpu_group_new(RANKS, 1, deadline_us, &c->g), 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        one[r] = (struct ranks_one){.c = c, .rank = r};
        c->begin[r + 1] = (r + 1) * WIDTH / RANKS;
        assert_int_equal(cpu_pool_new(TEAM, NULL, &one[r].pool), 0);
        assert_int_equal(cpu_group_join(c->g, r, one[r].pool, &one[r].end), 0);
    }
}

static void crowd_close(struct ranks_crowd *c, struct ranks_one *one)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        one[r].end->ops->leave(one[r].end);
        cpu_pool_free(one[r].pool);
    }
    cpu_group_free(c->g);
}

static void test_exchange(void **state)
{
    struct ranks_crowd *c = calloc(1, sizeof(*c));
    struct ranks_one one[RANKS];
    (void)state;

    assert_non_null(c);
    crowd_open(c, one, 0);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&one[r].thread, NULL, rank_main, &one[r]), 0);
    for (uint32_t r = 0; r < RANKS; r++)
        (void)pthread_join(one[r].thread, NULL);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(one[r].result, 0);
    crowd_close(c, one);
    free(c);
}

/* One of three stays away: the others give up after the deadline, for good, and it is named. */
static void test_stall(void **state)
{
    struct ranks_crowd *c = calloc(1, sizeof(*c));
    struct ranks_one one[RANKS];
    (void)state;

    assert_non_null(c);
    crowd_open(c, one, 50000);
    assert_int_equal(cpu_group_missing(c->g), UINT32_MAX);
    for (uint32_t r = 0; r < RANKS; r++)
        if (r != 1)
            assert_int_equal(pthread_create(&one[r].thread, NULL, rank_main, &one[r]), 0);
    for (uint32_t r = 0; r < RANKS; r++)
        if (r != 1)
            (void)pthread_join(one[r].thread, NULL);
    assert_true(one[0].result == ROUNDS && one[2].result == ROUNDS);
    assert_int_equal(cpu_group_missing(c->g), 1);
    assert_int_equal(one[1].end->ops->state(one[1].end), EK_ECOMM);
    cpu_pool_run(one[1].pool, talk, &one[1]); /* late: it does not wait for anybody */
    assert_int_equal(one[1].result, ROUNDS);
    crowd_close(c, one);
    free(c);
}

/* ---- one device out of several ---- */

static void test_info(void **state)
{
    struct ek_device_info cards[3] = {
        {.name = "NVIDIA H200, sm_90", .memory_bytes = 140ull << 30, .free_bytes = 139ull << 30},
        {.name = "NVIDIA L40S, sm_89", .memory_bytes = 44ull << 30, .free_bytes = 44ull << 30},
        {.name = "NVIDIA H200, sm_90", .memory_bytes = 140ull << 30, .free_bytes = 2ull << 30}};
    struct ek_device_info all;
    (void)state;

    ek_ranks_info(cards, 3, false, &all);
    assert_true(all.memory_bytes == 44ull << 30 && all.free_bytes == 2ull << 30);
    assert_string_equal(all.name, "3 x NVIDIA L40S, sm_89");
    assert_non_null(strstr(all.note, "rank 1 has NVIDIA L40S, sm_89 (44.0 GiB), rank "));
    assert_non_null(strstr(all.note, "has NVIDIA H200, sm_90 (140.0 GiB)"));
    (void)snprintf(cards[2].note, sizeof(cards[2].note), "Links are slow.");
    ek_ranks_info(cards, 3, false, &all);
    assert_non_null(strstr(all.note, "The cards differ"));
    assert_non_null(strstr(all.note, "slowest. Links are slow."));
    cards[2].note[0] = '\0';
    cards[1] = cards[0];
    ek_ranks_info(cards, 3, false, &all);
    assert_string_equal(all.name, "3 x NVIDIA H200, sm_90");
    assert_string_equal(all.note, "");
    cards[1].memory_bytes = 70ull << 30; /* the same card, but divided */
    ek_ranks_info(cards, 2, false, &all);
    assert_non_null(strstr(all.note, "The cards differ"));
}

static void test_plan(void **state)
{
    const struct ek_plan plan[2] = {{100, 20, 3, 40, 8, 5, 50, 4, 70, 6},
                                    {90, 25, 3, 40, 9, UINT64_MAX, 49, 5, 69, 7}};
    struct ek_plan all;
    (void)state;

    ek_ranks_plan(plan, 2, false, &all);
    assert_true(all.weight_bytes == 100 && all.activation_bytes == 25 && all.block_bytes == 40 &&
                all.state_bytes == 9);
    assert_true(all.host_weight_bytes == 50 && all.staging_bytes == 5); /* of the larger rank */
    assert_true(all.offload_most_bytes == 70 && all.staging_most_bytes == 7);
    ek_ranks_plan(plan, 2, true, &all);
    assert_true(all.weight_bytes == 190 && all.activation_bytes == 45 && all.block_bytes == 80);
    assert_true(all.slot_bytes == 6 && all.state_bytes == 17 && all.overhead_bytes == UINT64_MAX);
}

/* A backend that does what the test says and nothing else. */
static struct {
    _Atomic uint32_t aborts; /* by the threads that load */
    uint32_t opened, closed, blocks[2];
    int forward[2], wait[2], resize[2], load[2];
    int32_t error[2], token[2];
    void *host[2];
} say;

struct said {
    uint32_t rank;
};

static struct said *said_of(struct ek_device *d)
{
    return (struct said *)(void *)d;
}

static int say_open(const struct ek_open_params *p, struct ek_device **ret_device,
                    struct ek_fault *fault)
{
    (void)fault;
    struct said *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->rank = p->rank;
    say.opened++;
    *ret_device = (struct ek_device *)(void *)s;
    return 0;
}

static void say_close(struct ek_device *d)
{
    say.closed += d != NULL;
    free(d);
}

static int say_load(struct ek_device *d, const struct ek_plan_request *q,
                    const struct ek_weight_files *files, ek_progress_fn progress, void *ctx,
                    struct ek_fault *fault)
{
    (void)files;
    if (say.load[said_of(d)->rank] < 0) {
        ek_fault_write(fault, "device", "rank %u cannot load", said_of(d)->rank);
        return say.load[said_of(d)->rank];
    }
    assert_int_equal(q->graph->rank, said_of(d)->rank);
    if (progress)
        progress(ctx, 10, 10);
    return 0;
}

static int say_kv_open(struct ek_device *d, const struct ek_kv_params *p)
{
    say.blocks[said_of(d)->rank] = p->blocks;
    return 0;
}

static int say_kv_resize(struct ek_device *d, uint32_t blocks)
{
    uint32_t rank = said_of(d)->rank;
    if (say.resize[rank] < 0)
        return say.resize[rank];
    say.blocks[rank] = blocks;
    return 0;
}

static int say_forward(struct ek_device *d, const struct ek_step *step)
{
    (void)step;
    return say.forward[said_of(d)->rank];
}

static int say_sample(struct ek_device *d, const struct ek_step *step, const struct ek_masks *masks)
{
    (void)d;
    (void)step;
    (void)masks;
    return 0;
}

static int say_wait(struct ek_device *d, uint64_t id, struct ek_result *ret_result, size_t bytes,
                    uint64_t timeout_us)
{
    uint32_t rank = said_of(d)->rank;
    (void)bytes;
    (void)timeout_us;
    if (say.wait[rank] < 0)
        return say.wait[rank];
    memset(ret_result, 0, ek_result_size(1));
    ret_result->step = id;
    ret_result->error = say.error[rank];
    ret_result->seqs = say.error[rank] == 0;
    ret_result->seq[0].tokens = 1;
    ret_result->seq[0].token[0] = say.token[rank];
    return 0;
}

static int say_group(const struct ek_open_params *p, struct ek_group **ret_group,
                     struct ek_fault *fault)
{
    (void)p;
    (void)fault;
    *ret_group = (struct ek_group *)(void *)&say;
    return 0;
}

static void say_abort(struct ek_group *g)
{
    (void)g;
    atomic_fetch_add(&say.aborts, 1);
}

static void say_free(struct ek_group *g)
{
    (void)g;
}

/* Rank 0 has 3 bytes of a block and no recurrent state, rank 1 has 2 and 4. */
static size_t say_kv_bytes(const struct ek_device *d, uint32_t tier)
{
    static const size_t bytes[2][2] = {{3, 0}, {2, 4}};
    const struct said *s = (const struct said *)(const void *)d;

    return bytes[s->rank][tier == EK_TIER_STATE];
}

static int say_kv_read(struct ek_device *d, uint32_t tier, uint32_t block, void *to)
{
    if (say_kv_bytes(d, tier) == 0)
        return -EINVAL;
    memset(to, (int)('a' + block + said_of(d)->rank), say_kv_bytes(d, tier));
    return 0;
}

static int say_kv_write(struct ek_device *d, uint32_t tier, uint32_t block, const void *from)
{
    const char *at = from;

    for (size_t i = 0; i < say_kv_bytes(d, tier); i++)
        if (at[i] != (char)('a' + block + said_of(d)->rank))
            return -EBADMSG;
    return say_kv_bytes(d, tier) > 0 ? 0 : -EINVAL;
}

static int say_kv_host(struct ek_device *d, void *at)
{
    say.host[said_of(d)->rank] = at;
    return 0;
}

static const struct ek_backend say_backend = {.name = "say",
                                              .open = say_open,
                                              .close = say_close,
                                              .load = say_load,
                                              .kv_open = say_kv_open,
                                              .kv_resize = say_kv_resize,
                                              .forward = say_forward,
                                              .sample = say_sample,
                                              .wait = say_wait,
                                              .kv_bytes = say_kv_bytes,
                                              .kv_read = say_kv_read,
                                              .kv_write = say_kv_write,
                                              .kv_host = say_kv_host,
                                              .group_new = say_group,
                                              .group_abort = say_abort,
                                              .group_free = say_free};

static const struct tiny_params model = {.dtype = EK_F32,
                                         .layers = 2,
                                         .hidden = 32,
                                         .q_heads = 4,
                                         .kv_heads = 2,
                                         .head_dim = 8,
                                         .rotary = 8,
                                         .ffn = 96,
                                         .vocab = 100,
                                         .qk_norm = true,
                                         .bias = true,
                                         .act = EK_ACT_SILU};

static void test_one_fails(void **state)
{
    static const struct {
        int forward[2], wait[2];
        int32_t error[2], token[2];
        int code; /* of the step */
        uint32_t aborts;
    } cases[] = {
        {.token = {7, 7}},
        {.token = {7, 8}, .code = EK_ECOMM, .aborts = 1},
        {.forward = {0, -EINVAL}, .code = EK_ECOMM, .aborts = 1},
        {.forward = {0, EK_EDEVICE}, .code = EK_EDEVICE, .aborts = 1},
        {.forward = {EK_EDEVMEM, 0}, .code = EK_EDEVMEM}, /* nobody has begun: as with one */
        {.wait = {-ETIMEDOUT, 0}, .code = -ETIMEDOUT},
        {.wait = {0, -ETIMEDOUT}, .code = EK_ECOMM, .aborts = 1},
        {.wait = {-ETIMEDOUT, EK_EDEVICE}, .code = EK_EDEVICE, .aborts = 1}, /* seen meanwhile */
        {.wait = {-ETIMEDOUT, -EINVAL}, .code = EK_ECOMM, .aborts = 1},
        {.wait = {EK_EDEVICE, 0}, .code = EK_EDEVICE, .aborts = 1},
        {.error = {EK_ECOMM, EK_EDEVICE}, .code = EK_EDEVICE, .aborts = 1},
        {.error = {EK_ECOMM, EK_ECOMM}, .code = EK_ECOMM, .aborts = 1},
        {.error = {-EBADMSG, -EBADMSG}, .code = -EBADMSG},
    };
    struct tiny *t = tiny_new(&model);
    const struct ek_open_params open = {.ranks = 2, .each = &say_backend};
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tiny_device x;
        memset(&say, 0, sizeof(say));
        assert_int_equal(tiny_open_on(ek_ranks_backend(&say_backend), t, &open, 16, 10, &x), 0);
        memcpy(say.forward, cases[i].forward, sizeof(say.forward));
        memcpy(say.wait, cases[i].wait, sizeof(say.wait));
        memcpy(say.error, cases[i].error, sizeof(say.error));
        memcpy(say.token, cases[i].token, sizeof(say.token));
        assert_int_equal(tiny_run(&x, NULL), cases[i].code);
        assert_int_equal(say.aborts, cases[i].aborts);
        tiny_close(&x);
        assert_int_equal(say.closed, 2);
    }
    tiny_free(t);
}

static void test_pool_and_load(void **state)
{
    struct tiny *t = tiny_new(&model);
    const struct ek_open_params open = {.ranks = 2, .each = &say_backend};
    const struct ek_backend *b = ek_ranks_backend(&say_backend);
    struct tiny_device x;
    struct ek_fault f = {.msg = ""};
    (void)state;

    memset(&say, 0, sizeof(say));
    assert_int_equal(tiny_open_on(b, t, &open, 16, 10, &x), 0);
    assert_int_equal(b->kv_resize(x.d, 20), 0);
    assert_true(say.blocks[0] == 20 && say.blocks[1] == 20);
    say.resize[1] = EK_EDEVMEM;
    assert_int_equal(b->kv_resize(x.d, 30), EK_EDEVMEM);
    assert_true(say.blocks[0] == 20 && say.blocks[1] == 20); /* all as they were */
    tiny_close(&x);

    memset(&say, 0, sizeof(say));
    say.load[0] = EK_ECOMM; /* because of the other one */
    say.load[1] = EK_EDEVMEM;
    struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {8, 2, 8, 0, 0, 0}, .logit_rows = 2, .block_size = 16};
    struct ek_device *d = NULL;
    assert_int_equal(b->open(&open, &d, &f), 0);
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, &f), EK_EDEVMEM);
    assert_string_equal(f.msg, "rank 1 cannot load");
    b->close(d);
    tiny_free(t);
}

/* What is kept of a block or a state is each rank's part; who has none is not asked. */
static void test_moved(void **state)
{
    struct tiny *t = tiny_new(&model);
    const struct ek_open_params open = {.ranks = 2, .each = &say_backend};
    const struct ek_backend *b = ek_ranks_backend(&say_backend);
    struct tiny_device x;
    char at[6] = "";
    (void)state;

    memset(&say, 0, sizeof(say));
    assert_int_equal(tiny_open_on(b, t, &open, 16, 10, &x), 0);
    assert_int_equal(b->kv_bytes(x.d, EK_TIER_HOST), 5);
    assert_int_equal(b->kv_read(x.d, EK_TIER_HOST, 2, at), 0);
    assert_string_equal(at, "cccdd");
    assert_int_equal(b->kv_write(x.d, EK_TIER_HOST, 2, at), 0);
    assert_int_equal(b->kv_bytes(x.d, EK_TIER_STATE), 4);
    assert_int_equal(b->kv_read(x.d, EK_TIER_STATE, 0, at), 0);
    assert_string_equal(at, "bbbbd");
    assert_int_equal(b->kv_write(x.d, EK_TIER_STATE, 0, at), 0);
    assert_int_equal(b->kv_write(x.d, EK_TIER_STATE, 1, at), -EBADMSG);
    tiny_close(&x);
    tiny_free(t);
}

/* Of memory for the host tiers each rank has its part, on pages of its own: 16000 blocks of 3 bytes
 * are one, 32000 are two. */
static void test_given_host(void **state)
{
    static char memory[8 * EK_HOST_PAGE];
    struct tiny *t = tiny_new(&model);
    const struct ek_open_params open = {.ranks = 2, .each = &say_backend};
    const struct ek_backend *b = ek_ranks_backend(&say_backend);
    const struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {8, 2, 8, 0, 0, 0}, .logit_rows = 2, .block_size = 16};
    (void)state;

    for (uint32_t pages = 0; pages <= 2; pages++) {
        const struct ek_kv_params kv = {
            .blocks = 10, .host_blocks = pages * 16000, .block_size = 16};
        struct ek_device *d = NULL;
        memset(&say, 0, sizeof(say));
        assert_int_equal(b->open(&open, &d, NULL), 0);
        assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, NULL), 0);
        if (pages > 0)
            assert_int_equal(b->kv_host(d, memory), 0);
        assert_int_equal(b->kv_open(d, &kv), 0);
        assert_ptr_equal(say.host[0], pages > 0 ? memory : NULL);
        assert_ptr_equal(say.host[1], pages > 0 ? memory + (size_t)pages * EK_HOST_PAGE : NULL);
        b->close(d);
    }
    struct ek_backend without = say_backend;
    const struct ek_open_params other = {.ranks = 2, .each = &without};
    struct ek_device *d = NULL;
    without.kv_host = NULL;
    assert_int_equal(b->open(&other, &d, NULL), 0);
    assert_int_equal(b->kv_host(d, memory), -ENOTSUP);
    b->close(d);
    tiny_free(t);
}

static void test_refused(void **state)
{
    struct ek_backend alone = say_backend;
    struct ek_open_params open = {.ranks = 2, .each = &alone};
    const struct ek_backend *b = ek_ranks_backend(&say_backend);
    struct ek_device *d = NULL;
    struct ek_fault f = {.msg = ""};
    (void)state;

    alone.group_new = NULL;
    assert_int_equal(b->open(&open, &d, &f), -ENOTSUP);
    assert_non_null(strstr(f.msg, "runs a model on one device"));
    open.each = &say_backend;
    open.ranks = EK_MOST_RANKS + 1;
    assert_int_equal(b->open(&open, &d, &f), -EBADMSG);
    assert_null(d);
}

/* ---- a model ---- */

static void check_logits(const struct tiny *t, struct tiny_device *x, const int32_t *token,
                         uint32_t n, const double *want)
{
    static const uint32_t table[] = {3, 1, 4, 2};
    const struct ek_slot_set greedy = {.slot = 1, .sampling.top_p = 1.0f, .top = EK_TOP_MOST};
    double most = 0;

    tiny_set(x, &greedy);
    tiny_add(x, 1, token, 0, 5, table, false);
    assert_int_equal(tiny_run(x, NULL), 0);
    tiny_add(x, 1, token, 5, n - 5, table, true);
    assert_int_equal(tiny_run(x, NULL), 0);
    const struct ek_result_seq *r = &x->result->seq[0];
    assert_int_equal(r->top, EK_TOP_MOST);
    for (uint32_t i = 0; i < r->top; i++)
        most = fmax(most, fabs((double)r->top_logit[i] - want[r->top_id[i]]));
    assert_true(most < 1e-4);
    (void)t;
}

static void test_model(void **state)
{
    enum { TOKENS = 12 };
    struct tiny_params p = model;
    int32_t token[TOKENS];
    (void)state;

    for (int experts = 0; experts < 3; experts++) {
        p.experts = experts ? 6 : 0;
        p.top = 2;
        p.sinks = p.expert_bias = experts == 2;
        p.act = experts == 2 ? EK_ACT_SWIGLU_CLAMPED : EK_ACT_SILU;
        struct tiny *t = tiny_new(&p);
        double *want = calloc(p.vocab, sizeof(*want));
        assert_non_null(want);
        for (uint32_t i = 0; i < TOKENS; i++)
            token[i] = (int32_t)(i * 37 % p.vocab);
        tiny_reference(t, token, TOKENS, want);
        for (uint32_t ranks = 2; ranks <= 4; ranks += 2)
            for (uint32_t threads = 1; threads <= 3 * ranks; threads += 3 * ranks - 1) {
                const struct ek_open_params open = {
                    .ranks = ranks, .threads = threads, .each = ek_backend_find("cpu", NULL)};
                struct tiny_device x;
                assert_int_equal(tiny_open_on(ek_ranks_backend(open.each), t, &open, 8, 10, &x), 0);
                check_logits(t, &x, token, TOKENS, want);
                tiny_close(&x);
            }
        free(want);
        tiny_free(t);
    }
}

/* A rank whose steps never come: the others' step ends with the code for it, in time. */
static void test_lost_rank(void **state)
{
    struct tiny *t = tiny_new(&model);
    const struct ek_backend *cpu = ek_backend_find("cpu", NULL);
    const struct ek_open_params all = {.ranks = 2, .threads = 2, .stall_us = 50000};
    struct ek_group *g = NULL;
    struct tiny_device x;
    struct ek_graph graph;
    (void)state;

    assert_int_equal(cpu->group_new(&all, &g, NULL), 0);
    struct ek_open_params open = all;
    open.group = g;
    struct tiny part = *t;
    assert_int_equal(ek_shard(&t->g, 0, 2, &graph, NULL), 0);
    part.g = graph;
    assert_int_equal(tiny_open_on(cpu, &part, &open, 8, 10, &x), 0);
    const int32_t token[] = {1, 2, 3};
    const uint32_t table[] = {1};
    uint64_t begin = ek_now_us();
    tiny_add(&x, 0, token, 0, 3, table, true);
    assert_int_equal(tiny_run(&x, NULL), EK_ECOMM);
    assert_true(ek_now_us() - begin >= 50000);
    tiny_add(&x, 0, token, 0, 3, table, true);
    assert_int_equal(tiny_run(&x, NULL), EK_ECOMM); /* for good */
    tiny_close(&x);
    cpu->group_free(g);
    ek_graph_free(&graph);
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchange),   cmocka_unit_test(test_stall),
        cmocka_unit_test(test_info),       cmocka_unit_test(test_plan),
        cmocka_unit_test(test_one_fails),  cmocka_unit_test(test_pool_and_load),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_model),
        cmocka_unit_test(test_lost_rank),  cmocka_unit_test(test_moved),
        cmocka_unit_test(test_given_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
