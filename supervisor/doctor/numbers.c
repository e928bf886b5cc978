/*
 * A small table of named numbers that scan.c fills from captures of the catalog's expressions, and
 * that texts and formulas (tell.c, advise.c, flow.c) look up. A later value replaces an earlier one
 * of the same name. Sizes are read with their unit, decimal or binary as it is written.
 */
#include "supervisor/doctor/numbers.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/promtext.h"

#define VALUE_MOST 1e18

const struct doctor_number *doctor_numbers_find(const struct doctor_numbers *n, const char *name)
{
    for (uint32_t i = 0; i < n->count; i++) {
        if (strcmp(n->at[i].name, name) == 0)
            return &n->at[i];
    }
    return NULL;
}

void doctor_numbers_set(struct doctor_numbers *n, const char *name, double value, bool bytes)
{
    if (strlen(name) >= DOCTOR_NAME_MOST || !isfinite(value))
        return;
    uint32_t i = 0;
    while (i < n->count && strcmp(n->at[i].name, name) != 0)
        i++;
    if (i == DOCTOR_NUMBERS_MOST)
        return;
    if (i == n->count) {
        (void)snprintf(n->at[i].name, DOCTOR_NAME_MOST, "%s", name);
        n->count++;
    }
    n->at[i].value = value;
    n->at[i].bytes = bytes;
}

bool doctor_numbers_lookup(const void *ctx, const char *name, double *ret_value)
{
    const struct doctor_number *n = doctor_numbers_find(ctx, name);
    if (!n)
        return false;
    *ret_value = n->value;
    return true;
}

bool doctor_numbers_versioned(const char *name)
{
    size_t n = strlen(name), tail = strlen("_version");
    return n > tail && strcmp(name + n - tail, "_version") == 0;
}

bool doctor_numbers_silent(const char *name)
{
    return strncmp(name, "is_", 3) == 0;
}

/* Bytes of the unit at s, 0 = none. */
static double unit(const char *s, size_t len)
{
    static const struct {
        const char *text;
        double bytes;
    } units[] = {{"TiB", 1099511627776.0},
                 {"GiB", 1073741824.0},
                 {"MiB", 1048576.0},
                 {"KiB", 1024.0},
                 {"TB", 1e12},
                 {"GB", 1e9},
                 {"MB", 1e6},
                 {"KB", 1e3},
                 {"kB", 1024.0}, /* the kernel's */
                 {"bytes", 1.0},
                 {"G", 1073741824.0},
                 {"M", 1048576.0}};
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        size_t n = strlen(units[i].text);
        if (len >= n && memcmp(s, units[i].text, n) == 0)
            return units[i].bytes;
    }
    return 0;
}

bool doctor_number_read(const char *text, size_t len, double *ret_value, bool *ret_bytes)
{
    char plain[40];
    size_t n = 0, i = 0;
    for (; i < len && n + 1 < sizeof(plain); i++) {
        if (text[i] == ',' && i + 1 < len && text[i + 1] >= '0' && text[i + 1] <= '9')
            continue; /* 1,234 */
        if (!strchr("+-.0123456789", text[i]) || !text[i])
            break;
        plain[n++] = text[i];
    }
    double value = 0;
    if (promtext_number(plain, n, &value) == 0 || fabs(value) > VALUE_MOST)
        return false;
    while (i < len && text[i] == ' ')
        i++;
    double scale = unit(text + i, len - i);
    *ret_value = scale > 0 ? value * scale : value;
    *ret_bytes = scale > 0;
    return true;
}

const char *doctor_number_text(double value, bool bytes, char text[32])
{
    static const struct {
        double from;
        const char *unit;
    } sizes[] = {
        {1099511627776.0 * 10, "TiB"}, {1073741824.0, "GiB"}, {1048576.0, "MiB"}, {1024.0, "KiB"}};
    for (size_t i = 0; bytes && i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (fabs(value) >= sizes[i].from) {
            double whole = i == 0 ? sizes[i].from / 10 : sizes[i].from;
            (void)snprintf(text, 32, "%.2f %s", value / whole, sizes[i].unit);
            return text;
        }
    }
    if (fabs(value - round(value)) < 1e-9)
        (void)snprintf(text, 32, "%.0f%s", value + 0.0, bytes ? " B" : "");
    else
        (void)snprintf(text, 32, fabs(value) < 10 ? "%.2f" : "%.1f", value);
    return text;
}
