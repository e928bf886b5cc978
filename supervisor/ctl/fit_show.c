/*
 * The output of `evenkeelctl bench-fit`, called by verb_bench_fit.c: a row after each measured
 * step, at the end a plot over the limits that were tried and the line to put into the
 * configuration. Text goes into a buffer, so that tests and --json need no terminal.
 */
#include "supervisor/ctl/fit_show.h"

#include <stdio.h>
#include <string.h>

#include "common/buf.h"

#define WIDTH 79
#define COLS  58 /* of the plot */
#define ROWS  12

void fit_show_head(struct ek_buf *out)
{
    (void)ek_buf_puts(out, "sequences  running  waiting   KV use   tokens/s  gap p95  first token  "
                           "preempted\n");
}

static void put_ms(double seconds, int width, struct ek_buf *out)
{
    if (seconds < 0)
        (void)ek_buf_printf(out, "%*s", width, "-");
    else
        (void)ek_buf_printf(out, "%*.*f ms", width - 3, seconds < 0.01 ? 1 : 0, seconds * 1e3);
}

void fit_show_step(const struct limit_search_step *s, struct ek_buf *out)
{
    (void)ek_buf_printf(out, "%9u  %7.1f  %7.1f   %4.0f %%  %9.1f ", s->limit, s->running,
                        s->waiting, s->usage * 100, s->tokens_s);
    put_ms(s->gap_s, 8, out);
    put_ms(s->ttft_s, 13, out);
    (void)ek_buf_printf(out, "  %9.2f%s\n", s->preemptions_s, s->harm ? " !" : "");
}

/* Where a value lies on `cells` cells from low to high. */
static int fit_cell(double v, double low, double high, int cells)
{
    int at = high > low ? (int)((v - low) / (high - low) * (cells - 1) + 0.5) : 0;
    return at < 0 ? 0 : at >= cells ? cells - 1 : at;
}

void fit_show_plot(const struct limit_search *c, struct ek_buf *out)
{
    char grid[ROWS][COLS + 1];
    double most = 0, low = c->steps[0].limit, high = low;
    if (c->count == 0)
        return;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct limit_search_step *s = &c->steps[i];
        most = s->tokens_s > most ? s->tokens_s : most;
        low = s->limit < low ? s->limit : low;
        high = s->limit > high ? s->limit : high;
    }
    for (int r = 0; r < ROWS; r++) {
        memset(grid[r], r == ROWS - 1 - fit_cell(c->p.use_high, 0, 1, ROWS) ? '.' : ' ', COLS);
        grid[r][COLS] = '\0';
    }
    for (uint32_t i = 0; i < c->count; i++) {
        const struct limit_search_step *s = &c->steps[i];
        int x = fit_cell(s->limit, low, high, COLS);
        grid[ROWS - 1 - fit_cell(s->usage, 0, 1, ROWS)][x] = 'o';
        grid[ROWS - 1 - fit_cell(s->tokens_s, 0, most, ROWS)][x] = '*';
    }
    (void)ek_buf_puts(out, "\n tokens/s *                                                        "
                           "KV use o\n");
    for (int r = 0; r < ROWS; r++) {
        double share = (double)(ROWS - 1 - r) / (ROWS - 1);
        (void)ek_buf_printf(out, "%9.0f |%s| %3.0f %%\n", most * share, grid[r], share * 100);
    }
    (void)ek_buf_printf(out, "%9s +%.*s+\n%10s %-*.0f%*.0f sequences\n", "", COLS,
                        "----------------------------------------------------------", "", COLS / 2,
                        low, COLS / 2, high);
}

static void fit_show_put_text(struct ek_buf *out, const char *text)
{
    ek_buf_wrap(out, text, 0, WIDTH);
}

void fit_show_end(const struct limit_search *c, struct ek_buf *out)
{
    char text[400];
    uint32_t fits = limit_search_keep(c), keep = limit_search_knee(c);
    const struct limit_search_step *at = limit_search_at(c, keep), *most = limit_search_at(c, fits);
    (void)ek_buf_puts(out, "\n");
    (void)snprintf(text, sizeof(text), "Ended: %s%s%s.", limit_search_end_text(c->end),
                   c->why[0] ? ": " : "", c->why);
    fit_show_put_text(out, text);
    if (!at) {
        fit_show_put_text(
            out, "No limit was found that fits: even one sequence is too much. Give the KV "
                 "cache more memory, or requests a smaller --max-model-len.");
        return;
    }
    int len = snprintf(text, sizeof(text),
                       "Keep: --max-num-seqs %u  (%.0f tokens/s, %.0f %% of the KV cache)", keep,
                       at->tokens_s, at->usage * 100);
    if (most && keep < fits && len > 0)
        (void)snprintf(text + len, sizeof(text) - (size_t)len,
                       "; up to %u fit, but bring less than 3 %% more tokens and only longer gaps",
                       fits);
    fit_show_put_text(out, text);
    if (c->end == LIMIT_SEARCH_IDLE)
        fit_show_put_text(out, "A larger load may show more: --clients, or --speed with a trace.");
    if (c->end == LIMIT_SEARCH_CEILING)
        fit_show_put_text(out, "Start the server with a higher --max-num-seqs to see more.");
}

static json_t *fit_show_number(double v)
{
    return v < 0 ? json_null() : json_real(v);
}

json_t *fit_json(const struct limit_search *c)
{
    json_t *steps = json_array();
    for (uint32_t i = 0; steps && i < c->count; i++) {
        const struct limit_search_step *s = &c->steps[i];
        (void)json_array_append_new(
            steps, json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:b}", "limit",
                             (int)s->limit, "kv_usage", s->usage, "running", s->running, "waiting",
                             s->waiting, "tokens_per_s", s->tokens_s, "preemptions_per_s",
                             s->preemptions_s, "gap_p95_s", fit_show_number(s->gap_s), "ttft_p50_s",
                             fit_show_number(s->ttft_s), "harm", s->harm));
    }
    const struct limit_search_step *at = limit_search_at(c, limit_search_knee(c));
    return json_pack("{s:o, s:s, s:s, s:i, s:i, s:i, s:f}", "steps", steps, "ended",
                     limit_search_end_text(c->end), "why", c->why, "keep_max_num_seqs",
                     (int)limit_search_knee(c), "fits_max_num_seqs", (int)limit_search_keep(c),
                     "knee_max_num_seqs", (int)limit_search_knee(c), "tokens_per_s",
                     at ? at->tokens_s : 0.0);
}
