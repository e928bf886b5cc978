/*
 * Draws the SVG of `evenkeel-bench serve --picture`: three panels, one below the other, with scales
 * from 0 to the next round number. All colours are variables in one style element, with a second
 * set for dark screens. The only text from outside, the title, is escaped.
 */
#include "server/bench/picture.h"

#include <math.h>
#include <string.h>

#include "common/buf.h"
#include "server/bench/samples.h"
#include "server/bench/summary.h"

enum { WIDTH = 760, LEFT = 64, RIGHT = 16, HEIGHT = 150, GAP = 46, TOP = 58, STEPS = 200 };

struct panel {
    double x_most, y_most;
    int top;
};

static double at_x(const struct panel *p, double x)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * x / p->x_most;
}

static double at_y(const struct panel *p, double y)
{
    return p->top + HEIGHT - HEIGHT * (y < p->y_most ? y : p->y_most) / p->y_most;
}

/* The next number up that is 1, 2 or 5 times a power of ten. */
static double round_up(double v)
{
    double power = pow(10.0, floor(log10(v > 1e-9 ? v : 1e-9)));
    double n = v / power;

    return power * (n <= 1.0 ? 1.0 : n <= 2.0 ? 2.0 : n <= 5.0 ? 5.0 : 10.0);
}

static void frame(const struct panel *p, const char *title, const char *y_unit, const char *x_unit,
                  struct ek_buf *out)
{
    (void)ek_buf_printf(out, "<text class='t' x='%d' y='%d'>%s</text>\n", LEFT, p->top - 8, title);
    for (int i = 0; i <= 2; i++) {
        double y = p->y_most * i / 2, x = p->x_most * i / 2;
        (void)ek_buf_printf(out, "<path class='g' d='M%d %.1fH%d'/>\n", LEFT, at_y(p, y),
                            WIDTH - RIGHT);
        (void)ek_buf_printf(out, "<text class='l e' x='%d' y='%.1f'>%.4g%s</text>\n", LEFT - 6,
                            at_y(p, y) + 4, y, i == 2 ? y_unit : "");
        (void)ek_buf_printf(out, "<text class='l%s' x='%.1f' y='%d'>%.4g%s</text>\n",
                            i == 2 ? " e" : "", at_x(p, x), p->top + HEIGHT + 14, x,
                            i == 2 ? x_unit : "");
    }
}

static void draw_rate(const struct picture *p, struct panel *panel, struct ek_buf *out)
{
    uint32_t most = 1;

    for (uint32_t i = 0; i < p->seconds; i++)
        most = p->tokens[i] > most ? p->tokens[i] : most;
    panel->y_most = round_up(most);
    frame(panel, "output tokens a second", "", " s", out);
    (void)ek_buf_printf(out, "<path class='a' d='M%d %d", LEFT, panel->top + HEIGHT);
    for (uint32_t i = 0; i < p->seconds; i++) {
        double end = i + 1.0 < panel->x_most ? i + 1.0 : panel->x_most;
        (void)ek_buf_printf(out, "V%.1fH%.1f", at_y(panel, p->tokens[i]), at_x(panel, end));
    }
    (void)ek_buf_printf(out, "V%dZ'/>\n", panel->top + HEIGHT);
}

static void draw_first(const struct picture *p, struct panel *panel, struct ek_buf *out)
{
    double most = p->slo->ttft_s;

    for (uint32_t i = 0; i < p->count; i++)
        if (p->answers[i].ok && p->answers[i].first_s - p->answers[i].begin_s > most)
            most = p->answers[i].first_s - p->answers[i].begin_s;
    panel->y_most = round_up(most);
    frame(panel, "time to first token, by arrival; the line is the objective", " s", " s", out);
    (void)ek_buf_printf(out, "<path class='o' d='M%d %.1fH%d'/>\n", LEFT,
                        at_y(panel, p->slo->ttft_s), WIDTH - RIGHT);
    uint32_t step = p->count / 20000 + 1; /* enough to see, few enough to open */
    for (uint32_t i = 0; i < p->count; i += step) {
        const struct bench_answer *a = &p->answers[i];
        if (a->ok)
            (void)ek_buf_printf(out, "<circle class='d' cx='%.1f' cy='%.1f' r='2'/>\n",
                                at_x(panel, a->begin_s), at_y(panel, a->first_s - a->begin_s));
    }
}

static void draw_gaps(const struct picture *p, struct panel *panel, struct ek_buf *out)
{
    double p99 = quantile(p->gaps, p->gap_count, 0.99);

    panel->x_most = round_up(p99 > 0.0 ? 1200.0 * p99 : 1.0);
    panel->y_most = 100.0;
    frame(panel, "share of gaps between events that were at most so long", " %", " ms", out);
    (void)ek_buf_printf(out, "<path class='c' d='M%d %d", LEFT, panel->top + HEIGHT);
    for (int i = 0; i <= STEPS && p->gap_count > 0; i++) {
        double ms = 1e3 * quantile(p->gaps, p->gap_count, (double)i / STEPS);
        double x = at_x(panel, ms < panel->x_most ? ms : panel->x_most);
        (void)ek_buf_printf(out, "L%.1f %.1f", x, at_y(panel, 100.0 * i / STEPS));
    }
    (void)ek_buf_puts(out, "'/>\n");
}

static void add_text(struct ek_buf *out, const char *s)
{
    for (; *s; s++) {
        if (strchr("<>&", *s))
            (void)ek_buf_printf(out, "&#%d;", *s);
        else
            (void)ek_buf_add(out, s, 1);
    }
}

void picture_draw(const struct picture *p, struct ek_buf *out)
{
    struct panel panel = {.x_most = 1.0, .top = TOP};
    const int height = TOP + 3 * (HEIGHT + GAP);

    for (uint32_t i = 0; i < p->count; i++)
        panel.x_most = p->answers[i].end_s > panel.x_most ? p->answers[i].end_s : panel.x_most;
    (void)ek_buf_printf(
        out,
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' height='%d'>\n"
        "<style>:root{--b:#fff;--f:#24292f;--m:#6e7781;--g:#d8dee4;--c:#0969da;--o:#cf222e}"
        "@media(prefers-color-scheme:dark){:root{--b:#0d1117;--f:#e6edf3;--m:#8d96a0;"
        "--g:#30363d;--c:#4493f8;--o:#f85149}}"
        "text{font-family:system-ui,sans-serif;fill:var(--f)}.h{font-size:15px;font-weight:600}"
        ".t{font-size:12px}.l{font-size:11px;fill:var(--m)}.e{text-anchor:end}"
        ".g{stroke:var(--g)}.a{fill:var(--c);opacity:.75}.d{fill:var(--c);opacity:.6}"
        ".o{stroke:var(--o);stroke-dasharray:4 3}.c{stroke:var(--c);fill:none;stroke-width:2}"
        "</style>\n<rect width='100%%' height='100%%' fill='var(--b)'/>\n<text class='h' x='%d' "
        "y='24'>",
        WIDTH, height, WIDTH, height, LEFT);
    add_text(out, p->title);
    (void)ek_buf_puts(out, "</text>\n");
    draw_rate(p, &panel, out);
    panel.top += HEIGHT + GAP;
    draw_first(p, &panel, out);
    panel.top += HEIGHT + GAP;
    draw_gaps(p, &panel, out);
    (void)ek_buf_puts(out, "</svg>\n");
}
