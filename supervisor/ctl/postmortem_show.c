/*
 * A postmortem on a terminal: the verdict, what stands out, one line for each second, and which
 * other ends are kept. The table has 79 columns.
 */
#include "supervisor/ctl/postmortem_show.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "common/buf.h"
#include "supervisor/ctl/show.h"

#define WIDE 79u

static double postmortem_show_number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

/* Right in its column; what is not known is a dash. */
static void postmortem_put(struct ek_buf *out, double v, int width, int decimals)
{
    if (isfinite(v) && fabs(v) < 1e15)
        (void)ek_buf_printf(out, "%*.*f", width, decimals, v);
    else
        (void)ek_buf_printf(out, "%*s", width, "-");
}

static void put_when(struct ek_buf *out, double at_s)
{
    time_t at = (time_t)at_s;
    struct tm tm;
    char text[40];
    bool sane = at_s > 0 && at_s < 1e11 && localtime_r(&at, &tm) &&
                strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm) > 0;
    (void)ek_buf_puts(out, sane ? text : "-");
}

/* A second in the local time of day: the date is in the head. */
static void put_second(struct ek_buf *out, double at_s)
{
    time_t at = (time_t)at_s;
    struct tm tm;
    char text[16];
    bool sane = at_s > 0 && at_s < 1e11 && localtime_r(&at, &tm) &&
                strftime(text, sizeof(text), "%H:%M:%S", &tm) > 0;
    (void)ek_buf_printf(out, "%8s", sane ? text : "-");
}

static void show_seconds(const json_t *list, struct ek_buf *out)
{
    const json_t *s;
    double before = NAN;
    size_t i;
    (void)ek_buf_puts(out, "\n              prompt decode               blocks   step time ms"
                           "    limits\n"
                           "    time steps tokens   rows waits   used   free   p50    max seqs"
                           " tokens   MiB\n");
    json_array_foreach(list, i, s)
    {
        double at = postmortem_show_number(s, "at_s");
        if (at > before + 1)
            (void)ek_buf_puts(out, "     ...\n");
        before = at;
        put_second(out, at);
        postmortem_put(out, postmortem_show_number(s, "steps"), 6, 0);
        postmortem_put(out, postmortem_show_number(s, "prefill_tokens"), 7, 0);
        postmortem_put(out, postmortem_show_number(s, "decode_rows"), 7, 0);
        postmortem_put(out, postmortem_show_number(s, "waiting"), 6, 0);
        postmortem_put(out, postmortem_show_number(s, "blocks_used"), 7, 0);
        postmortem_put(out,
                       postmortem_show_number(s, "blocks_free") +
                           postmortem_show_number(s, "blocks_cached"),
                       7, 0);
        postmortem_put(out, postmortem_show_number(s, "step_p50_us") / 1e3, 6, 1);
        postmortem_put(out, postmortem_show_number(s, "step_max_us") / 1e3, 7, 1);
        postmortem_put(out, postmortem_show_number(s, "limit_seqs"), 5, 0);
        postmortem_put(out, postmortem_show_number(s, "limit_tokens"), 7, 0);
        postmortem_put(out, postmortem_show_number(s, "resident_mib"), 6, 0);
        (void)ek_buf_puts(out, "\n");
    }
}

static double postmortem_cell(const json_t *row, const json_t *columns, const char *name)
{
    for (size_t i = 0; i < json_array_size(columns); i++) {
        const char *is = json_string_value(json_array_get(columns, i));
        const json_t *v = json_array_get(row, i);
        if (is && strcmp(is, name) == 0)
            return json_is_number(v) ? json_number_value(v) : (double)NAN;
    }
    return NAN;
}

/* What evenkeeld saw from outside: all there is of an engine without a recorder. */
static void show_samples(const json_t *samples, struct ek_buf *out)
{
    const json_t *columns = json_object_get(samples, "columns"), *row;
    size_t i;
    (void)ek_buf_puts(out,
                      "\n                                prompt   made preempted     99 % s    "
                      "    limits\n"
                      "    time  cache  runs waits tokens/s  of it       /s first   gap seqs"
                      "  tokens\n");
    json_array_foreach(json_object_get(samples, "rows"), i, row)
    {
        put_second(out, postmortem_cell(row, columns, "at_s"));
        postmortem_put(out, 100 * postmortem_cell(row, columns, "kv_usage"), 6, 0);
        (void)ek_buf_puts(out, "%");
        postmortem_put(out, postmortem_cell(row, columns, "running"), 6, 0);
        postmortem_put(out, postmortem_cell(row, columns, "waiting"), 6, 0);
        postmortem_put(out, postmortem_cell(row, columns, "prompt_tps"), 9, 0);
        postmortem_put(out, postmortem_cell(row, columns, "gen_tps"), 7, 0);
        postmortem_put(out, postmortem_cell(row, columns, "preemption_rate"), 9, 1);
        postmortem_put(out, postmortem_cell(row, columns, "ttft_p99_s"), 6, 2);
        postmortem_put(out, postmortem_cell(row, columns, "itl_p99_s"), 6, 2);
        postmortem_put(out, postmortem_cell(row, columns, "limit_seqs"), 5, 0);
        postmortem_put(out, postmortem_cell(row, columns, "limit_tokens"), 8, 0);
        (void)ek_buf_puts(out, "\n");
    }
}

static void show_head(const json_t *end, const char *server, uint32_t cols, struct ek_buf *out)
{
    char cls[40];
    const json_t *line;
    size_t i;
    (void)ek_buf_printf(out, "%s ended at ", server);
    put_when(out, postmortem_show_number(end, "at_s"));
    (void)ek_buf_puts(out, json_is_true(json_object_get(end, "starting")) ? ", before it served, "
                                                                          : ", ");
    show_duration(out, postmortem_show_number(end, "uptime_s"));
    (void)ek_buf_printf(out, " after its start (process %.0f)\n",
                        postmortem_show_number(end, "pid"));
    (void)snprintf(cls, sizeof(cls), "%.30s: ", show_word(end, "class"));
    show_text(out, cls);
    show_lines(out, show_word(end, "why"), strlen(cls), cols);
    (void)ek_buf_puts(out, "\n");
    json_array_foreach(json_object_get(end, "summary"), i, line)
    {
        const char *text = json_string_value(line);
        (void)ek_buf_puts(out, "- ");
        show_lines(out, text ? text : "-", 2, cols);
    }
}

static void show_others(const json_t *ends, uint32_t which, struct ek_buf *out)
{
    const json_t *one;
    size_t i;
    if (json_array_size(ends) < 2)
        return;
    (void)ek_buf_puts(out, "\nKept ends (--end N):\n");
    json_array_foreach(ends, i, one)
    {
        (void)ek_buf_printf(out, "%s%zu  ", i + 1 == which ? "* " : "  ", i + 1);
        put_when(out, postmortem_show_number(one, "at_s"));
        (void)ek_buf_puts(out, "  ");
        show_text(out, show_word(one, "class"));
        (void)ek_buf_puts(out, "\n");
    }
}

void postmortem_show(const json_t *answer, const char *server, uint32_t which, uint32_t cols,
                     struct ek_buf *out)
{
    const json_t *end = json_object_get(answer, "end"), *ends = json_object_get(answer, "ends");
    const json_t *seconds = json_object_get(end, "seconds");
    const json_t *samples = json_object_get(end, "samples");
    if (!json_is_object(end)) {
        if (json_array_size(ends) == 0)
            (void)ek_buf_printf(out,
                                "No end of %s is kept: it has not ended since evenkeeld keeps "
                                "them.\n",
                                server);
        else
            (void)ek_buf_printf(out, "There is no end %u of %s.\n", which, server);
        show_others(ends, 0, out);
        return;
    }
    show_head(end, server, cols ? cols : WIDE, out);
    if (json_array_size(seconds) > 0)
        show_seconds(seconds, out);
    else if (json_array_size(json_object_get(samples, "rows")) > 0)
        show_samples(samples, out);
    show_others(ends, which, out);
}
