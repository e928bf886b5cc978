/*
 * Reads a recorded load for `evenkeelctl plan --trace` (verb_plan.c): the means of prompt and
 * output, the longest request and the 95th percentile. The form is told from the first byte, the
 * columns from their names. Rows without both lengths are passed over; a trace without any whole
 * row is an error that names the columns.
 */
#include "supervisor/planner/trace.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/promtext.h"

#define ROWS_MOST   1000000u
#define TOKENS_MOST 1e8

static const char *const prompt_names[] = {"ContextTokens",
                                           "num_prefill_tokens",
                                           "input_length",
                                           "prompt_tokens",
                                           "Request tokens",
                                           "prompt",
                                           NULL};
static const char *const output_names[] = {"GeneratedTokens",
                                           "num_decode_tokens",
                                           "output_length",
                                           "output_tokens",
                                           "Response tokens",
                                           "output",
                                           NULL};

struct trace_sums {
    double *length;
    uint32_t count, room;
    double prompt, output, longest;
};

static int trace_add(struct trace_sums *s, double prompt, double output)
{
    if (!(prompt >= 0 && prompt <= TOKENS_MOST && output >= 0 && output <= TOKENS_MOST) ||
        s->count == ROWS_MOST)
        return 0;
    if (s->count == s->room) {
        uint32_t room = s->room ? s->room * 2 : 1024;
        double *more = realloc(s->length, room * sizeof(*more));
        if (!more)
            return -ENOMEM;
        s->length = more;
        s->room = room;
    }
    s->length[s->count++] = prompt + output;
    s->prompt += prompt;
    s->output += output;
    s->longest = fmax(s->longest, prompt + output);
    return 0;
}

/* The field of a comma-separated line at `index`. */
static const char *field(const char *line, const char *end, int index, size_t *ret_len)
{
    for (; index > 0 && line < end; index--) {
        const char *comma = memchr(line, ',', (size_t)(end - line));
        line = comma ? comma + 1 : end;
    }
    const char *comma = memchr(line, ',', (size_t)(end - line));
    *ret_len = (size_t)((comma ? comma : end) - line);
    while (*ret_len > 0 && (line[*ret_len - 1] == '\r' || line[*ret_len - 1] == '"'))
        --*ret_len;
    if (*ret_len > 0 && *line == '"') {
        line++;
        --*ret_len;
    }
    return line;
}

static int column(const char *line, const char *end, const char *const *names)
{
    for (int i = 0; i < 64; i++) {
        size_t n;
        const char *f = field(line, end, i, &n);
        for (const char *const *name = names; *name; name++) {
            if (strlen(*name) == n && memcmp(f, *name, n) == 0)
                return i;
        }
        if (f + n >= end)
            break;
    }
    return -1;
}

static bool trace_number_at(const char *line, const char *end, int index, double *ret_value)
{
    size_t n;
    const char *f = field(line, end, index, &n);
    return promtext_number(f, n, ret_value) > 0;
}

static bool trace_key_of(const json_t *row, const char *const *names, double *ret_value)
{
    for (; *names; names++) {
        const json_t *v = json_object_get(row, *names);
        if (json_is_number(v)) {
            *ret_value = json_number_value(v);
            return true;
        }
    }
    return false;
}

static int add_json(struct trace_sums *s, const char *line, size_t len)
{
    double prompt, output;
    json_t *row = json_loadb(line, len, 0, NULL);
    int r = 0;
    if (row && trace_key_of(row, prompt_names, &prompt) && trace_key_of(row, output_names, &output))
        r = trace_add(s, prompt, output);
    json_decref(row);
    return r;
}

static int trace_compare(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

int plan_trace_read(const char *text, size_t len, struct plan_trace *ret_trace,
                    struct ek_fault *fault)
{
    struct trace_sums s = {0};
    const char *end = text + len;
    int prompt_at = -1, output_at = -1, r = 0;
    bool json = len > 0 && *text == '{', first = true;
    for (const char *line = text; line < end && r == 0; first = false) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        const char *stop = newline ? newline : end;
        double prompt, output;
        if (json) {
            r = add_json(&s, line, (size_t)(stop - line));
        } else if (first) {
            prompt_at = column(line, stop, prompt_names);
            output_at = column(line, stop, output_names);
        } else if (prompt_at >= 0 && output_at >= 0 &&
                   trace_number_at(line, stop, prompt_at, &prompt) &&
                   trace_number_at(line, stop, output_at, &output)) {
            r = trace_add(&s, prompt, output);
        }
        line = stop + 1;
    }
    if (r == 0 && s.count == 0)
        r = ek_fault_set(fault, "trace",
                         "the trace has no row with the lengths of prompt and output: columns "
                         "ContextTokens and GeneratedTokens, or input_length and output_length");
    if (r == 0) {
        qsort(s.length, s.count, sizeof(*s.length), trace_compare);
        *ret_trace = (struct plan_trace){.requests = s.count,
                                         .prompt_mean = s.prompt / s.count,
                                         .output_mean = s.output / s.count,
                                         .longest = s.longest,
                                         .p95 = s.length[(size_t)((s.count - 1) * 0.95)]};
    }
    free(s.length);
    return r;
}
