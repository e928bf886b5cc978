/*
 * `evenkeel-bench compare A.json B.json`: reads both reports, prints a line for each cell and
 * counts what became worse, which decides the exit code (main.c). A difference counts when it is
 * above the tolerance and the spreads do not overlap: one slow run in a noisy cell is no
 * regression. Whether less is better follows from the unit.
 */
#include "server/bench/compare.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/bench/bench.h"
#include "server/bench/options.h"

static const json_t *rows_of(const json_t *report, const char *which, struct ek_fault *fault)
{
    const json_t *rows = json_object_get(report, "rows");

    if (!json_is_array(rows)) {
        ek_fault_write(fault, which,
                       "The %s file is not a report: it has no list \"rows\"; write one with "
                       "evenkeel-bench --report FILE.",
                       which);
        return NULL;
    }
    return rows;
}

static const json_t *compare_find(const json_t *rows, const char *cell)
{
    size_t i;
    json_t *row;

    json_array_foreach(rows, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "cell"));
        if (name && strcmp(name, cell) == 0)
            return row;
    }
    return NULL;
}

static bool less_is_better(const char *unit)
{
    static const char *const times[] = {"s", "ms", "us", "ns", "failed", "MiB", "%"};

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        if (unit && strcmp(unit, times[i]) == 0)
            return true;
    return false;
}

/* Least and most of a row; without a spread its value twice. */
static void spread_read(const json_t *row, double *ret_least, double *ret_most)
{
    const json_t *s = json_object_get(row, "spread");
    double v = json_number_value(json_object_get(row, "value"));

    *ret_least = json_is_number(json_array_get(s, 0)) ? json_number_value(json_array_get(s, 0)) : v;
    *ret_most = json_is_number(json_array_get(s, 1)) ? json_number_value(json_array_get(s, 1)) : v;
}

enum verdict { EQUAL, BETTER, WORSE };

static enum verdict compare_judge(const json_t *a, const json_t *b, double tolerance)
{
    double va = json_number_value(json_object_get(a, "value"));
    double vb = json_number_value(json_object_get(b, "value"));
    double a0, a1, b0, b1;

    spread_read(a, &a0, &a1);
    spread_read(b, &b0, &b1);
    if (fabs(vb - va) <= tolerance * fabs(va) || (b0 <= a1 && a0 <= b1))
        return EQUAL;
    bool less = less_is_better(json_string_value(json_object_get(b, "unit")));
    return (vb > va) != less ? BETTER : WORSE;
}

static void add_line(struct ek_buf *out, const char *cell, const json_t *a, const json_t *b,
                     double tolerance, unsigned *worse)
{
    static const char *const said[] = {[EQUAL] = "", [BETTER] = "better", [WORSE] = "WORSE"};
    const json_t *x = json_object_get(a, "value"), *y = json_object_get(b, "value");
    const char *unit = json_string_value(json_object_get(b ? b : a, "unit"));
    double ratio = json_number_value(y) / json_number_value(x);

    if (!json_is_number(x) || !json_is_number(y)) {
        (void)ek_buf_printf(out, "%-32s only in %s\n", cell, a ? "A" : "B");
        return;
    }
    enum verdict v = compare_judge(a, b, tolerance);
    *worse += v == WORSE;
    (void)ek_buf_printf(out, "%-32s %12.4g %12.4g %-8s %8.3f  %s\n", cell, json_number_value(x),
                        json_number_value(y), unit ? unit : "", isfinite(ratio) ? ratio : 0.0,
                        said[v]);
}

int compare_reports(const json_t *a, const json_t *b, double tolerance, struct ek_buf *out,
                    unsigned *ret_worse, struct ek_fault *fault)
{
    unsigned worse = 0;
    size_t i;
    json_t *row;

    const json_t *rows_a = rows_of(a, "first", fault);
    const json_t *rows_b = rows_a ? rows_of(b, "second", fault) : NULL;
    if (!rows_a || !rows_b)
        return -EBADMSG;
    (void)ek_buf_printf(out, "%-32s %12s %12s %-8s %8s\n", "", "A", "B", "", "B / A");
    json_array_foreach(rows_a, i, row)
    {
        const char *cell = json_string_value(json_object_get(row, "cell"));
        if (cell)
            add_line(out, cell, row, compare_find(rows_b, cell), tolerance, &worse);
    }
    json_array_foreach(rows_b, i, row)
    {
        const char *cell = json_string_value(json_object_get(row, "cell"));
        if (cell && !compare_find(rows_a, cell))
            add_line(out, cell, NULL, row, tolerance, &worse);
    }
    if (!ek_buf_ok(out))
        return -ENOMEM;
    *ret_worse = worse;
    return 0;
}

static json_t *read_report(const char *path, struct ek_fault *fault)
{
    json_error_t e;
    json_t *report = json_load_file(path, 0, &e);

    if (!report)
        ek_fault_write(fault, "compare", "%.200s cannot be read as a report: %.150s.", path,
                       e.text);
    return report;
}

int bench_compare(const struct bench_options *o, unsigned *ret_worse, struct ek_fault *fault)
{
    struct ek_buf out = {0};
    json_t *a = read_report(o->a, fault), *b = a ? read_report(o->b, fault) : NULL;

    int r = a && b ? compare_reports(a, b, o->tolerance, &out, ret_worse, fault) : -EBADMSG;
    if (r == 0 && (fputs(out.data, stdout) < 0 || fflush(stdout) != 0))
        r = -EIO;
    ek_buf_done(&out);
    json_decref(a);
    json_decref(b);
    return r;
}
