#include "supervisor/doctor/flow.h"

#define HIT_RATE_LOW 30.0 /* per cent: below it the guides say that the cache is not worth it */
#define CACHED_LOW   30.0 /* per cent of the pool: below it the cache holds little */

static const struct doctor_text questions[DOCTOR_QUESTIONS] = {
    [ASK_STARTUP] = {{"Did it fail before it was ready?", "是否在就绪之前失败？"}},
    [ASK_BURST] = {{"Did it fail in a burst of tokens or sequences?",
                    "是否因 token 或序列突增而失败？"}},
    [ASK_CHRONIC] = {{"Was memory there, but in pieces (after days)?",
                      "显存是否足够但已碎片化（运行数日后）？"}},
    [ASK_PREFIX] = {{"Does the prefix cache hold memory and give little back?",
                     "前缀缓存是否占用显存而命中很低？"}},
};
static const struct doctor_text advice[DOCTOR_QUESTIONS] = {
    [ASK_STARTUP] = {{"lower the memory share, or offload weights", "降低显存占比，或卸载权重"}},
    [ASK_BURST] = {{"lower the budget of batched tokens, then the sequences",
                    "先降低批处理 token 预算，再降低并发序列数"}},
    [ASK_CHRONIC] = {{"trim; above 70 % in pieces drain and restart",
                      "整理显存；碎片超过 70 % 时排空并重启"}},
    [ASK_PREFIX] = {{"cap the prefix cache, or switch it off", "限制前缀缓存或将其关闭"}},
};
static const struct doctor_text answers[] = {[REPLY_NO] = {{"No", "否"}},
                                             [REPLY_YES] = {{"Yes", "是"}},
                                             [REPLY_UNKNOWN] = {{"Not known", "未知"}}};
static const struct doctor_text from_phase = {{"the phase in the log", "日志中的阶段"}},
                                from_numbers = {{"free + reserved against what was asked for",
                                                 "空闲 + 已保留 与申请量的比较"}},
                                from_class = {{"what failed says so", "故障本身已说明"}},
                                from_rate = {{"its hit rate", "其命中率"}},
                                from_share = {{"it holds little", "其占用很少"}},
                                from_rest = {{"the questions before are answered with no",
                                              "前面的问题均为否"}};

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
    return y < x && y + z >= x ? REPLY_YES : REPLY_NO;
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
