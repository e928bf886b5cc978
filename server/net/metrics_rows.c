/* Families of one value, one histogram or one label (metrics_rows.h). Called by the files that
 * write metrics. */
#include "server/net/metrics_rows.h"

#include <stdio.h>

#include "server/net/metric_names.h"

void metrics_one(struct ek_expo *e, int id, double value)
{
    ek_expo_family(e, &metrics_table[id]);
    ek_expo_value(e, NULL, value);
}

void metrics_hist(struct ek_expo *e, int id, const struct ek_hist *h)
{
    ek_expo_family(e, &metrics_table[id]);
    ek_expo_hist(e, NULL, h);
}

void metrics_hist_by(struct ek_expo *e, int id, const struct ek_hist *h,
                     const struct ek_exemplars *x)
{
    ek_expo_family(e, &metrics_table[id]);
    ek_expo_hist_named(e, NULL, h, x);
}

void metrics_rows(struct ek_expo *e, int id, const char *label, const struct metrics_row *row,
                  size_t count)
{
    char text[96];
    ek_expo_family(e, &metrics_table[id]);
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(text, sizeof(text), "%s=\"%s\"", label, row[i].label);
        ek_expo_value(e, text, row[i].value);
    }
}
