/*
 * Decides from samples whether servers/watch.c should send a canary: it remembers when a counter of
 * work last moved. halt_step() bounds the waits for an engine process in the same manner, by the
 * state's letter and since when it holds.
 */
#include "supervisor/law/hang.h"

#include "common/clock.h"

void hang_start(struct hang *h, uint64_t now_us)
{
    *h = (struct hang){.moved_us = now_us, .read_us = now_us, .begun_us = now_us, .progress = -1};
}

static double hang_value(const struct sample *s, enum signal_id i)
{
    return s->flags[i] & (SAMPLE_MISSING | SAMPLE_NAN | SAMPLE_RANGE) ? 0 : s->value[i];
}

bool hang_lost(const struct sample *s)
{
    return hang_value(s, SIG_READING_AGE_S) >= HANG_LOST_S;
}

bool hang_away(const struct sample *s)
{
    return hang_value(s, SIG_ENGINE_STARTING) > 0 || hang_value(s, SIG_ENGINE_RELEASED) > 0;
}

enum hang_kind hang_step(struct hang *h, const struct sample *s, uint64_t now_us, double hang_s,
                         double *ret_for_s)
{
    if (!s->good) {
        *ret_for_s = (double)(now_us - h->read_us) / 1e6;
        return *ret_for_s >= hang_s ? HANG_NO_ANSWER : HANG_NO;
    }
    h->read_us = now_us;
    double progress =
        hang_value(s, SIG_STEPS) + hang_value(s, SIG_PROMPT_TOKENS) + hang_value(s, SIG_GEN_TOKENS);
    bool away = hang_away(s);
    bool work = !away && (hang_value(s, SIG_RUNNING) > 0 || hang_value(s, SIG_WAITING) > 0 ||
                          hang_value(s, SIG_ANSWERING) > 0);
    /* Any difference counts: a counter that fell is a new process, which is progress too. */
    if (!work || progress < h->progress || progress > h->progress) {
        h->progress = progress;
        h->moved_us = now_us;
    }
    double reading_s = hang_value(s, SIG_READING_AGE_S);
    if (reading_s >= hang_s && (double)(now_us - h->begun_us) / 1e6 >= hang_s) {
        *ret_for_s = reading_s;
        return HANG_READING;
    }
    *ret_for_s = (double)(now_us - h->moved_us) / 1e6;
    return *ret_for_s >= hang_s ? HANG_NO_PROGRESS : HANG_NO;
}

enum halt halt_step(uint64_t *since_us, char state, uint64_t now_us, double most_s)
{
    bool begins = *since_us == 0;
    if (state != 'T' && state != 't') {
        *since_us = 0;
        return HALT_NO;
    }
    if (begins)
        *since_us = now_us;
    if ((double)(now_us - *since_us) / 1e6 >= most_s)
        return HALT_TOO_LONG;
    return begins ? HALT_BEGINS : HALT_WAITS;
}
