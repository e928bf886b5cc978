#include "supervisor/page.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/buf.h"
#include "common/clock.h"
#include "supervisor/api.h"
#include "supervisor/loop.h"

/* The file as it is, with a NUL after it; the build runs in the root of the tree. */
__asm__(".section .rodata\n"
        ".global page_html\n"
        "page_html:\n"
        ".incbin \"supervisor/page.html\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char page_html[];

#define SHOWN 30

int page_escape(struct ek_buf *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&': (void)ek_buf_puts(out, "&amp;"); break;
        case '<': (void)ek_buf_puts(out, "&lt;"); break;
        case '>': (void)ek_buf_puts(out, "&gt;"); break;
        case '"': (void)ek_buf_puts(out, "&quot;"); break;
        case '\'': (void)ek_buf_puts(out, "&#39;"); break;
        default: (void)ek_buf_add(out, text, 1);
        }
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

static void put_time(struct ek_buf *out, uint64_t wall_us, bool with_date)
{
    char text[64];
    struct tm tm;
    time_t t = (time_t)(wall_us / EK_US_PER_S);
    if (gmtime_r(&t, &tm) && (with_date ? strftime(text, sizeof(text), "%Y-%m-%d %T UTC", &tm)
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

static void put_tile(struct ek_buf *out, const struct server *s, const char *label, enum view_id id,
                     enum shape shape, const char *after)
{
    (void)ek_buf_printf(out, "<div class=\"tile\"><b><span data-k=\"%s\">", view_name(id));
    put_shaped(out, s->view.value[id], shape);
    (void)ek_buf_printf(out, "</span>%s</b><span>%s</span></div>\n", after, label);
}

static double part(double v)
{
    return isfinite(v) && v > 0 ? (v < 1 ? v : 1) : 0;
}

static void put_kv_bar(struct ek_buf *out, const struct server *s)
{
    const double *v = s->view.value;
    double used = part(v[VIEW_KV_USAGE]), blocks = v[VIEW_BLOCKS_TOTAL];
    double cached = blocks > 0 ? part(v[VIEW_BLOCKS_CACHED] / blocks) : 0;
    if (used + cached > 1)
        cached = 1 - used;
    (void)ek_buf_puts(out, "<div><dt><span>KV cache <span data-k=\"kv_blocks\">");
    if (isfinite(blocks))
        (void)ek_buf_printf(out, "%.0f blocks", blocks);
    (void)ek_buf_puts(out, "</span></span><b data-k=\"kv_usage\">");
    put_shaped(out, v[VIEW_KV_USAGE], AS_PERCENT);
    (void)ek_buf_printf(
        out,
        "</b></dt><dd><svg class=\"bar\" data-bar=\"kv\" aria-hidden=\"true\">"
        "<rect class=\"pinned\" height=\"10\" width=\"%.2f%%\"/>"
        "<rect class=\"cached\" height=\"10\" x=\"%.2f%%\" width=\"%.2f%%\"/>"
        "<rect class=\"mark\" height=\"10\" x=\"%.2f%%\" width=\"2\"/></svg>"
        "<p class=\"key\"><span><i class=\"k-pinned\"></i>in use</span>"
        "<span><i class=\"k-cached\"></i>cached, can be freed</span>"
        "<span><i class=\"k-free\"></i>free</span>"
        "<span><i class=\"k-mark\"></i>pressure above %.0f %%</span></p></dd></div>\n",
        100 * used, 100 * used, 100 * cached, 100 * s->config->policy.usage_high,
        100 * s->config->policy.usage_high);
}

static void put_limit_bar(struct ek_buf *out, const struct server *s, enum knob k)
{
    struct policy_params p = server_params(s);
    uint32_t ceiling = s->limits.knob[k].ceiling;
    uint32_t max = ceiling ? ceiling : k == KNOB_SEQS ? p.seqs_max : p.tokens_max;
    uint32_t value = s->policy ? policy_limit(s->policy, k) : 0;
    bool pinned = s->policy && policy_pinned(s->policy, k);
    const char *name = knob_name(k);
    (void)ek_buf_printf(out, "<div><dt><span>%s</span><span><b data-k=\"limit_%s\">", name, name);
    put_shaped(out, value ? value : (double)NAN, AS_NUMBER);
    (void)ek_buf_printf(out, "%s</b> of <span data-k=\"ceiling_%s\">", pinned ? " pinned" : "",
                        name);
    put_shaped(out, max ? max : (double)NAN, AS_NUMBER);
    (void)ek_buf_printf(out,
                        "</span></span></dt><dd><svg class=\"bar\" data-bar=\"%s\" "
                        "aria-hidden=\"true\"><rect class=\"limit\" height=\"10\" "
                        "width=\"%.2f%%\"/></svg></dd></div>\n",
                        name, max ? 100.0 * part((double)value / max) : 0.0);
}

static const char *level_of(const struct server *s)
{
    switch (s->state) {
    case SRV_READY: return s->ready ? "good" : "warn";
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

static void put_head(struct ek_buf *out, const struct server *s)
{
    const struct server_config *c = s->config;
    (void)ek_buf_printf(out,
                        "<div class=\"head\"><h2>%s</h2><span class=\"badge\" "
                        "data-k=\"state\" data-level=\"%s\">%s</span><span class=\"meta\">",
                        c->name, level_of(s), server_state_name(s->state));
    (void)page_escape(out, s->model[0] ? s->model : c->engine);
    (void)ek_buf_puts(out, " at ");
    (void)page_escape(out, s->url);
    (void)ek_buf_puts(out, " · <span data-k=\"uptime\">");
    if (s->child.pid > 0)
        (void)ek_buf_printf(out, "process %d, up %.0f s", (int)s->child.pid,
                            (double)(ek_now_us() - s->started_us) / 1e6);
    else
        (void)ek_buf_puts(out, "no process");
    uint64_t restarts = 0;
    for (int i = 0; i < RESTART_CAUSES; i++)
        restarts += s->restarts[i];
    (void)ek_buf_printf(out,
                        "</span> · restarts <span data-k=\"restarts\">%llu</span> · mode <span "
                        "data-k=\"mode\">%s</span> · control law: <span data-k=\"policy_state\">"
                        "%s</span></span></div>\n",
                        (unsigned long long)restarts, c->mode,
                        policy_state_name(s->policy ? policy_state(s->policy) : POL_INIT));
    (void)ek_buf_printf(out,
                        "<p class=\"open\"%s>Anybody who reaches its address may use it: there is "
                        "no API key (<code>--api-key-file</code>).</p>\n",
                        server_is_open(s) ? "" : " hidden");
}

static void put_decisions(struct ek_buf *out, const struct server *s)
{
    (void)ek_buf_puts(out, "<div class=\"say\"><h3>What evenkeeld did, and why</h3>"
                           "<p class=\"waits\">");
    (void)page_escape(out, s->waits.why);
    (void)ek_buf_puts(out, "</p><div class=\"scroll\"><table><thead><tr><th>Time</th><th>Action"
                           "</th><th>Why</th><th class=\"reason\">Reason</th></tr></thead>"
                           "<tbody>\n");
    for (uint32_t i = 0; i < SHOWN; i++) {
        const struct decision *d = decisions_at(&s->decisions, i);
        if (!d)
            break;
        (void)ek_buf_printf(out, "<tr data-kind=\"%s\"><td class=\"time\">", action_name(d->kind));
        put_time(out, d->wall_us, false);
        (void)ek_buf_printf(out, "</td><td class=\"what\"><b>%s</b>", action_name(d->kind));
        if (d->kind == ACT_LOWER || d->kind == ACT_RAISE || d->kind == ACT_REVERT)
            (void)ek_buf_printf(out, " %u → %u%s", d->from, d->to,
                                d->applied ? "" : " (not applied)");
        (void)ek_buf_puts(out, "</td><td class=\"why\">");
        (void)page_escape(out, d->why);
        (void)ek_buf_printf(out, "</td><td class=\"reason\"><code>%s</code></td></tr>\n",
                            reason_name(d->reason));
    }
    (void)ek_buf_puts(out, "</tbody></table></div></div>\n");
}

static void put_server(struct ek_buf *out, const struct server *s)
{
    (void)ek_buf_printf(out,
                        "<section class=\"server\" data-server=\"%s\" aria-label=\"Server %s\""
                        ">\n",
                        s->config->name, s->config->name);
    put_head(out, s);
    (void)ek_buf_puts(out, "<dl class=\"bars\">\n");
    put_kv_bar(out, s);
    put_limit_bar(out, s, KNOB_SEQS);
    put_limit_bar(out, s, KNOB_TOKENS);
    (void)ek_buf_puts(out, "</dl>\n<div class=\"tiles\">\n");
    put_tile(out, s, "running", VIEW_RUNNING, AS_NUMBER, "");
    put_tile(out, s, "waiting", VIEW_WAITING, AS_NUMBER, "");
    put_tile(out, s, "generated tokens", VIEW_GEN_TPS, AS_NUMBER, " <small>/s</small>");
    put_tile(out, s, "preemptions", VIEW_PREEMPTION_RATE, AS_TENTHS, " <small>/s</small>");
    put_tile(out, s, "first token, p99", VIEW_TTFT_P99, AS_SECONDS, "");
    put_tile(out, s, "token gap, p99", VIEW_ITL_P99, AS_SECONDS, "");
    put_tile(out, s, "prefix cache hits", VIEW_PREFIX_HIT_RATE, AS_PERCENT, "");
    (void)ek_buf_puts(out, "</div>\n<div class=\"range\"><h3>Over the last</h3>");
    (void)ek_buf_puts(out, "<button data-range=\"300\">5 min</button><button data-range=\"1800\">"
                           "30 min</button><button data-range=\"7200\">2 h</button></div>\n"
                           "<div class=\"charts\"></div>\n");
    put_decisions(out, s);
    (void)ek_buf_puts(out, "</section>\n");
}

static void put_hint(struct ek_buf *out, const struct loop *l)
{
    struct ek_buf hint = {0};
    api_hint(l, &hint);
    (void)ek_buf_puts(out, "<section><h2>Nothing to serve yet</h2><p>");
    (void)page_escape(out, hint.data ? hint.data : "");
    (void)ek_buf_puts(out, "</p></section>\n");
    ek_buf_done(&hint);
}

static void put_place(struct ek_buf *out, const struct loop *l, const char *name, size_t len,
                      const char *nonce)
{
    if (len == 5 && memcmp(name, "nonce", len) == 0) {
        (void)ek_buf_puts(out, nonce);
    } else if (len == 7 && memcmp(name, "version", len) == 0) {
        (void)ek_buf_puts(out, EK_VERSION);
    } else if (len == 4 && memcmp(name, "time", len) == 0) {
        put_time(out, ek_wall_us(), true);
    } else if (len == 7 && memcmp(name, "servers", len) == 0) {
        if (l->count == 0)
            put_hint(out, l);
        for (uint32_t i = 0; i < l->count; i++)
            put_server(out, l->servers[i]);
    }
}

int page_write(const struct loop *l, const char *nonce, struct ek_buf *out)
{
    for (const char *at = page_html;;) {
        const char *open = strstr(at, "{{"), *close = open ? strstr(open, "}}") : NULL;
        if (!close) {
            (void)ek_buf_puts(out, at);
            return ek_buf_ok(out) ? 0 : -ENOMEM;
        }
        (void)ek_buf_add(out, at, (size_t)(open - at));
        put_place(out, l, open + 2, (size_t)(close - open - 2), nonce);
        at = close + 2;
    }
}
