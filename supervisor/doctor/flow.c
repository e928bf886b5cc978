/*
 * Answers the questions of the guides' flowchart from a finding's class, its phase and the numbers
 * of the log. diagnose_text.c and diagnose_json.c show them, and io/log_class.c passes them on to
 * evenkeeld's history of failures.
 */
#include "supervisor/doctor/flow.h"
#include "supervisor/doctor/texts.h"

#define HIT_RATE_LOW 30.0 /* per cent: below it the guides say that the cache is not worth it */
#define CACHED_LOW   30.0 /* per cent of the pool: below it the cache holds little */

static const struct doctor_text questions[DOCTOR_QUESTIONS] = {
    [ASK_STARTUP] = DOCTOR_TEXT(ask_startup),
    [ASK_BURST] = DOCTOR_TEXT(ask_burst),
    [ASK_CHRONIC] = DOCTOR_TEXT(ask_chronic),
    [ASK_PREFIX] = DOCTOR_TEXT(ask_prefix),
};
static const struct doctor_text advice[DOCTOR_QUESTIONS] = {
    [ASK_STARTUP] = DOCTOR_TEXT(advice_startup),
    [ASK_BURST] = DOCTOR_TEXT(advice_burst),
    [ASK_CHRONIC] = DOCTOR_TEXT(advice_chronic),
    [ASK_PREFIX] = DOCTOR_TEXT(advice_prefix),
};
static const struct doctor_text answers[] = {[REPLY_NO] = DOCTOR_TEXT(answer_no),
                                             [REPLY_YES] = DOCTOR_TEXT(answer_yes),
                                             [REPLY_UNKNOWN] = DOCTOR_TEXT(answer_unknown)};
static const struct doctor_text from_phase = DOCTOR_TEXT(flow_from_phase),
                                from_numbers = DOCTOR_TEXT(flow_from_numbers),
                                from_class = DOCTOR_TEXT(flow_from_class),
                                from_rate = DOCTOR_TEXT(flow_from_rate),
                                from_share = DOCTOR_TEXT(flow_from_share),
                                from_rest = DOCTOR_TEXT(flow_from_rest);

bool doctor_flow_applies(enum doctor_class cls)
{
    switch (cls) {
    case DOCTOR_DEVICE_OOM:
    case DOCTOR_STARTUP_OOM:
    case DOCTOR_BURST_OOM:
    case DOCTOR_FRAG_OOM:
    case DOCTOR_PREFIX: return true;
    case DOCTOR_HOST_OOM:
    case DOCTOR_CONFIG:
    case DOCTOR_PORT:
    case DOCTOR_DISK:
    case DOCTOR_HANG:
    case DOCTOR_DEVICE:
    case DOCTOR_COMM:
    case DOCTOR_OVERLOAD:
    case DOCTOR_SIGNAL:
    case DOCTOR_BUG:
    case DOCTOR_KV_PRESSURE:
    case DOCTOR_BUILD:
    case DOCTOR_FILES:
    case DOCTOR_CLIENT:
    case DOCTOR_LEAK:
    case DOCTOR_CLASSES: break;
    }
    return false;
}

/* Memory in pieces: the numbers decide, not the hint in the message. */
static enum doctor_reply in_pieces(const struct doctor_numbers *n)
{
    double x, y, z;
    if (!doctor_numbers_lookup(n, "requested", &x) || !doctor_numbers_lookup(n, "free", &y) ||
        !doctor_numbers_lookup(n, "reserved", &z))
        return REPLY_UNKNOWN;
    return y < x && y + z >= x && !doctor_numbers_find(n, "is_shared") ? REPLY_YES : REPLY_NO;
}

static struct doctor_step startup(enum doctor_class cls, enum doctor_phase phase)
{
    if (cls == DOCTOR_STARTUP_OOM)
        return (struct doctor_step){REPLY_YES,
                                    doctor_phase_early(phase) ? &from_phase : &from_class};
    if (phase == DOCTOR_PHASE_UNKNOWN && cls != DOCTOR_PREFIX && cls != DOCTOR_BURST_OOM)
        return (struct doctor_step){REPLY_UNKNOWN, NULL};
    return (struct doctor_step){doctor_phase_early(phase) ? REPLY_YES : REPLY_NO, &from_phase};
}

void doctor_flow(enum doctor_class cls, enum doctor_phase phase, const struct doctor_numbers *n,
                 struct doctor_step ret_steps[DOCTOR_QUESTIONS])
{
    enum doctor_reply pieces = in_pieces(n);
    double rate = 0, cached = 100;
    bool has_rate = doctor_numbers_lookup(n, "hit_rate_percent", &rate);
    (void)doctor_numbers_lookup(n, "cached_percent", &cached); /* unsaid: it may hold all */

    ret_steps[ASK_STARTUP] = startup(cls, phase);
    ret_steps[ASK_CHRONIC] = (struct doctor_step){pieces, &from_numbers};
    if (cls == DOCTOR_FRAG_OOM)
        ret_steps[ASK_CHRONIC] =
            (struct doctor_step){REPLY_YES, pieces == REPLY_YES ? &from_numbers : &from_class};
    else if (pieces == REPLY_UNKNOWN)
        ret_steps[ASK_CHRONIC].why = NULL;
    ret_steps[ASK_PREFIX] = (struct doctor_step){REPLY_UNKNOWN, NULL};
    if (cls == DOCTOR_PREFIX)
        ret_steps[ASK_PREFIX] = (struct doctor_step){REPLY_YES, &from_class};
    else if (cached < CACHED_LOW)
        ret_steps[ASK_PREFIX] = (struct doctor_step){REPLY_NO, &from_share};
    else if (has_rate)
        ret_steps[ASK_PREFIX] =
            (struct doctor_step){rate < HIT_RATE_LOW ? REPLY_YES : REPLY_NO, &from_rate};
    ret_steps[ASK_BURST] = (struct doctor_step){REPLY_UNKNOWN, NULL};
    if (cls == DOCTOR_BURST_OOM)
        ret_steps[ASK_BURST] =
            (struct doctor_step){REPLY_YES, pieces == REPLY_NO ? &from_numbers : &from_class};
    else if (ret_steps[ASK_STARTUP].answer == REPLY_YES)
        ret_steps[ASK_BURST] = (struct doctor_step){REPLY_NO, &from_phase};
    else if (ret_steps[ASK_CHRONIC].answer == REPLY_YES)
        ret_steps[ASK_BURST] = (struct doctor_step){REPLY_NO, ret_steps[ASK_CHRONIC].why};
    else if (ret_steps[ASK_STARTUP].answer == REPLY_NO && cls == DOCTOR_DEVICE_OOM)
        ret_steps[ASK_BURST] = (struct doctor_step){REPLY_YES, &from_rest};
}

const char *doctor_question(enum doctor_question q, enum doctor_lang lang)
{
    return questions[q].in[lang];
}

const char *doctor_answer(enum doctor_reply a, enum doctor_lang lang)
{
    return answers[a].in[lang];
}

const char *doctor_advice(enum doctor_question q, enum doctor_lang lang)
{
    return advice[q].in[lang];
}
