#include "supervisor/io/journal.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"

static const char *const reason_ids[REASON_COUNT] = {
    [REASON_NONE] = NULL,
    [REASON_LOWER_KV_HARM] = "8b5dc25acc46f14b74a10b8e4ca11dbf",
    [REASON_LOWER_PANIC] = "f08e7e0931e48f1e92f821620998e0ae",
    [REASON_LOWER_ITL_PREFILL] = "9bbc0800aec562dcfe95b863f7cc8e2f",
    [REASON_RAISE_HEADROOM] = "895e115855a394691c6da80f8542cc5c",
    [REASON_RAISE_PROBE1] = "b45fc2fc9cf06e8c029ea09e27d72bbe",
    [REASON_DRIFT_BACK] = "c2111ba814f3bd95c0737e79e1e225da",
    [REASON_REVERT_INEFFECTIVE] = "2461609032508fc580d82528720505c2",
    [REASON_HOLD_COOLDOWN] = "fe71bd0842094bb549906ff263c99e49",
    [REASON_HOLD_SETTLING] = "9a326a3405bfa14d29c9e23d4c57426d",
    [REASON_HOLD_NOT_BINDING] = "54eaeae4d0dbe2caedd4788dc8c2f84f",
    [REASON_HOLD_FEEDFORWARD] = "aade1b70cb1f45a56244523d789b97ff",
    [REASON_HOLD_SLO] = "41684286bf6f24b470d4f999fae59cbb",
    [REASON_KV_FULL_HEALTHY] = "66960d1804bb3a7378f49d45694ad323",
    [REASON_SAT_LOW] = "0a01ce571ba7f774b16cbe423eed11aa",
    [REASON_SAT_HIGH] = "a2edb1dc01820da7b17ef424634e94fd",
    [REASON_OSC_DAMP] = "92a737ba7db3bd06cddb86a1941150eb",
    [REASON_OSC_FREEZE] = "abd35cbfc3b33f755110836db07b44a1",
    [REASON_SIGNAL_DEGRADED] = "8ebb06b171b4a1ca130d3047f4b32a65",
    [REASON_SIGNAL_RESET] = "9510fe75136403dbbae42269afc5e7d8",
    [REASON_LIMIT_APPLY_FAILED] = "1bc8be4bd547ee33831234953e3cc268",
    [REASON_OPERATOR_PIN] = "8604a8a6975df4a549985d1c841e536e",
    [REASON_HANG_NOPROGRESS] = "46906ffbbdbce40d09cc9a55123f5cba",
    [REASON_CRASH] = "83e47ee5e731a4263b83ec3ef3efa9a8",
    [REASON_BACKOFF] = "b56181ed4ff194eaf19cfedb3ee153ec",
    [REASON_BREAKER_OPEN] = "2e5e868c06937dc55d57ebaaf0bf89a4",
    [REASON_DRAIN_START] = "054220008cbe412a9199c009d92d631a",
    [REASON_DRAIN_DONE] = "da973d6d63302dab60a0cd180593585d",
    [REASON_DRAIN_DEADLINE] = "f5152e0afeeb0d634e3a881f99b4cc04",
    [REASON_STARTED] = "8f068be736f19e97142a8c4c55d217a9",
    [REASON_READY] = "54adcfb1d3b54cdf374a47cd8178cbff",
    [REASON_ADOPTED] = "a478de759baf62be1e0e3004154bc22b",
    [REASON_OPERATOR] = "af1ec216d49f9bcdf60ce64f534f6bc4",
    [REASON_SHED_ON] = "1c64bbc7e8184aba80e5cdeb53b38252",
    [REASON_SHED_OFF] = "28af5f3e826f4a0eb48f7e49d025ef81",
    [REASON_REMEDY] = "e3702adf33c2457388746ffbd609e386",
    [REASON_FRAG_TRIM] = "897dfcf63ea243b8acf363fc3f1400f8",
    [REASON_FRAG_CHRONIC] = "21cf1edcaf8349d7872895ceb46788dd",
    [REASON_FRAG_INEFFECTIVE] = "39ebdf165bf842ff9524ad88240c80fc",
    [REASON_BLOCK_LEAK] = "e94e1507ba6a49f8b2fa0ed07117349b",
    [REASON_PREFIX_CAP] = "edce840eb35c48db8d31c74f7b2d2d1f",
    [REASON_RESTART_BUDGET] = "b422a478475a46d08e9abd0a77f61c19",
    [REASON_RESTART_HOURS] = "bb3b753f7b7546f4a44ae9e7d32d9924",
    [REASON_LEASE_WAIT] = "64a2cf622ddb4e94b92af504e7f8d296",
    [REASON_ATTACHED] = "1c07575f686a496e8d78d573519b5595",
    [REASON_NO_SYSTEMD] = "665084201df34c88a7c224f088011c95",
    [REASON_RAMP] = "e92cbbd7b1e84ac595f22d4fe697c077",
    [REASON_NEXT_START] = "c81c38782beb47ba994139c22ed0465e",
    [REASON_GPU_WAIT] = "56a2cbf3fcb24b83911e11e039b860a4",
    [REASON_HOST_WAIT] = "cbede1c654974403a89e11dd908015e2",
    [REASON_PORT_WAIT] = "9d1f7a5c2be44d0e8c63f0a7b1e25d48",
    [REASON_OOM_QUESTIONS] = "f211b81745674f2e8f319bd3d45767b5",
    [REASON_STUCK_UNKILLABLE] = "f753f1b37b2243039585d0363c4119c6",
    [REASON_RESERVE_MORE] = "c764ae217e934bd9ab96a4758a8679de",
    [REASON_RESERVE_LESS] = "2fd6539238e9451aba3a18c582bd23df",
    [REASON_UNWATCHED] = "51cce9117a4051f7984bc2ecf6620c5d",
    [REASON_ENGINE_HOLDS] = "8e97593bd38c4ca588d01a58a7710324",
    [REASON_PREEMPTIONS] = "1a52b4c312ba4090aad6e1eead57be67",
};

static const char *const crash_ids[CRASH_COUNT] = {
    [CRASH_CLEAN_EXIT] = "04752342fb8abb3f9518a7b0fefd7f36",
    [CRASH_STARTUP_OOM] = "3c038cffdc6106898c4b1a3fdb979e6e",
    [CRASH_BURST_OOM] = "5f039fa0e8ff8bd756f46dcc28c835cb",
    [CRASH_FRAG_OOM] = "e0c562ede5ce9f501fcc2a392026ee5c",
    [CRASH_HOST_OOM] = "314cdceeb62f39f5afe98b4299502213",
    [CRASH_CONFIG] = "7ce58b3b66508b10eb10f25b0e0e1098",
    [CRASH_PORT] = "ef204e4ad7e8a01278b442c826c24546",
    [CRASH_DISK] = "3dd5ad2fb084dc63b03ead5ee7307bd9",
    [CRASH_HANG_KILLED] = "7c11f97b15955cb5fb18861a2fb68073",
    [CRASH_LOOP] = "1ab14ef74b6a4ec8b7c6e94e7323b234",
    [CRASH_DEVICE] = "cbbf22a86b85ff1539cda63d22e1070b",
    [CRASH_COMM] = "8fb4219294b5e9b44933fc0aaaf26660",
    [CRASH_SIGNAL] = "530b9287a34048fec686fcfcef942789",
    [CRASH_UNKNOWN] = "763484cb81df2d3d2ca739dec20d91b3",
};

const char *journal_id(enum reason r)
{
    return (unsigned)r < REASON_COUNT ? reason_ids[r] : NULL;
}

const char *journal_crash_id(enum crash_class c)
{
    return (unsigned)c < CRASH_COUNT ? crash_ids[c] : NULL;
}

/* Something a person should look at, an action, or plain course of events. */
static enum ek_log_level level_of(const struct decision *d)
{
    switch (d->reason) {
    case REASON_HANG_NOPROGRESS:
    case REASON_STUCK_UNKILLABLE:
    case REASON_CRASH:
    case REASON_BREAKER_OPEN: return EK_LOG_ERR;
    case REASON_LIMIT_APPLY_FAILED:
    case REASON_SIGNAL_DEGRADED:
    case REASON_SAT_LOW:
    case REASON_OSC_FREEZE:
    case REASON_DRAIN_DEADLINE:
    case REASON_REMEDY:
    case REASON_NEXT_START:
    case REASON_FRAG_CHRONIC:
    case REASON_FRAG_INEFFECTIVE:
    case REASON_BLOCK_LEAK:
    case REASON_NO_SYSTEMD:
    case REASON_GPU_WAIT:
    case REASON_HOST_WAIT:
    case REASON_PORT_WAIT:
    case REASON_BACKOFF: return EK_LOG_WARNING;
    case REASON_NONE:
    case REASON_HOLD_COOLDOWN:
    case REASON_HOLD_SETTLING:
    case REASON_HOLD_NOT_BINDING:
    case REASON_HOLD_FEEDFORWARD:
    case REASON_HOLD_SLO:
    case REASON_KV_FULL_HEALTHY:
    case REASON_SAT_HIGH:
    case REASON_SIGNAL_RESET:
    case REASON_STARTED:
    case REASON_READY:
    case REASON_RESTART_HOURS:
    case REASON_LEASE_WAIT:
    case REASON_OOM_QUESTIONS:
    case REASON_ENGINE_HOLDS:
    case REASON_ATTACHED:
    case REASON_UNWATCHED:
    case REASON_ADOPTED: return EK_LOG_INFO;
    case REASON_LOWER_KV_HARM:
    case REASON_LOWER_PANIC:
    case REASON_LOWER_ITL_PREFILL:
    case REASON_RAISE_HEADROOM:
    case REASON_RAISE_PROBE1:
    case REASON_DRIFT_BACK:
    case REASON_REVERT_INEFFECTIVE:
    case REASON_OSC_DAMP:
    case REASON_OPERATOR_PIN:
    case REASON_DRAIN_START:
    case REASON_RAMP:
    case REASON_DRAIN_DONE:
    case REASON_SHED_ON:
    case REASON_SHED_OFF:
    case REASON_RESERVE_MORE:
    case REASON_RESERVE_LESS:
    case REASON_PREEMPTIONS:
    case REASON_FRAG_TRIM:
    case REASON_PREFIX_CAP:
    case REASON_RESTART_BUDGET:
    case REASON_OPERATOR:
    case REASON_COUNT: return EK_LOG_NOTICE;
    }
    return EK_LOG_NOTICE;
}

#define FIELD_BYTES 96

void journal_decision(const char *server, const struct decision *d)
{
    char f[9][FIELD_BYTES];
    const char *fields[10] = {NULL};
    int n = 0;
    bool change = action_is_change(d->kind);
    /* A field that is cut short is still the right field. */
    (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_SERVER=%s", server);
    (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_REASON=%s", reason_name(d->reason));
    (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_ACTION=%s", action_name(d->kind));
    if (change) {
        (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_KNOB=%s", knob_name(d->knob));
        (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_FROM=%u", d->from);
        (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_TO=%u", d->to);
        if (isfinite(d->measured)) /* what is not known has no field */
            (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_MEASURED=%.6g", d->measured);
        if (isfinite(d->limit))
            (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_LIMIT=%.6g", d->limit);
        (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_APPLIED=%d", d->applied);
    }
    for (int i = 0; i < n; i++)
        fields[i] = f[i];
    ek_log_event(level_of(d), journal_id(d->reason), fields, "%s: %s%s [%s]", server, d->why,
                 change && !d->applied ? " (not applied)" : "", reason_name(d->reason));
}

void journal_crash(const char *server, const struct crash_verdict *v, int status, bool signaled)
{
    char f[3][FIELD_BYTES];
    (void)snprintf(f[0], FIELD_BYTES, "EVENKEEL_SERVER=%s", server);
    (void)snprintf(f[1], FIELD_BYTES, "EVENKEEL_CLASS=%s", crash_name(v->cls));
    (void)snprintf(f[2], FIELD_BYTES, "EVENKEEL_%s=%d", signaled ? "SIGNAL" : "STATUS", status);
    const char *fields[] = {f[0], f[1], f[2], NULL};
    bool clean = v->cls == CRASH_CLEAN_EXIT;
    size_t len = strlen(v->why);
    int why = (int)(len > 0 && v->why[len - 1] == '.' ? len - 1 : len);
    ek_log_event(clean ? EK_LOG_INFO : EK_LOG_ERR, journal_crash_id(v->cls), fields,
                 "%s: ended: %.*s%s%s [%s]", server, why, v->why, v->remedy && !clean ? ". " : "",
                 v->remedy && !clean ? v->remedy : "", crash_name(v->cls));
}
