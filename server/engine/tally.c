/*
 * The histograms of requests: sched.c sets them up, results.c reports tokens, entries.c ends.
 * Engine thread. Ends by an error or an abort are counted, but their times go into no histogram,
 * since they say nothing about the service. The bounds are vLLM's.
 */
#include "server/engine/tally.h"

#include <string.h>

#include "common/clock.h"
#include "server/engine/request.h"
#include "server/engine/stats.h"

/* Seconds. */
static const double ttft_bounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                     1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
static const double token_bounds[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                      .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
static const double request_bounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
/* Tokens. */
static const double iteration_bounds[] = {1,   8,    16,   32,   64,   128,  256,
                                          512, 1024, 2048, 4096, 8192, 16384};
static const double length_bounds[] = {1,     2,      5,    10,   20,   50,    100,
                                       200,   500,    1000, 2000, 5000, 10000, 20000,
                                       50000, 100000, 2e5,  5e5,  1e6,  2e6,   5e6};
static const double answers_bounds[] = {1, 2, 5, 10, 20};
static const double preemption_bounds[] = {1, 2, 3, 4, 5, 10, 20};

#define COUNT(a) ((uint32_t)(sizeof(a) / sizeof((a)[0])))

static double seconds(uint64_t from_us, uint64_t to_us)
{
    return to_us > from_us ? (double)(to_us - from_us) / 1e6 : 0;
}

void tally_init(struct engine_stats *st, uint32_t max_model_len)
{
    uint32_t lengths = 0;
    while (lengths < COUNT(length_bounds) && length_bounds[lengths] <= (double)max_model_len)
        lengths++;

    memset(st, 0, sizeof(*st));
    ek_hist_init(&st->ttft, ttft_bounds, COUNT(ttft_bounds));
    ek_hist_init(&st->itl, token_bounds, COUNT(token_bounds));
    ek_hist_init(&st->tpot, token_bounds, COUNT(token_bounds));
    ek_hist_init(&st->e2e, request_bounds, COUNT(request_bounds));
    ek_hist_init(&st->queue_time, request_bounds, COUNT(request_bounds));
    ek_hist_init(&st->inference_time, request_bounds, COUNT(request_bounds));
    ek_hist_init(&st->prefill_time, request_bounds, COUNT(request_bounds));
    ek_hist_init(&st->decode_time, request_bounds, COUNT(request_bounds));
    ek_hist_init(&st->prompt_len, length_bounds, lengths);
    ek_hist_init(&st->generation_len, length_bounds, lengths);
    ek_hist_init(&st->max_tokens_param, length_bounds, lengths);
    ek_hist_init(&st->longest_answer, length_bounds, lengths);
    ek_hist_init(&st->answers, answers_bounds, COUNT(answers_bounds));
    ek_hist_init(&st->iteration_tokens, iteration_bounds, COUNT(iteration_bounds));
    ek_hist_init(&st->request_preemptions, preemption_bounds, COUNT(preemption_bounds));
}

void tally_first_token(struct engine_stats *st, const struct request *r)
{
    st->prompt_tokens += r->ask.prompt_tokens;
    st->cached_tokens += r->cached_tokens;
    double wait = seconds(r->ask.arrival_us, r->first_token_us);
    ek_hist_observe(&st->ttft, wait);
    ek_exemplar_note(&st->ttft_by, &st->ttft, r->name, wait, r->first_token_us);
}

void tally_gap(struct engine_stats *st, const struct request *r, uint64_t gap_us, uint64_t now_us)
{
    ek_hist_observe(&st->itl, (double)gap_us / 1e6);
    ek_exemplar_note(&st->itl_by, &st->itl, r->name, (double)gap_us / 1e6, now_us);
}

/* As in vLLM a prompt with several answers counts once, when the last of them has ended well. */
static void tally_answers(struct engine_stats *st, struct request *r, uint32_t tokens)
{
    struct request *first = r->first ? r->first : r;

    if (tokens > first->answers_longest)
        first->answers_longest = tokens;
    if (++first->answers_ended < r->ask.answers)
        return;
    ek_hist_observe(&st->answers, first->answers_ended);
    ek_hist_observe(&st->longest_answer, first->answers_longest);
}

void tally_done(struct engine_stats *st, struct request *r, uint64_t last_token_us)
{
    st->finished[r->finish]++;
    if (r->finish != REQ_FIN_STOP && r->finish != REQ_FIN_LENGTH)
        return;

    uint32_t tokens = atomic_load_explicit(&r->out_count, memory_order_relaxed);
    double whole = seconds(r->ask.arrival_us, r->done_us);
    ek_hist_observe(&st->e2e, whole);
    ek_exemplar_note(&st->e2e_by, &st->e2e, r->name, whole, r->done_us);
    ek_hist_observe(&st->queue_time, seconds(r->queued_us, r->first_scheduled_us));
    ek_hist_observe(&st->inference_time, seconds(r->first_scheduled_us, last_token_us));
    ek_hist_observe(&st->prefill_time, seconds(r->first_scheduled_us, r->first_token_us));
    ek_hist_observe(&st->decode_time, seconds(r->first_token_us, last_token_us));
    if (tokens > 1)
        ek_hist_observe(&st->tpot, seconds(r->first_token_us, last_token_us) / (tokens - 1));
    ek_hist_observe(&st->prompt_len, r->ask.prompt_tokens);
    ek_hist_observe(&st->generation_len, tokens);
    ek_hist_observe(&st->max_tokens_param, r->ask.max_new_tokens);
    ek_hist_observe(&st->request_preemptions, r->preemptions);
    tally_answers(st, r, tokens);
}

void gaps_note(struct gaps *g, uint64_t gap_us, uint64_t now_us)
{
    uint64_t second = now_us / EK_US_PER_S;

    for (; g->second < second; g->second++) {
        if (second - g->second > GAPS_SECONDS)
            g->second = second - GAPS_SECONDS;
        g->us[(g->second + 1) % GAPS_SECONDS] = 0;
    }
    if (gap_us > g->us[second % GAPS_SECONDS])
        g->us[second % GAPS_SECONDS] = gap_us;
}

uint64_t gaps_largest(const struct gaps *g, uint64_t now_us)
{
    uint64_t most = 0, second = now_us / EK_US_PER_S;

    for (uint32_t i = 0; i < GAPS_SECONDS; i++) {
        /* Seconds that have passed since the last gap are still to be cleared. */
        uint64_t at = g->second >= i ? g->second - i : 0;
        if (second - at < GAPS_SECONDS && g->us[at % GAPS_SECONDS] > most)
            most = g->us[at % GAPS_SECONDS];
    }
    return most;
}
