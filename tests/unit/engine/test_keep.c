/* Cached prefixes over a planned restart: what comes back is what went, in the order of worth; a
 * file that is damaged, cut short or of something else is a miss, and never a wrong token (the null
 * backend computes tokens from what the blocks hold). */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/engine/engine_inside.h"
#include "server/engine/warm_file.h"
#include "tests/unit/alloc.h"
#include "tests/unit/engine/engine_world.h"

#define PROMPTS 12u
#define LONG    40u /* tokens of a prompt: five blocks, of which four can be hit */

static uint32_t snapshots; /* of recurrent state; 0: the model has none */
static char dir[] = "/tmp/ek-keep-XXXXXX", path[64];

static struct keep_told {
    struct engine_warm_report last;
    uint32_t times;
    char why[256];
} told;

static void on_report(void *ctx, const struct engine_warm_report *r)
{
    (void)ctx;
    told.last = *r;
    told.times++;
    (void)snprintf(told.why, sizeof(told.why), "%s", r->why ? r->why : "");
}

static int make_dir(void **state)
{
    (void)state;
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)snprintf(path, sizeof(path), "%s/prefixes", mkdtemp(dir));
    return 0;
}

static int with_states(void **state)
{
    (void)state;
    snapshots = 3 * PROMPTS;
    return 0;
}

static int without_states(void **state)
{
    (void)state;
    snapshots = 0;
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(dir);
}

static void prepare_kept(struct engine_world *w, uint32_t blocks, uint32_t host_blocks)
{
    prepare(w, 2);
    null_close(w->d);
    w->p.blocks = blocks;
    w->p.host_blocks = host_blocks;
    w->p.offload_blocks = host_blocks > 1 ? host_blocks - 1 : 0;
    w->p.states = snapshots > 0 ? w->p.max_seqs + snapshots : 0;
    w->p.states_every = 8;
    w->p.hash_secret[0] = (uint64_t)rand(); /* drawn at each start */
    w->p.keep = (struct engine_keep){.path = path, .most_bytes = 1u << 30, .report = on_report};
    (void)snprintf(w->p.keep.about.version, WARM_TEXT, "1");
    (void)snprintf(w->p.keep.about.layout, WARM_TEXT, "null");
    open_device(w);
    told = (struct keep_told){0};
}

static struct request *submit_long(struct engine_world *w, uint32_t n, uint64_t salt)
{
    int32_t prompt[LONG];
    for (uint32_t i = 0; i < LONG; i++)
        prompt[i] = (int32_t)((n * 50 + i) % VOCAB);
    struct req_ask ask = {.prompt = prompt,
                          .prompt_tokens = LONG,
                          .max_new_tokens = 9,
                          .cache_salt = salt,
                          .sampling.top_p = 1,
                          .sampling.seed = n,
                          .arrival_us = ek_now_us()};
    struct request *r = request_new(&ask);
    assert_int_equal(engine_submit(w->e, r, NULL, NULL), 0);
    return r;
}

static void check_long(const struct request *r)
{
    uint64_t sum = 0;
    assert_int_equal(atomic_load(&r->out_count), 9);
    for (uint32_t i = 0; i < LONG; i++)
        sum += null_mark(r->ask.prompt[i], i);
    for (uint32_t i = 0; i < 9; i++) {
        int32_t token = null_next(sum, r->ask.sampling.seed, LONG + i, VOCAB);
        assert_int_equal(r->out[i].id, token);
        sum += null_mark(token, LONG + i);
    }
}

/* One after the other, in this order. Returns the tokens that were found in the cache. */
static uint64_t ask_all(struct engine_world *w, uint32_t first, uint32_t count, uint64_t salt)
{
    struct engine_stats st;
    engine_stats(w->e, &st);
    uint64_t before = st.prefix_hits;
    for (uint32_t n = first; n < first + count; n++) {
        struct request *r = submit_long(w, n, salt);
        wait_done(w, r);
        check_long(r);
        request_unref(r);
    }
    engine_stats(w->e, &st);
    return st.prefix_hits - before;
}

static void leave(struct engine_world *w)
{
    engine_stop(w->e);
    engine_keep(w->e);
    assert_null(w->d->violation);
    assert_null(sched_check(w->e->sched));
    close_world(w);
}

/* A server that served all prompts, and its file. */
static void leave_file(uint32_t blocks, uint32_t host_blocks)
{
    struct engine_world w;
    (void)unlink(path);
    prepare_kept(&w, blocks, host_blocks);
    start(&w);
    (void)ask_all(&w, 0, PROMPTS, 0);
    leave(&w);
    assert_string_equal(told.why, "");
    assert_int_equal(told.times, 1);
}

static void everything_comes_back(void **state)
{
    (void)state;
    struct stat st;
    struct engine_world w;
    leave_file(129, 0);
    assert_int_equal(told.last.blocks, PROMPTS * 6); /* 48 tokens of each are in the cache */
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(st.st_size, told.last.bytes);
    prepare_kept(&w, 129, 0);
    start(&w);
    assert_true(told.last.restored && told.last.blocks == PROMPTS * 6 && told.last.damaged == 0);
    assert_int_equal(access(path, F_OK), -1); /* used once */
    assert_int_equal(ask_all(&w, 0, PROMPTS, 0), PROMPTS * 32);
    leave(&w);
}

/* A pool with room for four of them keeps the four last ones, and lets go of the first first. */
static void the_latest_are_kept(void **state)
{
    (void)state;
    struct engine_world w;
    leave_file(129, 0);
    prepare_kept(&w, 25, 0);
    start(&w);
    assert_int_equal(told.last.blocks, 24);
    assert_int_equal(ask_all(&w, PROMPTS - 3, 3, 0), 3 * 32);
    leave(&w);
    leave_file(129, 0);
    prepare_kept(&w, 129, 0);
    w.p.keep.most_bytes = 24 * (64 + warm_file_row_bytes(8)); /* a smaller file, next time */
    start(&w);
    leave(&w);
    assert_int_equal(told.last.blocks, 24);
    prepare_kept(&w, 129, 0);
    start(&w);
    assert_int_equal(ask_all(&w, PROMPTS - 4, 4, 0), 4 * 32);
    assert_int_equal(ask_all(&w, 0, PROMPTS - 4, 0), 0);
    leave(&w);
}

/* What the pool evicted lies in the host tier, and comes back there. */
static void the_host_tier_comes_back(void **state)
{
    (void)state;
    struct engine_world w;
    leave_file(25, 60);
    assert_true(told.last.blocks > 40);
    prepare_kept(&w, 25, 60);
    start(&w);
    struct engine_stats st;
    engine_stats(w.e, &st);
    assert_int_equal(st.blocks_cached, 24);
    assert_true(st.host_blocks_cached > 20);
    uint64_t hits = ask_all(&w, 4, PROMPTS - 4, 0);
    assert_true(hits >= 6 * 32);
    engine_stats(w.e, &st);
    assert_true(st.offload_hits > 0);
    leave(&w);
}

/* A prefix is of use up to a snapshot, so what follows its last one is not kept: each has one
 * before its prompt's last token and one where its answer begins. */
static void snapshots_come_back(void **state)
{
    (void)state;
    struct engine_world w;
    (void)unlink(path);
    prepare_kept(&w, 129, 0);
    start(&w);
    (void)ask_all(&w, 0, PROMPTS, 0);
    uint64_t warm = ask_all(&w, 0, PROMPTS, 0);
    uint32_t kept = w.e->sched->states.kept;
    leave(&w);
    assert_int_equal(warm, PROMPTS * 32);
    assert_int_equal(kept, PROMPTS * 2);
    assert_int_equal(told.last.blocks, PROMPTS * 5); /* of six */
    uint64_t each = 64 + warm_file_row_bytes(8);
    assert_true(told.last.bytes >= PROMPTS * 5 * each + kept * sizeof(struct null_state));
    prepare_kept(&w, 129, 0);
    start(&w);
    assert_true(told.last.restored && told.last.blocks == PROMPTS * 5);
    assert_int_equal(w.e->sched->states.kept, kept);
    assert_int_equal(w.e->sched->states.taken, 0);
    assert_null(sched_check(w.e->sched));
    assert_int_equal(ask_all(&w, 0, PROMPTS, 0), warm);
    leave(&w);
}

/* Fewer of them, or a smaller file, next time: the latest prompts have theirs. */
static void the_latest_snapshots_are_kept(void **state)
{
    (void)state;
    struct engine_world w;
    leave_file(129, 0);
    snapshots = 7;
    prepare_kept(&w, 129, 0);
    start(&w);
    assert_int_equal(w.e->sched->states.kept, 7);
    assert_int_equal(ask_all(&w, PROMPTS - 1, 1, 0), 32);
    assert_int_equal(ask_all(&w, 0, 1, 0), 0);
    leave(&w);
    (void)with_states(state);
    leave_file(129, 0);
    prepare_kept(&w, 129, 0);
    w.p.keep.most_bytes = 2000;
    start(&w);
    leave(&w);
    assert_true(told.last.bytes <= 2000 + 512); /* beside its head */
    prepare_kept(&w, 129, 0);
    start(&w);
    assert_int_equal(ask_all(&w, PROMPTS - 1, 1, 0), 32);
    assert_int_equal(ask_all(&w, 0, 1, 0), 0);
    leave(&w);
}

/* Those of a salt only where that was asked for. */
static void salts_stay_apart(void **state)
{
    (void)state;
    for (int owned = 0; owned < 2; owned++) {
        struct engine_world w;
        (void)unlink(path);
        prepare_kept(&w, 129, 0);
        w.p.keep.owned = owned;
        memcpy(w.p.keep.about.secret, "0123456789abcdef", WARM_SECRET);
        start(&w);
        (void)ask_all(&w, 0, 2, 77);
        (void)ask_all(&w, 0, 1, 0);
        leave(&w);
        assert_int_equal(told.last.blocks, owned ? 18 : 6);
        prepare_kept(&w, 129, 0);
        w.p.keep.owned = owned;
        start(&w);
        assert_memory_equal(w.e->p.keep.about.secret, "0123456789abcdef", WARM_SECRET);
        assert_int_equal(ask_all(&w, 0, 2, 77), owned ? 64 : 0);
        assert_int_equal(ask_all(&w, 0, 1, 78), 0);
        leave(&w);
        /* who does not ask for salted ones takes none from a file that has some */
        prepare_kept(&w, 129, 0);
        start(&w);
        assert_int_equal(ask_all(&w, 1, 1, 77), 0);
        leave(&w);
        (void)unlink(path);
    }
}

static void others_are_a_miss(void **state)
{
    (void)state;
    static const char *const why[] = {"version 1 wrote it", "it is of another model",
                                      "it is of null, and this is null2",
                                      "its blocks are of 8 tokens and 64 bytes, not 16 and 128"};
    for (int i = 0; i < 4; i++) {
        struct engine_world w;
        leave_file(129, 0);
        prepare_kept(&w, 129, 0);
        if (i == 0)
            w.p.keep.about.version[0] = '2';
        if (i == 1)
            w.p.keep.about.model = 5;
        if (i == 2)
            (void)snprintf(w.p.keep.about.layout, WARM_TEXT, "null2");
        if (i == 3) {
            null_close(w.d);
            w.p.block_size = 16;
            open_device(&w);
        }
        start(&w);
        assert_string_equal(told.why, why[i]);
        assert_int_equal(ask_all(&w, 0, 2, 0), 0);
        w.p.keep.path = NULL;
        engine_stop(w.e);
        close_world(&w);
        assert_int_equal(access(path, F_OK), -1);
    }
}

/* A byte is changed somewhere, or the file ends early: no token is wrong, and it is told. */
static void damage_is_a_miss(void **state)
{
    (void)state;
    char *whole = NULL;
    size_t size = 0;
    leave_file(129, 0);
    FILE *f = fopen(path, "re");
    FILE *copy = open_memstream(&whole, &size);
    for (int c; (c = fgetc(f)) != EOF;)
        (void)fputc(c, copy);
    (void)fclose(f);
    (void)fclose(copy);
    srand(20261123);
    for (uint32_t i = 0; i < 60; i++) {
        struct engine_world w;
        size_t at = i < 20 ? (size_t)i * 16 : (size_t)rand() % size;
        size_t length = i % 3 == 0 ? at : size; /* cut there, or changed there */
        f = fopen(path, "we");
        assert_int_equal(fchmod(fileno(f), 0600), 0);
        whole[at] ^= 0x41;
        assert_int_equal(fwrite(whole, 1, length, f), length);
        whole[at] ^= 0x41;
        (void)fclose(f);
        prepare_kept(&w, 129, 0);
        start(&w);
        bool told_so = told.why[0] != '\0' || told.last.damaged > 0;
        assert_true(told.last.restored && told_so);
        (void)ask_all(&w, 0, PROMPTS, 0); /* which checks each token */
        engine_stop(w.e);
        close_world(&w);
        assert_int_equal(access(path, F_OK), -1);
    }
    free(whole);
}

/* Where it cannot be written there is none, nor a part of one. */
static void a_full_disk_leaves_nothing(void **state)
{
    (void)state;
    struct engine_world w;
    struct rlimit was, small;
    char fresh[80];
    prepare_kept(&w, 129, 0);
    start(&w);
    (void)ask_all(&w, 0, PROMPTS, 0);
    engine_stop(w.e);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = 2000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    engine_keep(w.e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    close_world(&w);
    assert_string_equal(told.why, strerror(EFBIG));
    assert_int_equal(access(path, F_OK), -1);
    (void)snprintf(fresh, sizeof(fresh), "%s.new", path);
    assert_int_equal(access(fresh, F_OK), -1);
    prepare_kept(&w, 129, 0);
    w.p.keep.path = "/nowhere/at/all";
    start(&w);
    (void)ask_all(&w, 0, 1, 0);
    leave(&w);
    assert_string_equal(told.why, strerror(ENOENT));
}

static void wait_planned(struct engine_world *w, uint64_t planned)
{
    struct engine_stats st;
    do
        engine_stats(w->e, &st);
    while (st.revivals.planned < planned);
}

static void wait_released(struct engine_world *w)
{
    struct engine_stats st;
    do
        engine_stats(w->e, &st);
    while (st.device != ENGINE_DEVICE_RELEASED);
}

/* A device that is restarted by plan has what it had, and so has one that was released. */
static void a_restarted_device_has_it(void **state)
{
    (void)state;
    struct engine_world w;
    struct engine_stats st;
    prepare_kept(&w, 129, 0);
    w.d->revivals = 10;
    w.p.revivals = 1;
    assert_int_equal(engine_new(&w.p, &null_reviving_backend, w.d, &w.e, NULL), 0);
    (void)ask_all(&w, 0, PROMPTS, 0);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(engine_device_order(w.e, ENGINE_RESTART, NULL), 0);
        wait_planned(&w, i + 1);
        engine_stats(w.e, &st);
        assert_int_equal(st.warmth.restored, (i + 1) * PROMPTS * 6);
        assert_int_equal(ask_all(&w, 0, PROMPTS, 0), PROMPTS * 32);
    }
    assert_int_equal(engine_device_order(w.e, ENGINE_RELEASE, NULL), 0);
    wait_released(&w);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(engine_device_order(w.e, ENGINE_ACQUIRE, NULL), 0);
    assert_int_equal(ask_all(&w, 0, PROMPTS, 0), PROMPTS * 32);
    leave(&w);
}

static void wait_pauses(struct engine_world *w, uint64_t pauses)
{
    struct engine_stats st;
    do
        engine_stats(w->e, &st);
    while (ek_hist_total(&st.revivals.pause) < pauses);
}

static uint32_t host_cached(struct engine_world *w)
{
    struct engine_stats st;
    engine_stats(w->e, &st);
    return st.host_blocks_cached;
}

/* The host tier outlives its device, with a file beside it and without: after a plan and after a
 * signal from outside; not after a fault or after what may have been for memory. */
static void the_host_tier_outlives_its_device(void **state)
{
    (void)state;
    static const struct {
        int signal;
        bool planned, fault, stays;
        uint32_t tries; /* that find no memory */
    } ends[] = {{0, true, false, true, 0},         {SIGABRT, false, false, true, 0},
                {SIGKILL, false, false, false, 0}, {0, true, false, true, 0},
                {SIGSEGV, false, true, false, 0},  {SIGSEGV, false, false, true, 0},
                {0, true, false, false, 1}};
    for (int file = 0; file < 2; file++) {
        struct engine_world w;
        uint64_t planned = 0;
        prepare_kept(&w, 25, 60);
        w.p.keep.path = file ? path : NULL;
        w.d->revivals = 10;
        w.p.revivals = 10;
        assert_int_equal(engine_new(&w.p, &null_reviving_backend, w.d, &w.e, NULL), 0);
        (void)ask_all(&w, 0, PROMPTS, 0);
        for (uint32_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
            const uint32_t had = host_cached(&w);
            assert_true(had > 20);
            w.d->revive_fault = ends[i].fault;
            w.d->revive_signal = ends[i].signal;
            w.d->revive_code = -ENOMEM;
            atomic_store(&w.d->revive_fails, ends[i].tries);
            if (ends[i].planned)
                assert_int_equal(engine_device_order(w.e, ENGINE_RESTART, NULL), 0);
            else
                atomic_store(&w.d->vanished, 1);
            wait_pauses(&w, i + 1);
            planned += ends[i].planned;
            wait_planned(&w, planned);
            const bool back = file && ends[i].tries; /* from there */
            if (!back)
                assert_int_equal(host_cached(&w), ends[i].stays ? had : 0);
            const uint64_t hits = ask_all(&w, 0, PROMPTS - 4, 0);
            assert_true(ends[i].stays || back ? hits >= 4 * 32 : hits == 0);
            (void)ask_all(&w, 0, PROMPTS, 0);
        }
        engine_stop(w.e);
        close_world(&w);
        (void)unlink(path);
    }
}

/* Also for who runs meanwhile; copies that were to come are not done to another's snapshot. */
static void a_planned_restart_has_snapshots(void **state)
{
    (void)state;
    struct engine_world w;
    struct engine_stats st;
    prepare_kept(&w, 129, 0);
    w.d->revivals = 10;
    w.p.revivals = 1;
    assert_int_equal(engine_new(&w.p, &null_reviving_backend, w.d, &w.e, NULL), 0);
    (void)ask_all(&w, 0, PROMPTS, 0);
    for (uint32_t i = 0; i < 3; i++) {
        struct request *r = submit_long(&w, i, 0); /* runs meanwhile, or waits */
        assert_int_equal(engine_device_order(w.e, ENGINE_RESTART, NULL), 0);
        wait_planned(&w, i + 1);
        wait_done(&w, r);
        check_long(r);
        request_unref(r);
        assert_int_equal(ask_all(&w, 0, PROMPTS, 0), PROMPTS * 32);
    }
    engine_stats(w.e, &st);
    assert_true(st.warmth.restored >= 3 * PROMPTS * 5);
    leave(&w);
    (void)unlink(path);
}

/* Orders and resets that come while a device that is there again gets its cache back. */
static struct ek_backend busy_backend;
static struct engine_world *busy;
static enum engine_order busy_order;
static bool busy_reset;

static void interrupt_once(void)
{
    if (busy_order != ENGINE_ORDER_NONE)
        assert_int_equal(engine_device_order(busy->e, busy_order, NULL), 0);
    if (busy_reset)
        engine_reset_prefix_cache(busy->e);
    busy_order = ENGINE_ORDER_NONE;
    busy_reset = false;
}

static int busy_write(struct ek_device *d, uint32_t tier, uint32_t id, const void *from)
{
    interrupt_once();
    return null_reviving_backend.kv_write(d, tier, id, from);
}

static int busy_read(struct ek_device *d, uint32_t tier, uint32_t id, void *to)
{
    interrupt_once();
    return null_reviving_backend.kv_read(d, tier, id, to);
}

static void start_busy(struct engine_world *w, enum engine_order order)
{
    prepare_kept(w, 129, 0);
    w->d->revivals = 10;
    w->p.revivals = 1;
    busy = w;
    busy_order = order;
    busy_backend = null_reviving_backend;
    busy_backend.kv_write = busy_write;
    assert_int_equal(engine_new(&w->p, &busy_backend, w->d, &w->e, NULL), 0);
    (void)ask_all(w, 0, PROMPTS, 0);
}

static void an_order_meanwhile_is_not_lost(void **state)
{
    (void)state;
    struct engine_world w;
    (void)unlink(path);
    start_busy(&w, ENGINE_RELEASE);
    assert_int_equal(engine_device_order(w.e, ENGINE_RESTART, NULL), 0);
    wait_planned(&w, 1);
    wait_released(&w);
    assert_int_equal(engine_device_order(w.e, ENGINE_ACQUIRE, NULL), 0);
    (void)ask_all(&w, 0, PROMPTS, 0);
    leave(&w);
    (void)unlink(path);
}

/* What is forgotten on purpose does not come back, whenever that was asked for. */
static void a_reset_is_final(void **state)
{
    (void)state;
    struct engine_world w;
    (void)unlink(path);
    start_busy(&w, ENGINE_ORDER_NONE);
    busy_reset = true; /* while it is restored */
    assert_int_equal(engine_device_order(w.e, ENGINE_RESTART, NULL), 0);
    wait_planned(&w, 1);
    assert_int_equal(ask_all(&w, 0, PROMPTS, 0), 0);
    busy_backend.kv_read = busy_read;
    busy_reset = true; /* while it is saved */
    assert_int_equal(engine_device_order(w.e, ENGINE_RESTART, NULL), 0);
    wait_planned(&w, 2);
    assert_int_equal(ask_all(&w, 0, PROMPTS, 0), 0);
    assert_int_equal(engine_device_order(w.e, ENGINE_RELEASE, NULL), 0);
    wait_released(&w);
    assert_int_equal(access(path, F_OK), 0);
    engine_reset_prefix_cache(w.e); /* while there is no device */
    while (access(path, F_OK) == 0)
        ;
    assert_int_equal(engine_device_order(w.e, ENGINE_ACQUIRE, NULL), 0);
    assert_int_equal(ask_all(&w, 0, PROMPTS, 0), 0);
    leave(&w);
    (void)unlink(path);
}

/* What others can read or could have written is not taken; what a killed write left goes. */
static void only_our_own_is_taken(void **state)
{
    (void)state;
    struct engine_world w;
    char fresh[80];
    leave_file(129, 0);
    assert_int_equal(chmod(path, 0640), 0);
    (void)snprintf(fresh, sizeof(fresh), "%s.new", path);
    (void)fclose(fopen(fresh, "we"));
    prepare_kept(&w, 129, 0);
    start(&w);
    assert_string_equal(told.why, "it is not for this user alone (mode 0600)");
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(fresh, F_OK), -1);
    engine_stop(w.e);
    close_world(&w);
}

/* Without the memory for a list nothing is kept, and nothing is lost. */
static void survives_without_memory(void **state)
{
    (void)state;
    struct engine_world w;
    prepare_kept(&w, 129, 0);
    start(&w);
    (void)ask_all(&w, 0, PROMPTS, 0);
    engine_stop(w.e);
    for (long n = 1;; n++) {
        alloc_fail_at(n);
        engine_keep(w.e);
        if (!alloc_failed()) {
            alloc_fail_at(0);
            break;
        }
        assert_true(told.why[0] != '\0' || told.last.blocks == PROMPTS * 6);
    }
    assert_string_equal(told.why, "");
    assert_null(sched_check(w.e->sched));
    close_world(&w);
}

#define WITH_STATES(test) cmocka_unit_test_setup_teardown(test, with_states, without_states)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_comes_back),
        cmocka_unit_test(the_latest_are_kept),
        cmocka_unit_test(the_host_tier_comes_back),
        cmocka_unit_test(salts_stay_apart),
        cmocka_unit_test(others_are_a_miss),
        cmocka_unit_test(damage_is_a_miss),
        cmocka_unit_test(a_full_disk_leaves_nothing),
        cmocka_unit_test(a_restarted_device_has_it),
        cmocka_unit_test(the_host_tier_outlives_its_device),
        cmocka_unit_test(an_order_meanwhile_is_not_lost),
        cmocka_unit_test(a_reset_is_final),
        cmocka_unit_test(only_our_own_is_taken),
        cmocka_unit_test(survives_without_memory),
        WITH_STATES(snapshots_come_back),
        WITH_STATES(the_latest_snapshots_are_kept),
        WITH_STATES(a_planned_restart_has_snapshots),
        WITH_STATES(damage_is_a_miss),
        WITH_STATES(an_order_meanwhile_is_not_lost),
        WITH_STATES(a_reset_is_final),
        WITH_STATES(survives_without_memory),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
