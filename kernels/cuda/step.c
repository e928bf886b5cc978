/*
 * A step on the device. forward() packs it into a pinned buffer (only what is used of each array,
 * and the plan of its attention), copies it in one piece and enqueues the launches; sample()
 * enqueues the sampler and the copy of its results; wait() looks at the event behind them. All on
 * one stream, so two steps may be in flight: what a slot sampled stays on the device for the next.
 *
 *   FREE --forward()--> FORWARD --sample()--> SAMPLE --wait()--> FREE
 *
 * When something cannot be enqueued the step did not begin: what was enqueued of it is waited for,
 * and the flight is free again. Nothing of it can be seen later: it wrote rows of its own only.
 */
#include "kernels/cuda/step.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/group.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/program.h"
#include "kernels/cuda/states.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/swap.h"

#define SPIN_US  100   /* wait() looks without a break for so long, */
#define SLEEP_NS 20000 /* then sleeps between two looks */

#define PART_COST  48u /* see part_size() */
#define PART_TURNS 4u  /* that are tried */

#define SAMPLE_WARPS  4u /* of a block that reads logits, */
#define SAMPLE_BLOCKS 4u /* and such blocks on a multiprocessor */

struct step_pack {
    struct ek_device *d;
    const struct ek_step *step;
    struct cu_step *head;
    uint32_t end; /* bytes used of the buffer */
};

/* Room for `count` elements of `size` bytes; where they begin. The shape planned for the most. */
static uint32_t cuda_step_take(struct step_pack *p, uint32_t count, size_t size)
{
    uint32_t at = p->end;

    p->end = (uint32_t)((at + count * size + 15) & ~(size_t)15);
    return at;
}

static uint32_t step_put(struct step_pack *p, const void *from, uint32_t count, size_t size)
{
    uint32_t at = cuda_step_take(p, count, size);

    memcpy((char *)p->head + at, from, count * size);
    return at;
}

/* Parts of all that attend alone, where a part covers so many positions. */
static uint64_t parts_of(const struct ek_step *step, uint64_t size)
{
    const struct ek_step_seq *q = ek_step_seqs(step);
    uint64_t parts = 0;

    for (uint32_t i = 0; i < step->seqs; i++)
        parts += q[i].rows == 1 ? (q[i].context + size - 1) / size : 0;
    return parts;
}

/* The least size, in steps of 64 positions, that makes no more parts than that. */
static uint64_t least_size(const struct ek_step *step, uint64_t longest, uint64_t parts)
{
    uint64_t below = CU_SPLIT_LEAST / 64 - 1, fits = (longest + 63) / 64;

    while (fits - below > 1) {
        const uint64_t middle = (below + fits) / 2;
        if (parts_of(step, middle * 64) <= parts)
            fits = middle;
        else
            below = middle;
    }
    return fits * 64;
}

/* Positions that one part of a context covers. The card holds `slots` parts at once and takes the
 * next when one is done, so what counts is how many turns that makes and how long a part is, with
 * what each costs besides (as much as reading so many positions, PART_COST). Where rows are many
 * and alike a part is all of a context; a long one among short ones is divided. */
static uint32_t part_size(const struct ek_device *d, const struct ek_step *step)
{
    const struct ek_step_seq *q = ek_step_seqs(step);
    const uint32_t each = d->shape.row_units;
    const uint32_t blocks = d->shape.wide ? d->wide_blocks : d->row_blocks;
    const uint64_t slots = blocks > each ? blocks / each : 1;
    uint64_t rows = 0, longest = CU_SPLIT_LEAST, best = 0, least = UINT64_MAX;

    for (uint32_t i = 0; i < step->seqs; i++)
        if (q[i].rows == 1) {
            longest = q[i].context > longest ? q[i].context : longest;
            rows++;
        }
    const uint64_t first = rows / slots + (rows % slots != 0);
    for (uint64_t turns = first; turns < first + PART_TURNS; turns++) {
        const uint64_t size = least_size(step, longest, turns * slots);
        const uint64_t parts = parts_of(step, size),
                       cost = (parts + slots - 1) / slots * (size + PART_COST);
        if (cost < least && parts <= rows + CUDA_MOST_SPLITS) {
            least = cost;
            best = size;
        }
    }
    return best > 0 ? (uint32_t)best : (uint32_t)longest;
}

/* What attends alone, in parts. */
static void plan_rows(struct step_pack *p)
{
    const struct ek_step_seq *q = ek_step_seqs(p->step);
    uint32_t size = part_size(p->d, p->step), partials = 0, spare = CUDA_MOST_SPLITS;

    p->head->item_at = cuda_step_take(p, 0, 1);
    struct cu_item *item = (struct cu_item *)(void *)((char *)p->head + p->head->item_at);
    for (uint32_t i = 0; i < p->step->seqs; i++) {
        if (q[i].rows != 1)
            continue;
        uint32_t parts = q[i].context / size + (q[i].context % size != 0);
        parts = parts - 1 > spare ? spare + 1 : parts;
        spare -= parts - 1;
        uint32_t each = q[i].context / parts + 1;
        for (uint32_t k = 0; k < parts; k++)
            item[p->head->items++] = (struct cu_item){
                .row = q[i].row,
                .table = q[i].table,
                .position = q[i].context - 1,
                .from = k * each,
                .to = (k + 1) * each < q[i].context ? (k + 1) * each : q[i].context,
                .part = k,
                .parts = parts,
                .first_partial = partials};
        partials += parts > 1 ? parts : 0;
    }
    (void)cuda_step_take(p, p->head->items, sizeof(*item));
}

/* The tile's context in parts of about `size` positions, as far as there is room for results. */
static void put_tile(struct step_pack *p, struct cu_tile t, uint32_t size, uint32_t *spare)
{
    struct cu_tile *tile = (struct cu_tile *)(void *)((char *)p->head + p->head->tile_at);
    const uint32_t context = t.position + t.rows;
    uint32_t parts = (uint32_t)(((uint64_t)context + size / 2) / size);

    parts = parts > *spare ? *spare : parts;
    uint32_t each = context / (parts + !parts) / CU_TILE_UNIT * CU_TILE_UNIT + CU_TILE_UNIT;
    parts = parts < 2 ? 1 : (context + each - 1) / each;
    for (uint32_t k = 0; k < parts; k++) {
        t.from = k * each;
        t.to = k + 1 < parts ? t.from + each : context;
        t.part = k;
        t.parts = parts;
        tile[p->head->tiles++] = t;
    }
    *spare -= parts > 1 ? parts : 0;
}

/* Whether a sequence's rows attend in tiles. */
static bool in_tiles(const struct ek_device *d, const struct ek_step_seq *q)
{
    return q->rows > 1 || d->shape.latent_groups > 0;
}

/* Blocks of a tile: each has one head of keys, or a group of the heads of queries. */
static uint32_t tile_blocks(const struct ek_device *d)
{
    return d->shape.latent_groups > 0 ? d->shape.latent_groups : d->graph->kv_heads;
}

/* The same as part_size() for tiles, of which a multiprocessor holds one or two. */
static uint32_t tile_size(const struct ek_device *d, const struct ek_step *step)
{
    const struct ek_step_seq *q = ek_step_seqs(step);
    const bool latent = d->shape.latent_groups > 0;
    const uint64_t each = d->attend_tile == K_ATTEND_WGMMA ? 1 : 2;
    const uint64_t blocks = latent ? d->row_blocks : d->multiprocessors * each;
    const uint32_t least = latent ? CU_LATENT_LEAST : CU_TILE_LEAST;
    uint64_t positions = 0, items = blocks / tile_blocks(d);

    for (uint32_t i = 0; i < step->seqs; i++) {
        const uint64_t tiles = (q[i].rows + d->tile_rows - 1) / d->tile_rows;
        if (in_tiles(d, &q[i])) /* all tiles but the last see less */
            positions += tiles * q[i].context - tiles * (tiles - 1) / 2 * d->tile_rows;
    }
    uint64_t size = positions / (items + !items) / CU_TILE_UNIT * CU_TILE_UNIT + CU_TILE_UNIT;
    return size < least ? least : size > UINT32_MAX ? UINT32_MAX : (uint32_t)size;
}

/* Tiles of prompts, a short one behind a long context in parts of that. */
static void plan_tiles(struct step_pack *p)
{
    const struct ek_device *d = p->d;
    const struct ek_step_seq *q = ek_step_seqs(p->step);
    const uint32_t pairs = d->shape.latent_groups > 0         ? CU_LATENT_PAIRS
                           : d->attend_tile == K_ATTEND_WGMMA ? 2 * CU_TILE_ROWS
                                                              : CU_TILE_ROWS;
    const uint32_t size = tile_size(d, p->step), most = CUDA_TILE_PAIRS / pairs / tile_blocks(d);
    uint32_t spare = most;

    p->head->tile_at = cuda_step_take(p, 0, 1);
    for (uint32_t i = 0; i < p->step->seqs; i++)
        for (uint32_t at = 0; in_tiles(d, &q[i]) && at < q[i].rows; at += d->tile_rows) {
            const uint32_t left = q[i].rows - at;
            const struct cu_tile t = {.row = q[i].row + at,
                                      .rows = left < d->tile_rows ? left : d->tile_rows,
                                      .table = q[i].table,
                                      .position = q[i].context - q[i].rows + at,
                                      .first_partial = most - spare};
            put_tile(p, t, size, &spare);
        }
    (void)cuda_step_take(p, p->head->tiles, sizeof(struct cu_tile));
}

/* What is asked for beside tokens; in the order of the logit rows. */
static void pack_wishes(struct step_pack *p)
{
    const struct ek_step_seq *q = ek_step_seqs(p->step);
    const uint32_t *words = ek_step_words(p->step);

    p->head->score_at = cuda_step_take(p, 0, 1);
    struct cu_score *score = (struct cu_score *)(void *)((char *)p->head + p->head->score_at);
    for (uint32_t i = 0; i < p->step->seqs; i++)
        for (uint32_t k = 0; k < q[i].scores; k++)
            score[p->head->scores++] = (struct cu_score){words[q[i].target + k], q[i].slot};
    (void)cuda_step_take(p, p->head->scores, sizeof(*score));
    p->head->hidden_at = cuda_step_take(p, 0, 1);
    uint32_t *hidden = (uint32_t *)(void *)((char *)p->head + p->head->hidden_at);
    for (uint32_t i = 0; i < p->step->seqs; i++)
        if (q[i].hidden)
            hidden[p->head->hiddens++] = q[i].logit_row;
    (void)cuda_step_take(p, p->head->hiddens, sizeof(*hidden));
}

/* Bytes to upload. */
static uint32_t pack_step(struct ek_device *d, const struct ek_step *s, char *to)
{
    struct step_pack p = {.d = d, .step = s, .head = (struct cu_step *)(void *)to};

    *p.head = (struct cu_step){.rows = s->rows,
                               .seqs = s->seqs,
                               .logit_rows = s->logit_rows,
                               .sets = s->sets,
                               .kv = d->kv,
                               .states = d->states.at};
    (void)cuda_step_take(&p, 1, sizeof(*p.head));
    p.head->token_at = step_put(&p, ek_step_tokens(s), s->rows, sizeof(int32_t));
    p.head->position_at = step_put(&p, ek_step_positions(s), s->rows, sizeof(uint32_t));
    p.head->kv_slot_at = step_put(&p, ek_step_kv_slots(s), s->rows, sizeof(uint32_t));
    p.head->seq_at = step_put(&p, ek_step_seqs(s), s->seqs, sizeof(struct ek_step_seq));
    p.head->table_at = step_put(&p, ek_step_tables(s), s->entries, sizeof(uint32_t));
    p.head->set_at = step_put(&p, ek_step_sets(s), s->sets, sizeof(struct ek_slot_set));
    p.head->word_at = step_put(&p, ek_step_words(s), s->words, sizeof(uint32_t));
    pack_wishes(&p);
    if (d->shape.tile_rows > 0 && d->shape.latent_groups == 0)
        plan_rows(&p);
    if (d->shape.tile_rows > 0)
        plan_tiles(&p);
    return p.end;
}

static int check(struct ek_device *d, const struct ek_step *step)
{
    int r = ek_step_check(step, step->bytes, &d->plan.ceiling, d->graph->vocab, d->kv_blocks,
                          1u << d->shape.block_shift, d->state_count);
    if (r == 0 && step->logit_rows > d->plan.logit_rows)
        r = -EBADMSG;
    return r == 0 ? cuda_states_check(d, step) : r;
}

/* Where stages are several, tokens that were sampled lie in the last one. A step that names some
 * gets its slots, as they are behind the step before it: first and last stage see the same step, so
 * both know. */
static int hand_slots(struct ek_device *d, const struct ek_step *step)
{
    const struct ek_graph *g = d->graph;
    const uint32_t each = g->ranks > 0 ? g->ranks : 1, me = d->rank_index;
    const int32_t *token = ek_step_tokens(step);
    const size_t bytes = d->plan.ceiling.seqs * sizeof(struct cu_slot);
    const cu_ptr slots = cuda_arena(d, d->shape.slot_at);
    bool named = false;

    if (g->stages < 2 || (!ek_graph_first(g) && !ek_graph_last(g)))
        return 0;
    for (uint32_t i = 0; !named && i < step->rows; i++)
        named = token[i] == EK_FROM_PREVIOUS;
    if (!named)
        return 0;
    const uint32_t way = (g->stages - 1) * each;
    if (ek_graph_last(g))
        return cuda_group_send(d->group, me, me - way, slots, bytes, EK_I8, d->stream);
    return cuda_group_recv(d->group, me, me + way, slots, bytes, EK_I8, d->stream);
}

/* What settings ask of the sampler is kept by slot, as the card keeps the settings. One that the
 * card does not get after all costs a launch, or a block's search of its row, never a token. */
static void note_draws(struct ek_device *d, const struct ek_step *step)
{
    const struct ek_slot_set *set = ek_step_sets(step);

    for (uint32_t i = 0; i < step->sets; i++) {
        const struct ek_sampling *p = &set[i].sampling;
        d->draws[set[i].slot] = p->temperature < CU_COLDEST           ? DRAWS_GREEDY
                                : p->top_k > 0 || !(p->top_p >= 1.0f) ? DRAWS_CUT
                                                                      : DRAWS_ALL;
    }
}

static int launch(struct ek_device *d, struct cuda_flight *f, const struct cuda_flight *other,
                  const struct ek_step *step)
{
    struct cu_driver *cu = &d->cu;
    const struct cu_step *head = (const struct cu_step *)(void *)f->up;

    int r = cu_code(cu->event_record(f->begin, d->stream));
    if (r == 0)
        r = cuda_swap_begin(d, f, other, step);
    if (r == 0)
        r = hand_slots(d, step);
    if (r == 0) {
        uint32_t bytes = pack_step(d, step, f->up);
        note_draws(d, step);
        f->scores = head->scores;
        f->hiddens = head->hiddens;
        r = cu_code(cu->copy_in(cuda_arena(d, d->shape.step_at), f->up, bytes, d->stream));
    }
    if (r == 0)
        r = cuda_times_begin(d);
    if (r < 0)
        return r;
    d->seqs = head->seqs;
    bool decode = head->rows > 0 && head->rows == head->seqs && head->rows == head->logit_rows;
    if (decode)
        r = cuda_graph_run(d, head->rows, head->tiles, head->items);
    else
        r = cuda_program_run(d, head->rows, head->logit_rows, head->tiles, head->items);
    return r < 0 ? r : cu_code(cu->event_record(f->forward, d->stream));
}

/* The flight is free again once nothing reads its buffers any more. */
static int drop(struct ek_device *d, struct cuda_flight *f, int r)
{
    if (d->group) /* first: what is on the stream may wait for ranks that do not come */
        (void)cuda_group_fail(d->group, r);
    int late = cu_code(d->cu.stream_wait(d->stream));
    int later = cuda_stream_settle(d), last = cuda_swap_settle(d);

    f->state = CUDA_FREE;
    f->step = NULL;
    return late < 0 ? late : later < 0 ? later : last < 0 ? last : r;
}

int cuda_step_forward(struct ek_device *d, const struct ek_step *step)
{
    struct cuda_flight *f = &d->flight[step->id & 1], *other = &d->flight[~step->id & 1];

    if (!d->kv || other->state == CUDA_FORWARD)
        return -EINVAL;
    if (f->state != CUDA_FREE)
        return -EBUSY;
    int r = cu_code(d->cu.ctx_set(d->context));
    if (r < 0)
        return r;
    f->state = CUDA_FORWARD;
    f->step = step;
    f->scores = f->hiddens = 0;
    f->error = check(d, step);
    if (f->error == 0)
        r = launch(d, f, other, step);
    if (r == -EBADMSG) { /* copies to where no block is: nothing was enqueued */
        f->error = r;
        r = 0;
    }
    return r < 0 ? drop(d, f, r) : 0;
}

static int upload_masks(struct ek_device *d, struct cuda_flight *f, const struct ek_masks *masks,
                        uint32_t rows)
{
    const uint32_t words = d->shape.mask_words;

    for (uint32_t i = 0; i < rows; i++)
        memcpy(f->masks + (size_t)i * words * sizeof(uint32_t),
               masks->bits + (size_t)i * masks->words, words * sizeof(uint32_t));
    return cu_code(d->cu.copy_in(cuda_arena(d, d->shape.mask_at), f->masks,
                                 (size_t)rows * words * sizeof(uint32_t), d->stream));
}

static size_t result_bytes(const struct ek_device *d, const struct cuda_flight *f)
{
    if (!ek_graph_last(d->graph))
        return 0; /* another stage has them */
    size_t all = ek_result_bytes(f->step->seqs, f->scores, f->hiddens, d->graph->hidden);
    return all - sizeof(struct ek_result);
}

static enum cuda_draws draws_of(const struct ek_device *d, const struct ek_step *step)
{
    const struct ek_step_seq *q = ek_step_seqs(step);
    uint8_t most = DRAWS_GREEDY;

    for (uint32_t i = 0; i < step->seqs; i++)
        if (q[i].sample && d->draws[q[i].slot] > most)
            most = d->draws[q[i].slot];
    return (enum cuda_draws)most;
}

/* Blocks that share a row of logits: so many that the card is busy, each with a piece at least for
 * every warp. */
static uint32_t sample_parts(const struct ek_device *d, uint32_t seqs)
{
    const uint32_t pieces = (d->graph->vocab + CU_PIECE - 1) / CU_PIECE;
    const uint32_t most = (pieces + SAMPLE_WARPS - 1) / SAMPLE_WARPS;
    const uint32_t parts = (d->multiprocessors * SAMPLE_BLOCKS + seqs - 1) / seqs;

    return parts > most ? most : parts + !parts;
}

static int launch_choice(struct ek_device *d, const struct ek_step *step, struct cu_sample_args *a)
{
    const uint32_t parts = sample_parts(d, step->seqs);
    const enum cuda_draws draws = draws_of(d, step);

    int r = cuda_launch(d, K_SAMPLE_SCAN, step->seqs, parts, SAMPLE_WARPS * 32, a);
    a->weighed = draws >= DRAWS_ALL;
    a->collected = draws >= DRAWS_CUT;
    if (r == 0 && a->weighed)
        r = cuda_launch(d, K_SAMPLE_WEIGH, step->seqs, parts, SAMPLE_WARPS * 32, a);
    if (r == 0 && a->collected)
        r = cuda_launch(d, K_SAMPLE_COLLECT, step->seqs, parts, SAMPLE_WARPS * 32, a);
    return r == 0 ? cuda_launch(d, K_SAMPLE, step->seqs, 1, 1024, a) : r;
}

static int launch_sampler(struct ek_device *d, struct cuda_flight *f, const struct ek_masks *masks)
{
    const struct cuda_shape *s = &d->shape;
    struct cu_sample_args a = {.step = cuda_arena(d, s->step_at),
                               .slots = cuda_arena(d, s->slot_at),
                               .words = cuda_arena(d, s->word_at),
                               .logits = cuda_arena(d, s->logits_at),
                               .masks = masks ? cuda_arena(d, s->mask_at) : 0,
                               .results = cuda_arena(d, s->result_at),
                               .adjusted = cuda_arena(d, s->adjusted_at),
                               .pieces = cuda_arena(d, s->piece_at),
                               .draws = cuda_arena(d, s->draw_at),
                               .hidden = d->hidden,
                               .vocab = d->graph->vocab,
                               .logit_stride = s->logit_stride,
                               .mask_words = s->mask_words,
                               .slot_words = d->plan.ceiling.words,
                               .hidden_width = d->graph->hidden};
    const uint32_t samples = f->step->logit_rows - f->scores;
    const bool last = ek_graph_last(d->graph); /* else there are only flags */
    int r = 0;

    if (masks && samples > 0 && last)
        r = upload_masks(d, f, masks, samples);
    if (r == 0 && f->scores > 0 && last)
        r = cuda_launch(d, K_SCORE, f->scores, 1, 1024, &a);
    if (r == 0 && f->step->seqs > 0 && last)
        r = launch_choice(d, f->step, &a);
    if (r == 0 && f->hiddens > 0 && last)
        r = cuda_launch(d, K_HIDDEN, f->hiddens, 1, 256, &a);
    if (r == 0)
        r = cu_code(d->cu.copy_out(f->results, cuda_arena(d, s->result_at),
                                   sizeof(struct cu_flags) + result_bytes(d, f), d->stream));
    return r;
}

int cuda_step_sample(struct ek_device *d, const struct ek_step *step, const struct ek_masks *masks)
{
    struct cuda_flight *f = &d->flight[step->id & 1];

    if (f->state != CUDA_FORWARD || f->step != step)
        return -EINVAL;
    int r = cu_code(d->cu.ctx_set(d->context));
    bool small =
        masks && (masks->rows < step->logit_rows - f->scores || masks->words < d->shape.mask_words);
    if (f->error == 0 && small)
        f->error = -EBADMSG;
    if (r == 0 && f->error == 0)
        r = launch_sampler(d, f, masks);
    if (r == 0 && f->error == 0)
        r = cuda_swap_end(d, f);
    if (r == 0)
        r = cu_code(d->cu.event_record(f->done, d->stream));
    if (r < 0)
        return drop(d, f, r);
    f->state = CUDA_SAMPLE;
    return 0;
}

static uint64_t between(const struct ek_device *d, cu_handle from, cu_handle to)
{
    float ms = 0.0f;

    if (d->cu.event_ms(&ms, from, to) != CU_OK || !(ms > 0.0f))
        return 0;
    return (uint64_t)(ms * 1000.0f);
}

static void take_result(struct ek_device *d, struct cuda_flight *f, struct ek_result *ret_result)
{
    const struct cu_flags *flags = (const struct cu_flags *)(void *)f->results;
    const bool last = ek_graph_last(d->graph);
    int error = f->error;

    if (error == 0 && flags->bad && ek_graph_first(d->graph)) /* the others need no tokens */
        error = -EBADMSG;
    *ret_result = (struct ek_result){
        .step = f->step->id, .error = error, .seqs = error == 0 && last ? f->step->seqs : 0};
    if (!last)
        f->scores = f->hiddens = 0;
    if (error == 0) {
        ret_result->scores = f->scores;
        ret_result->hiddens = f->hiddens;
        ret_result->width = f->hiddens > 0 ? d->graph->hidden : 0;
        memcpy(ret_result->seq, f->results + sizeof(*flags), result_bytes(d, f));
        ret_result->forward_us = between(d, f->begin, f->forward);
        ret_result->sample_us = between(d, f->forward, f->done);
        ret_result->copy_us = f->copied ? between(d, f->copying, f->copies) : 0;
    }
    atomic_fetch_add_explicit(&d->steps, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&d->busy_us, ret_result->forward_us + ret_result->sample_us,
                              memory_order_relaxed);
    f->state = CUDA_FREE;
    f->step = NULL;
}

int cuda_step_wait(struct ek_device *d, uint64_t id, struct ek_result *ret_result, size_t bytes,
                   uint64_t timeout_us)
{
    const struct timespec nap = {.tv_nsec = SLEEP_NS};
    struct cuda_flight *f = &d->flight[id & 1];
    uint64_t begin = ek_now_us();

    if (f->state != CUDA_SAMPLE || f->step->id != id)
        return -EINVAL;
    int r = cu_code(d->cu.ctx_set(d->context));
    while (r == 0 && (r = cu_code(d->cu.event_query(f->done))) == -EAGAIN) {
        uint64_t spent = ek_now_us() - begin;
        if (spent >= timeout_us)
            return -ETIMEDOUT;
        if (spent > SPIN_US)
            (void)nanosleep(&nap, NULL); /* woken early is as good */
        r = 0;
    }
    if (r < 0)
        return r;
    if (bytes < sizeof(*ret_result) + (f->error == 0 ? result_bytes(d, f) : 0))
        return -EINVAL;
    take_result(d, f, ret_result);
    return 0;
}
