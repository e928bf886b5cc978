/*
 * Makes the JSON document of a server's end; servers/postmortem_keep.c calls it in a thread,
 * postmortem_say.c adds the sentences. The recording is a file that another process wrote while it
 * died: it may be cut, and its numbers may be anything, so each is checked before it is printed.
 * Steps are grouped by the second of the wall clock.
 */
#include "supervisor/law/postmortem.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "supervisor/law/postmortem_inside.h"

#define LOOK_BACK (2 * EK_RECORDER_BEGUN) /* steps that may have landed since one of them began */

/* Looking */

static uint64_t last_record_us(const struct ek_recorded *r)
{
    uint64_t last = 0;
    if (r->step_count > 0)
        last = r->steps[r->step_count - 1].at_us;
    if (r->begun_count > 0 && r->begun[r->begun_count - 1].at_us > last)
        last = r->begun[r->begun_count - 1].at_us;
    if (r->request_count > 0 && r->requests[r->request_count - 1].at_us > last)
        last = r->requests[r->request_count - 1].at_us;
    return last;
}

uint64_t postmortem_end_us(const struct postmortem *p, const struct ek_recorded *r)
{
    uint64_t last = last_record_us(r);
    return !p->unseen && p->now_us > last ? p->now_us : last;
}

uint64_t postmortem_wall_us(const struct postmortem *p, const struct ek_recorded *rec)
{
    uint64_t last = p->unseen && rec ? last_record_us(rec) : 0;
    uint64_t wall = last > 0 ? ek_recorded_wall_us(rec, last) : p->wall_us;
    return wall < p->wall_us ? wall : p->wall_us; /* not after it was found */
}

/* That of a process that was not watched until what it did last; without that nothing is known. */
static double uptime_s(const struct postmortem *p, const struct ek_recorded *rec)
{
    uint64_t last = rec ? last_record_us(rec) : 0;
    if (!p->unseen)
        return p->uptime_s;
    return last > 0 && last > rec->head.started_us ? (double)(last - rec->head.started_us) / 1e6
                                                   : 0;
}

bool postmortem_in_flight(const struct ek_recorded *r, const struct ek_recorder_step *begun)
{
    uint32_t from = r->step_count > LOOK_BACK ? r->step_count - LOOK_BACK : 0;
    for (uint32_t i = r->step_count; i > from; i--) {
        const struct ek_recorder_step *t = &r->steps[i - 1];
        if (t->id == begun->id || (t->error == 0 && t->id > begun->id))
            return false;
    }
    return true;
}

static int by_id(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

void postmortem_find_alive(const struct ek_recorded *r, struct postmortem_alive *ret)
{
    uint64_t *ended = calloc(r->request_count + 1u, sizeof(*ended));
    uint32_t n = 0;
    *ret = (struct postmortem_alive){.at = calloc(r->request_count + 1u, sizeof(*ret->at))};
    for (uint32_t i = 0; ended && i < r->request_count; i++)
        if (r->requests[i].kind == EK_RECORDER_ENDED)
            ended[n++] = r->requests[i].id;
    if (n > 0)
        qsort(ended, n, sizeof(*ended), by_id);
    for (uint32_t i = 0; ended && ret->at && i < r->request_count; i++) {
        const struct ek_recorder_request *q = &r->requests[i];
        if (q->kind != EK_RECORDER_ARRIVED ||
            (n > 0 && bsearch(&q->id, ended, n, sizeof(*ended), by_id)))
            continue;
        ret->at[ret->count++] = i;
        ret->grammars += (q->flags & EK_RECORDER_GRAMMAR) != 0;
        if (q->prompt_tokens > ret->longest_prompt)
            ret->longest_prompt = q->prompt_tokens;
        if (q->most_tokens > ret->most_tokens)
            ret->most_tokens = q->most_tokens;
    }
    free(ended);
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

uint32_t postmortem_median(const struct ek_recorder_step *steps, uint32_t count)
{
    uint32_t *us = count > 0 ? malloc(count * sizeof(*us)) : NULL;
    if (!us)
        return 0;
    for (uint32_t i = 0; i < count; i++)
        us[i] = steps[i].step_us;
    qsort(us, count, sizeof(*us), by_size);
    uint32_t median = us[count / 2];
    free(us);
    return median;
}

/* Writing */

static void postmortem_put_text(struct ek_buf *out, const char *key, const char *text)
{
    (void)ek_buf_printf(out, "\"%s\":\"", key);
    (void)ek_buf_json(out, text, strlen(text));
    (void)ek_buf_puts(out, "\",");
}

static void put_bytes(struct ek_buf *out, const char *key, double bytes)
{
    if (isfinite(bytes) && bytes > 0)
        (void)ek_buf_printf(out, "\"%s\":%.0f,", key, bytes);
    else
        (void)ek_buf_printf(out, "\"%s\":null,", key);
}

static double wall_s(const struct ek_recorded *r, uint64_t at_us)
{
    return (double)ek_recorded_wall_us(r, at_us) / 1e6;
}

/* A number that every reader of JSON takes: the file is another's, and ours never get there. */
static unsigned long long json_id(uint64_t id)
{
    return id & INT64_MAX;
}

/* What a step left, for a second its last one. */
static void postmortem_put_state(const struct ek_recorder_step *t, struct ek_buf *out)
{
    (void)ek_buf_printf(out,
                        "\"running\":%u,\"waiting\":%u,\"preempted\":%u,\"blocks_total\":%u,"
                        "\"blocks_used\":%u,\"blocks_cached\":%u,\"blocks_free\":%u,"
                        "\"limit_seqs\":%u,\"limit_tokens\":%u,\"limit_blocks\":%u,",
                        t->running, t->waiting, t->preempted, t->blocks_total, t->blocks_used,
                        t->blocks_cached, t->blocks_free, t->limit_seqs, t->limit_tokens,
                        t->limit_blocks);
    if (t->resident_mib)
        (void)ek_buf_printf(out, "\"resident_mib\":%u}", t->resident_mib);
    else
        (void)ek_buf_puts(out, "\"resident_mib\":null}");
}

/* Steps [from, to) are of one second of the wall clock. */
static void put_second(const struct ek_recorded *r, uint32_t from, uint32_t to, struct ek_buf *out)
{
    const struct ek_recorder_step *last = &r->steps[to - 1];
    uint64_t rows = 0, prefill = 0;
    uint32_t most_us = 0, errors = 0, least_free = UINT32_MAX;
    for (uint32_t i = from; i < to; i++) {
        const struct ek_recorder_step *t = &r->steps[i];
        rows += t->rows;
        prefill += t->prefill_rows;
        errors += t->error != 0;
        most_us = t->step_us > most_us ? t->step_us : most_us;
        least_free = t->blocks_free < least_free ? t->blocks_free : least_free;
    }
    const struct ek_recorder_step *before = &r->steps[from > 0 ? from - 1 : from];
    (void)ek_buf_printf(out,
                        "{\"at_s\":%.0f,\"steps\":%u,\"prefill_tokens\":%llu,\"decode_rows\":%llu,"
                        "\"generated\":%u,\"preemptions\":%u,\"step_p50_us\":%u,"
                        "\"step_max_us\":%u,\"failed\":%u,\"least_blocks_free\":%u,",
                        floor(wall_s(r, last->at_us)), to - from, (unsigned long long)prefill,
                        (unsigned long long)(rows > prefill ? rows - prefill : 0),
                        last->generation_tokens - before->generation_tokens,
                        last->preemptions - before->preemptions,
                        postmortem_median(&r->steps[from], to - from), most_us, errors, least_free);
    postmortem_put_state(last, out);
}

static void put_seconds(const struct ek_recorded *r, struct ek_buf *out)
{
    uint64_t last_us = last_record_us(r);
    const char *comma = "";
    uint32_t seconds = 0, from = 0;
    while (from < r->step_count && last_us > POSTMORTEM_S * EK_US_PER_S &&
           r->steps[from].at_us < last_us - POSTMORTEM_S * EK_US_PER_S)
        from++;
    (void)ek_buf_puts(out, "\"seconds\":[");
    while (from < r->step_count && seconds++ <= POSTMORTEM_S) {
        uint32_t to = from + 1;
        uint64_t second = ek_recorded_wall_us(r, r->steps[from].at_us) / EK_US_PER_S;
        while (to < r->step_count &&
               ek_recorded_wall_us(r, r->steps[to].at_us) / EK_US_PER_S == second)
            to++;
        (void)ek_buf_puts(out, comma);
        put_second(r, from, to, out);
        comma = ",";
        from = to;
    }
    (void)ek_buf_puts(out, "],");
}

static void put_step(const struct ek_recorded *r, const struct ek_recorder_step *t,
                     struct ek_buf *out)
{
    (void)ek_buf_printf(out,
                        "{\"at_s\":%.6f,\"id\":%llu,\"step_us\":%u,\"plan_us\":%u,\"wait_us\":%u,"
                        "\"mask_us\":%u,\"rows\":%u,\"prefill_rows\":%u,\"seqs\":%u,"
                        "\"copies\":%u,\"error\":%d,",
                        wall_s(r, t->at_us), json_id(t->id), t->step_us, t->plan_us, t->wait_us,
                        t->mask_us, t->rows, t->prefill_rows, t->seqs, t->copies, t->error);
    postmortem_put_state(t, out);
}

static void put_steps(const struct ek_recorded *r, struct ek_buf *out)
{
    const char *comma = "";
    uint32_t from = r->step_count > POSTMORTEM_STEPS ? r->step_count - POSTMORTEM_STEPS : 0;
    (void)ek_buf_puts(out, "\"last_steps\":[");
    for (uint32_t i = from; i < r->step_count; i++) {
        (void)ek_buf_puts(out, comma);
        put_step(r, &r->steps[i], out);
        comma = ",";
    }
    (void)ek_buf_puts(out, "],\"in_flight\":[");
    comma = "";
    for (uint32_t i = 0; i < r->begun_count; i++) {
        if (!postmortem_in_flight(r, &r->begun[i]))
            continue;
        (void)ek_buf_puts(out, comma);
        put_step(r, &r->begun[i], out);
        comma = ",";
    }
    (void)ek_buf_puts(out, "],");
}

static void put_flags(uint32_t flags, struct ek_buf *out)
{
    static const struct {
        uint32_t flag;
        const char *name;
    } names[] = {{EK_RECORDER_GRAMMAR, "grammar"}, {EK_RECORDER_SCORES, "prompt_logprobs"},
                 {EK_RECORDER_TOP, "logprobs"},    {EK_RECORDER_SAMPLED, "sampled"},
                 {EK_RECORDER_PENALTY, "penalty"}, {EK_RECORDER_HIDDEN, "embedding"}};
    const char *comma = "";
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!(flags & names[i].flag))
            continue;
        (void)ek_buf_printf(out, "%s\"%s\"", comma, names[i].name);
        comma = ",";
    }
}

/* Those that had not ended, the oldest first. */
static void put_requests(const struct ek_recorded *r, struct ek_buf *out)
{
    uint32_t arrived = 0, ended = 0;
    struct postmortem_alive alive;
    postmortem_find_alive(r, &alive);
    for (uint32_t i = 0; i < r->request_count; i++) {
        arrived += r->requests[i].kind == EK_RECORDER_ARRIVED;
        ended += r->requests[i].kind == EK_RECORDER_ENDED;
    }
    (void)ek_buf_printf(out, "\"requests\":{\"arrived\":%u,\"ended\":%u,\"alive\":%u,\"list\":[",
                        arrived, ended, alive.count);
    for (uint32_t i = 0; i < alive.count && i < POSTMORTEM_REQUESTS; i++) {
        const struct ek_recorder_request *q = &r->requests[alive.at[i]];
        (void)ek_buf_printf(out,
                            "%s{\"id\":%llu,\"arrived_s\":%.3f,\"prompt_tokens\":%u,"
                            "\"most_tokens\":%u,\"priority\":%d,\"has\":[",
                            i ? "," : "", json_id(q->id), wall_s(r, q->at_us), q->prompt_tokens,
                            q->most_tokens, q->priority);
        put_flags(q->flags, out);
        (void)ek_buf_puts(out, "]}");
    }
    (void)ek_buf_puts(out, "]},");
    free(alive.at);
}

static void put_losses(const struct postmortem *p, struct ek_buf *out)
{
    (void)ek_buf_puts(out, "\"engine_losses\":[");
    for (uint32_t i = 0; i < p->loss_count; i++) {
        (void)ek_buf_printf(out, "%s{\"at_s\":%.3f,", i ? "," : "",
                            (double)p->loss[i].wall_us / 1e6);
        postmortem_put_text(out, "class", p->loss[i].cls);
        postmortem_put_text(out, "said", p->loss[i].said);
        out->len -= !out->failed; /* the last comma */
        (void)ek_buf_puts(out, "}");
    }
    (void)ek_buf_puts(out, "],");
}

int postmortem_json(const struct postmortem *p, const struct ek_recorded *rec, struct ek_buf *out)
{
    (void)ek_buf_printf(out, "{\"version\":1,\"at_s\":%.3f,\"pid\":%d,\"uptime_s\":%.1f,",
                        (double)postmortem_wall_us(p, rec) / 1e6, p->pid, uptime_s(p, rec));
    postmortem_put_text(out, "server", p->server);
    postmortem_put_text(out, "engine", p->engine);
    postmortem_put_text(out, "class", p->cls);
    postmortem_put_text(out, "why", p->why);
    (void)ek_buf_printf(out, "\"starting\":%s,\"unseen\":%s,\"memory\":{",
                        p->starting ? "true" : "false", p->unseen ? "true" : "false");
    put_bytes(out, "resident_bytes", p->resident);
    put_bytes(out, "cgroup_bytes", p->cgroup);
    put_bytes(out, "cgroup_most_bytes", p->cgroup_most);
    out->len -= !out->failed; /* the last comma */
    (void)ek_buf_puts(out, "},\"summary\":");
    postmortem_summary(p, rec, out);
    (void)ek_buf_puts(out, ",");
    put_losses(p, out);
    if (rec) {
        (void)ek_buf_printf(out, "\"last_record_s\":%.6f,", wall_s(rec, last_record_us(rec)));
        put_seconds(rec, out);
        put_steps(rec, out);
        put_requests(rec, out);
        postmortem_workload(rec, out);
        (void)ek_buf_puts(out, ",");
    }
    (void)ek_buf_printf(out, "\"samples\":%s}", p->samples);
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
