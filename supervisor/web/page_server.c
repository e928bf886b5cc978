/*
 * HTML of the servers' sections and of the overview, called by page.c. Numbers are formatted as the
 * script of page.html does it, or they would jump at the first refresh; all text from outside
 * passes page_escape().
 */
#include "supervisor/web/page_server.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/buf.h"
#include "common/clock.h"
#include "supervisor/servers/server.h"
#include "supervisor/servers/server_past.h"
#include "supervisor/web/key_table.h"
#include "supervisor/web/page.h"

#define SHOWN     30
#define RECENT_US (3600 * (uint64_t)EK_US_PER_S) /* a failure that long ago is shown open */
#define GIB       1073741824.0

static void put_time(struct ek_buf *out, uint64_t wall_us)
{
    char text[64];
    struct tm tm;
    time_t t = (time_t)(wall_us / EK_US_PER_S);
    bool old = ek_wall_us() / EK_US_PER_S > wall_us / EK_US_PER_S + 20 * 3600;
    if (gmtime_r(&t, &tm) && (old ? strftime(text, sizeof(text), "%m-%d %H:%M", &tm)
                                  : strftime(text, sizeof(text), "%T", &tm)) > 0)
        (void)ek_buf_puts(out, text);
}

enum shape { AS_NUMBER, AS_TENTHS, AS_PERCENT, AS_SECONDS };

/* As the script writes them. */
static void put_shaped(struct ek_buf *out, double v, enum shape shape)
{
    if (!isfinite(v)) {
        (void)ek_buf_puts(out, "–");
        return;
    }
    switch (shape) {
    case AS_NUMBER: (void)ek_buf_printf(out, "%.0f", v); break;
    case AS_TENTHS: (void)ek_buf_printf(out, "%.1f", v); break;
    case AS_PERCENT: (void)ek_buf_printf(out, "%.*f %%", v > 0 && v < 0.0995, 100 * v); break;
    case AS_SECONDS:
        if (v < 1)
            (void)ek_buf_printf(out, "%.*f ms", v < 0.01, 1000 * v);
        else
            (void)ek_buf_printf(out, "%.2f s", v);
        break;
    }
}

static void put_tile(struct ek_buf *out, const struct view *view, const char *label,
                     enum view_id id, enum shape shape, const char *after)
{
    (void)ek_buf_printf(out, "<div class=\"tile\"><b><span data-k=\"%s\">", view_name(id));
    put_shaped(out, view->value[id], shape);
    (void)ek_buf_printf(out, "</span>%s</b><span>%s</span></div>\n", after, label);
}

/* Of requests that got theirs; when none did of late, the wait of the first one in the queue. */
static void put_first_token(struct ek_buf *out, const struct server *s)
{
    double ttft = s->watch.view.value[VIEW_TTFT_P99],
           oldest = s->watch.view.value[VIEW_QUEUE_OLDEST];
    bool waits = !isfinite(ttft) && isfinite(oldest) && oldest > 0;
    (void)ek_buf_puts(out, waits ? "&gt; " : "");
    put_shaped(out, waits ? oldest : ttft, AS_SECONDS);
}

static void put_ttft(struct ek_buf *out, const struct server *s)
{
    (void)ek_buf_puts(out, "<div class=\"tile\"><b><span data-k=\"ttft_p99_s\">");
    put_first_token(out, s);
    (void)ek_buf_puts(out, "</span></b><span>TTFT p99</span></div>\n");
}

/* The controller's state in words, as the script writes them. */
static const char *state_words(enum policy_state state)
{
    switch (state) {
    case POL_PRESSURE: return "preempting";
    case POL_SAT_LOW: return "at minimum";
    case POL_INIT:
    case POL_HEALTHY:
    case POL_HOLD:
    case POL_RECOVER:
    case POL_DEGRADED: break;
    }
    return policy_state_name(state);
}

static double part(double v)
{
    return isfinite(v) && v > 0 ? (v < 1 ? v : 1) : 0;
}

static void put_kv_part(struct ek_buf *out, const char *name, const char *word, double v)
{
    (void)ek_buf_printf(out, "<span><i class=\"k-%s\"></i>%s <span data-k=\"kv_%s\">", name, word,
                        name);
    put_shaped(out, v, AS_PERCENT);
    (void)ek_buf_puts(out, "</span></span>");
}

static void put_kv_bar(struct ek_buf *out, const struct server *s)
{
    const double *v = s->watch.view.value;
    double used = part(v[VIEW_KV_USAGE]), blocks = v[VIEW_BLOCKS_TOTAL];
    double cached = blocks > 0 ? part(v[VIEW_BLOCKS_CACHED] / blocks) : 0;
    if (used + cached > 1)
        cached = 1 - used;
    bool known = isfinite(v[VIEW_KV_USAGE]);
    (void)ek_buf_puts(out, "<div><dt><span>KV cache <span data-k=\"kv_blocks\">");
    if (isfinite(blocks))
        (void)ek_buf_printf(out, "%.0f blocks", blocks);
    (void)ek_buf_puts(out, "</span></span><b data-k=\"kv_usage\">");
    put_shaped(out, v[VIEW_KV_USAGE], AS_PERCENT);
    (void)ek_buf_printf(out,
                        "</b></dt><dd><svg class=\"bar\" data-bar=\"kv\" aria-hidden=\"true\">"
                        "<rect class=\"pinned\" height=\"10\" width=\"%.2f%%\"/>"
                        "<rect class=\"cached\" height=\"10\" x=\"%.2f%%\" width=\"%.2f%%\"/>"
                        "<rect class=\"mark\" height=\"10\" x=\"%.2f%%\" width=\"2\"/></svg>"
                        "<p class=\"key\">",
                        100 * used, 100 * used, 100 * cached, 100 * s->config->policy.usage_high);
    put_kv_part(out, "pinned", "in use", v[VIEW_KV_USAGE]);
    put_kv_part(out, "cached", "cached", known ? cached : (double)NAN);
    put_kv_part(out, "free", "free", known ? 1 - used - cached : (double)NAN);
    (void)ek_buf_printf(out,
                        "<span><i class=\"k-mark\"></i>lowers above %.0f %%</span></p></dd>"
                        "</div>\n",
                        100 * s->config->policy.usage_high);
}

static void put_limit_bar(struct ek_buf *out, const struct server *s, enum knob k)
{
    struct policy_params p = server_params(s);
    uint32_t ceiling = server_ceiling(s, k);
    uint32_t max = ceiling ? ceiling : k == KNOB_SEQS ? p.seqs_max : p.tokens_max;
    bool shown = s->law.policy && (ceiling || server_limits_live(s) || s->config->edge);
    uint32_t value = shown ? policy_limit(s->law.policy, k) : 0;
    bool pinned = s->law.policy && policy_pinned(s->law.policy, k);
    const char *name = knob_name(k);
    (void)ek_buf_printf(out, "<div><dt><span>%s</span><span><b data-k=\"limit_%s\">", name, name);
    put_shaped(out, value ? value : (double)NAN, AS_NUMBER);
    (void)ek_buf_printf(out, "%s</b> of <span data-k=\"ceiling_%s\">", pinned ? " pinned" : "",
                        name);
    put_shaped(out, ceiling ? ceiling : (double)NAN, AS_NUMBER);
    double runs = k == KNOB_SEQS && max ? part(s->watch.view.value[VIEW_RUNNING] / max) : 0;
    (void)ek_buf_printf(out,
                        "</span></span></dt><dd><svg class=\"bar\" data-bar=\"%s\" "
                        "aria-hidden=\"true\"><rect class=\"limit\" height=\"10\" "
                        "width=\"%.2f%%\"/><rect class=\"runs\" height=\"10\" "
                        "width=\"%.2f%%\"/></svg>%s</dd></div>\n",
                        name, max ? 100.0 * part((double)value / max) : 0.0, 100 * runs,
                        k == KNOB_SEQS
                            ? "<p class=\"key\"><span><i class=\"k-runs\"></i>running"
                              "</span><span><i class=\"k-limit\"></i>limit now</span>"
                              "<span><i class=\"k-free\"></i>up to the ceiling</span></p>"
                            : "");
}

/* "breaker open" */
static void page_server_put_state(struct ek_buf *out, const struct server *s)
{
    if (s->state == SRV_READY && !s->probe.ready) {
        (void)ek_buf_puts(out, s->watch.halted_us ? "halted" : "not ready");
        return;
    }
    for (const char *c = server_state_name(s->state); *c; c++)
        (void)ek_buf_add(out, *c == '_' ? " " : c, 1);
}

static const char *level_of(const struct server *s)
{
    switch (s->state) {
    case SRV_READY: return s->probe.ready ? "good" : "warn";
    case SRV_BACKOFF:
    case SRV_BREAKER: return "bad";
    case SRV_ADOPTING:
    case SRV_STARTING:
    case SRV_DRAINING:
    case SRV_DRAINED:
    case SRV_STOPPING: return "warn";
    case SRV_STOPPED:
    case SERVER_STATES: break;
    }
    return "";
}

static void page_server_put_memory(struct ek_buf *out, const struct server *s)
{
    const struct memory_figures *m = &s->memory.now;
    if (memory_known(s) && m->resident > 0) {
        (void)ek_buf_printf(out, " · memory %.2f GiB", m->resident / GIB);
        if (m->cgroup > 0)
            (void)ek_buf_printf(out, ", cgroup %.2f", m->cgroup / GIB);
        if (m->most > 0)
            (void)ek_buf_printf(out, " of %.2f", m->most / GIB);
    }
    const struct gpus *g = figures_gpus(s->with->figures);
    for (uint32_t i = 0; g->error == 0 && i < g->count; i++) {
        if (g->at[i].total == 0 || !gpus_has(s->config->device_set, i))
            continue;
        (void)ek_buf_printf(out, " · GPU %u: %.1f of %.1f GiB", i, (double)g->at[i].used / GIB,
                            (double)g->at[i].total / GIB);
        if (g->at[i].busy_percent >= 0)
            (void)ek_buf_printf(out, ", %d %% busy", g->at[i].busy_percent);
    }
    (void)ek_buf_puts(out, "</span></span></div>\n");
}

static void put_head(struct ek_buf *out, const struct server *s)
{
    const struct server_config *c = s->config;
    (void)ek_buf_printf(out,
                        "<div class=\"head\"><h2>%s</h2><span class=\"badge\" "
                        "data-k=\"state\" data-level=\"%s\">",
                        c->name, level_of(s));
    page_server_put_state(out, s);
    (void)ek_buf_puts(out, "</span><span class=\"meta\">");
    (void)page_escape(out, s->address.model[0] ? s->address.model : c->engine);
    (void)ek_buf_puts(out, " at ");
    (void)page_escape(out, s->address.url);
    (void)ek_buf_puts(out, " · <span data-k=\"uptime\">");
    if (s->process.child.pid > 0)
        (void)ek_buf_printf(out, "process %d, up %.0f s", (int)s->process.child.pid,
                            (double)(ek_now_us() - s->process.started_us) / 1e6);
    else
        (void)ek_buf_puts(out, "no process");
    (void)ek_buf_printf(out,
                        "</span> · restarts <span data-k=\"restarts\">%llu</span> · mode <span "
                        "data-k=\"mode\">%s</span> · controller: <span data-k=\"policy_state\">"
                        "%s</span><span data-k=\"memory\">",
                        (unsigned long long)past_restarts(s), c->mode,
                        state_words(s->law.policy ? policy_state(s->law.policy) : POL_INIT));
    page_server_put_memory(out, s);
    (void)ek_buf_printf(out,
                        "<p class=\"open\"%s>Anybody who reaches its address may use it: there is "
                        "no API key (<code>--api-key-file</code>).</p>\n",
                        server_is_open(s) ? "" : " hidden");
}

/* Flags that are not the operator's, beside the limits that they bound. */
static void put_learned(struct ek_buf *out, const struct server *s)
{
    char text[REPAIR_TEXT];
    double left_s = repair_learned(s, text, sizeof(text));
    (void)ek_buf_printf(out, "<p class=\"meta\" data-k=\"learned\"%s>",
                        left_s > 0 ? "" : " hidden");
    if (left_s > 0) {
        (void)ek_buf_puts(out, "Since memory ran out it starts with ");
        (void)page_escape(out, text);
        (void)ek_buf_printf(out, ", for %.1f h more (evenkeelctl remedies).", left_s / 3600);
    }
    (void)ek_buf_puts(out, "</p>\n");
}

static void put_engine_process(struct ek_buf *out, const struct server *s)
{
    struct engine_figures f = {0};
    bool known = server_engine_figures(s, &f);
    (void)ek_buf_printf(out, "<p class=\"meta\" data-k=\"engine_process\"%s>",
                        known ? "" : " hidden");
    if (known)
        (void)ek_buf_printf(out,
                            "Engine process: %s; lost and replaced %.0f times, started again on "
                            "purpose %.0f times; %.1f s of pauses together.",
                            f.state, f.lost, f.planned, f.pause_s);
    (void)ek_buf_puts(out, "</p>\n");
}

static const char *unit_of(enum knob k)
{
    switch (k) {
    case KNOB_SEQS:
    case KNOB_TOKENS: return "";
    case KNOB_DEADLINE: return " ms";
    case KNOB_RESERVE: return " ‰";
    }
    return "";
}

static void put_decisions(struct ek_buf *out, const struct server *s)
{
    (void)ek_buf_puts(out, "<div class=\"say\"><h3>What evenkeeld did, and why</h3>"
                           "<p class=\"waits\">");
    (void)page_escape(out, s->law.waits.why);
    (void)ek_buf_puts(out, "</p><div class=\"scroll\"><table><thead><tr><th>Time</th><th>Action"
                           "</th><th>Why</th><th class=\"reason\">Reason</th></tr></thead>"
                           "<tbody class=\"decisions\">\n");
    for (uint32_t i = 0; i < SHOWN; i++) {
        const struct decision *d = decisions_at(&s->law.decisions, i);
        if (!d)
            break;
        (void)ek_buf_printf(out, "<tr data-kind=\"%s\" data-reason=\"%s\"><td class=\"time\">",
                            action_name(d->kind), reason_name(d->reason));
        put_time(out, d->wall_us);
        (void)ek_buf_printf(out, "</td><td class=\"what\"><b>%s</b>", action_name(d->kind));
        if (action_is_change(d->kind))
            (void)ek_buf_printf(out, " %u → %u%s%s", d->from, d->to, unit_of(d->knob),
                                d->applied ? "" : " (not applied)");
        (void)ek_buf_puts(out, "</td><td class=\"why\">");
        (void)page_escape(out, d->why);
        (void)ek_buf_printf(out, "</td><td class=\"reason\"><code>%s</code></td></tr>\n",
                            reason_name(d->reason));
    }
    (void)ek_buf_puts(out, "</tbody></table></div></div>\n");
}

/* The flowchart: asked in order, and what is done at the first yes. */
static void put_flow(struct ek_buf *out, const struct failure *f)
{
    uint32_t found = failure_case(f);
    (void)ek_buf_puts(out, "<ol class=\"flow\">");
    for (uint32_t i = 0; f->asked && i < DOCTOR_QUESTIONS; i++) {
        const struct doctor_step *s = &f->steps[i];
        enum doctor_question q = (enum doctor_question)i;
        const char *kind = "open", *word = doctor_answer(s->answer, LANG_EN);
        if (s->answer == REPLY_YES && i > found) {
            kind = "also";
            word = "Yes, too";
        } else if (s->answer != REPLY_UNKNOWN) {
            kind = s->answer == REPLY_YES ? "yes" : "no";
        } else if (i > found) {
            word = "Not asked any more";
        }
        (void)ek_buf_printf(out, "<li data-answer=\"%s\">%s <b>%s</b>", kind,
                            doctor_question(q, LANG_EN), word);
        if (s->why)
            (void)ek_buf_printf(out, " <small>%s</small>", s->why->in[LANG_EN]);
        if (s->answer == REPLY_YES)
            (void)ek_buf_printf(out, "<em>%s</em>", doctor_advice(q, LANG_EN));
        (void)ek_buf_puts(out, "</li>");
    }
    (void)ek_buf_puts(out, "</ol>");
}

static void put_failure(struct ek_buf *out, const struct failure *f)
{
    (void)ek_buf_puts(out, "<p class=\"why\">");
    (void)page_escape(out, f->why);
    (void)ek_buf_puts(out, "</p>");
    if (f->asked)
        put_flow(out, f);
    (void)ek_buf_puts(out, "<p><b>Done:</b> ");
    (void)page_escape(out, f->next);
    (void)ek_buf_puts(out, ".</p><p><b>What helps:</b> ");
    (void)page_escape(out, f->remedy ? f->remedy : f->kept_remedy);
    (void)ek_buf_puts(out, "</p>");
}

static void put_failures(struct ek_buf *out, const struct server *s)
{
    const struct failure *f = failures_at(&s->ends.failures, 0);
    bool recent = f && ek_wall_us() < f->wall_us + RECENT_US;
    (void)ek_buf_printf(out, "<details class=\"failed\"%s%s><summary>", f ? "" : " hidden",
                        recent ? " open" : "");
    if (f) {
        (void)ek_buf_printf(out, "<b>Failed: %s</b> at ", crash_name(f->cls));
        put_time(out, f->wall_us);
        (void)ek_buf_printf(out, ", %s", f->starting ? "while it started" : "while it served");
    }
    (void)ek_buf_puts(out, "</summary><div class=\"last\">");
    if (f)
        put_failure(out, f);
    (void)ek_buf_puts(out, "</div><table class=\"before\"><caption>Before</caption><tbody>");
    for (uint32_t i = 1; (f = failures_at(&s->ends.failures, i)); i++) {
        (void)ek_buf_puts(out, "<tr><td class=\"time\">");
        put_time(out, f->wall_us);
        (void)ek_buf_printf(out, "</td><td class=\"what\"><b>%s</b></td><td>", crash_name(f->cls));
        (void)page_escape(out, f->next);
        (void)ek_buf_puts(out, "</td></tr>\n");
    }
    (void)ek_buf_puts(out, "</tbody></table></details>\n");
}

void page_server(struct ek_buf *out, const struct server *s, bool open)
{
    (void)ek_buf_printf(out,
                        "<section class=\"server\" id=\"server-%s\" data-server=\"%s\" "
                        "aria-label=\"Server %s\"%s>\n",
                        s->config->name, s->config->name, s->config->name,
                        s->watch.sample.good ? "" : " data-off");
    put_head(out, s);
    put_failures(out, s);
    (void)ek_buf_puts(out, "<p class=\"why\" data-k=\"waiting_why\">");
    (void)page_escape(out, s->watch.waiting_why);
    (void)ek_buf_printf(out,
                        "</p>\n<details class=\"fold\"%s><summary>Figures, charts and history"
                        "</summary>\n<dl class=\"bars\">\n",
                        open ? " open" : "");
    put_kv_bar(out, s);
    put_limit_bar(out, s, KNOB_SEQS);
    put_limit_bar(out, s, KNOB_TOKENS);
    (void)ek_buf_puts(out, "</dl>\n");
    put_learned(out, s);
    put_engine_process(out, s);
    (void)ek_buf_puts(out, "<div class=\"tiles\">\n");
    put_tile(out, &s->watch.view, "running", VIEW_RUNNING, AS_NUMBER, "");
    put_tile(out, &s->watch.view, "waiting", VIEW_WAITING, AS_NUMBER, "");
    put_tile(out, &s->watch.view, "generated tokens", VIEW_GEN_TPS, AS_NUMBER,
             " <small>/s</small>");
    put_tile(out, &s->watch.view, "preemptions", VIEW_PREEMPTION_RATE, AS_TENTHS,
             " <small>/s</small>");
    put_ttft(out, s);
    put_tile(out, &s->watch.view, "ITL p99", VIEW_ITL_P99, AS_SECONDS, "");
    put_tile(out, &s->watch.view, "prefix cache hits", VIEW_PREFIX_HIT_RATE, AS_PERCENT, "");
    put_tile(out, &s->watch.view, "CPU", VIEW_CPU, AS_TENTHS, " <small>cores</small>");
    put_tile(out, &s->watch.view, "device busy", VIEW_DEVICE_BUSY, AS_PERCENT, "");
    (void)ek_buf_puts(out, "</div>\n");
    key_table_page(s, out);
    (void)ek_buf_puts(out, "<div class=\"range\"><h3>Over the last</h3>");
    (void)ek_buf_puts(out, "<button data-range=\"300\">5 min</button><button data-range=\"1800\">"
                           "30 min</button><button data-range=\"7200\">2 h</button></div>\n"
                           "<div class=\"charts\"></div>\n");
    put_decisions(out, s);
    (void)ek_buf_puts(out, "</details></section>\n");
}

static void put_cell(struct ek_buf *out, const struct view *view, enum view_id id, enum shape shape)
{
    (void)ek_buf_printf(out, "<td class=\"figure\" data-k=\"%s\">", view_name(id));
    put_shaped(out, view->value[id], shape);
    (void)ek_buf_puts(out, "</td>");
}

void page_overview(struct ek_buf *out, struct server *const *servers, uint32_t count)
{
    (void)ek_buf_puts(out, "<section class=\"server all\" aria-label=\"All servers\"><div "
                           "class=\"scroll\"><table><thead><tr><th>Server</th><th>State</th>"
                           "<th class=\"figure\">KV</th><th class=\"figure\">Running</th>"
                           "<th class=\"figure\">Limit</th><th class=\"figure\">Waiting</th>"
                           "<th class=\"figure\">Tokens/s</th><th class=\"figure\">TTFT p99"
                           "</th><th class=\"figure\">Preemptions/s</th><th>Last</th></tr></thead>"
                           "<tbody>\n");
    for (uint32_t i = 0; i < count; i++) {
        const struct server *s = servers[i];
        const struct decision *d = decisions_at(&s->law.decisions, 0);
        (void)ek_buf_printf(out,
                            "<tr data-row=\"%s\"><td class=\"what\"><a href=\"#server-%s\">%s</a>"
                            "</td><td><span class=\"badge\" data-k=\"state\" data-level=\"%s\">",
                            s->config->name, s->config->name, s->config->name, level_of(s));
        page_server_put_state(out, s);
        (void)ek_buf_puts(out, "</span></td>");
        put_cell(out, &s->watch.view, VIEW_KV_USAGE, AS_PERCENT);
        put_cell(out, &s->watch.view, VIEW_RUNNING, AS_NUMBER);
        (void)ek_buf_puts(out, "<td class=\"figure\" data-k=\"limit\">");
        put_shaped(out, s->law.policy ? policy_limit(s->law.policy, KNOB_SEQS) : (double)NAN,
                   AS_NUMBER);
        (void)ek_buf_puts(out, "</td>");
        put_cell(out, &s->watch.view, VIEW_WAITING, AS_NUMBER);
        put_cell(out, &s->watch.view, VIEW_GEN_TPS, AS_NUMBER);
        (void)ek_buf_puts(out, "<td class=\"figure\" data-k=\"ttft_p99_s\">");
        put_first_token(out, s);
        (void)ek_buf_puts(out, "</td>");
        put_cell(out, &s->watch.view, VIEW_PREEMPTION_RATE, AS_TENTHS);
        (void)ek_buf_puts(out, "<td class=\"last\"><span data-k=\"last\">");
        (void)page_escape(out, d ? d->why : "");
        (void)ek_buf_puts(out, "</span></td></tr>\n");
    }
    (void)ek_buf_puts(out, "</tbody></table></div></section>\n");
}
