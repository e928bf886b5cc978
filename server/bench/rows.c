/*
 * The report that all measuring commands of evenkeel-bench write with --report, and the statistics
 * that they share: median and spread of repeats. compare.c reads the
 * file. Jansson's functions accept NULL, so failures of memory are collected and tested once.
 */
#include "server/bench/rows.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"
#include "server/bench/samples.h"

struct spread spread_of(const double *values, uint32_t n)
{
    double sorted[ROWS_MOST_REPEATS];

    memcpy(sorted, values, n * sizeof(sorted[0]));
    sort_numbers(sorted, n);
    return (struct spread){(sorted[n / 2] + sorted[(n - 1) / 2]) / 2, sorted[0], sorted[n - 1]};
}

/* Numbers that JSON cannot say become null. */
static json_t *rows_number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

int rows_add(json_t *rows, const struct row *row)
{
    const struct spread *s = &row->value;
    json_t *o = json_object();
    int bad = json_object_set_new(o, "cell", json_string(row->cell));

    bad |= json_object_set_new(o, "value", rows_number(s->median));
    bad |= json_object_set_new(o, "unit", json_string(row->unit));
    bad |= json_object_set_new(o, "spread",
                               json_pack("[o, o]", rows_number(s->least), rows_number(s->most)));
    bad |= json_object_set_new(o, "peer", row->peer ? json_string(row->peer) : json_null());
    bad |= json_object_set_new(o, "peer_value",
                               row->peer ? rows_number(row->peer_value) : json_null());
    double ratio = row->peer && row->peer_value > 0.0 ? s->median / row->peer_value : (double)NAN;
    bad |= json_object_set_new(o, "ratio", rows_number(ratio));
    bad |= json_array_append_new(rows, o);
    return bad == 0 ? 0 : -ENOMEM;
}

json_t *rows_machine(void)
{
    char line[256], name[128] = "unknown";

    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof(line), f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        (void)snprintf(name, sizeof(name), "%s", colon[1] == ' ' ? colon + 2 : colon + 1);
        name[strcspn(name, "\n")] = '\0';
        break;
    }
    if (f)
        (void)fclose(f); /* only read */
    return json_pack("{s:s, s:i}", "cpu", name, "cores", (int)sysconf(_SC_NPROCESSORS_ONLN));
}

int rows_write(const char *path, const char *target, const char *commit, json_t *machine,
               json_t *rows, struct ek_fault *fault)
{
    json_t *root = json_pack("{s:s, s:s, s:o, s:O}", "target", target, "commit",
                             commit ? commit : "", "machine", machine, "rows", rows);

    int r = root ? json_dump_file(root, path, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) : -1;
    json_decref(root);
    if (r < 0)
        return ek_fault_set(fault, "report", "The report %s cannot be written: %s.", path,
                            root ? strerror(errno) : "out of memory");
    return 0;
}
