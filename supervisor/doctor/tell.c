/*
 * Fills the numbers of a log into the texts of the catalog, for diagnose_text.c, diagnose_json.c
 * and live_show.c. Expressions in braces are computed by the catalog's own small formula language;
 * a flag is told only if the version that the log names has it, and by the name that its engine
 * has for it.
 */
#include "supervisor/doctor/tell.h"

#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "supervisor/doctor/expr.h"

#define EXPR_MOST 160

static void put_value(const char *expr, size_t len, const struct doctor_numbers *n,
                      struct ek_buf *out)
{
    char text[EXPR_MOST], number[32];
    double v = 0;
    if (len >= sizeof(text)) {
        (void)ek_buf_puts(out, "?");
        return;
    }
    memcpy(text, expr, len);
    text[len] = '\0';
    char *form = strrchr(text, ':');
    if (form)
        *form++ = '\0';
    const struct doctor_number *plain = doctor_numbers_find(n, text);
    bool bytes = form ? strcmp(form, "size") == 0 : plain && plain->bytes;
    if (doctor_eval(text, doctor_numbers_lookup, n, &v) < 0)
        (void)ek_buf_puts(out, "?");
    else if (form && strcmp(form, "pct") == 0)
        (void)ek_buf_printf(out, "%.0f %%", v * 100);
    else
        (void)ek_buf_puts(out, doctor_number_text(v, bytes, number));
}

void doctor_tell(const char *text, const struct doctor_numbers *n, struct ek_buf *out)
{
    while (*text) {
        const char *open = strchr(text, '{');
        const char *close = open ? strchr(open, '}') : NULL;
        if (!close) {
            (void)ek_buf_puts(out, text);
            return;
        }
        (void)ek_buf_add(out, text, (size_t)(open - text));
        put_value(open + 1, (size_t)(close - open - 1), n, out);
        text = close + 1;
    }
}

/* Whole numbers plainly, shares with two decimals. */
static void value_text(double v, char *text, size_t size)
{
    if (v >= -1e15 && v <= 1e15 && v - (double)(long long)v < 1e-6 &&
        v - (double)(long long)v > -1e-6)
        (void)snprintf(text, size, "%lld", (long long)v);
    else
        (void)snprintf(text, size, "%.2f", v);
}

/* The version of an engine that the log names, 0: it does not. */
static double version_of(const char *engine, const struct doctor_numbers *n)
{
    char name[DOCTOR_NAME_MOST];
    double v = 0;
    (void)snprintf(name, sizeof(name), "%.20s_version", engine);
    return doctor_numbers_lookup(n, name, &v) && v > 0 ? v : 0;
}

bool doctor_is_of(const char *engine, const struct doctor_numbers *n)
{
    char name[DOCTOR_NAME_MOST];
    double v = 0;
    (void)snprintf(name, sizeof(name), "is_%.20s", engine);
    return (doctor_numbers_lookup(n, name, &v) && v > 0) || version_of(engine, n) > 0;
}

/* What the engine of the log calls the flag of a remedy; NULL: it does not have it. */
static const char *flag_there(const struct doctor_remedy *m, const struct doctor_numbers *n)
{
    const struct doctor_flag *flag = m->known;
    if (!doctor_is_of(flag->engine, n) && doctor_is_of("sglang", n))
        return flag->sglang;
    if (!doctor_is_of(flag->engine, n) && doctor_is_of("llamacpp", n))
        return flag->llamacpp;
    double v = version_of(flag->engine, n);
    bool has = v > 0 ? v >= flag->from && (!(flag->until > 0) || v < flag->until)
                     : !(flag->until > 0); /* not known: what today's versions have */
    return has ? m->flag : NULL;
}

uint32_t doctor_advise(const struct doctor_remedy *list, uint32_t count,
                       const struct doctor_numbers *n, struct doctor_advice *ret_advice,
                       uint32_t most)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count && kept < most; i++) {
        double v = 0;
        if (list[i].when && (doctor_eval(list[i].when, doctor_numbers_lookup, n, &v) < 0 || v == 0))
            continue;
        const char *flag = list[i].known ? flag_there(&list[i], n) : list[i].flag;
        if (list[i].known && !flag)
            continue;
        struct doctor_advice *a = &ret_advice[kept++];
        *a = (struct doctor_advice){.remedy = &list[i], .flag = flag};
        if (list[i].value && list[i].value[0] == '=') {
            (void)snprintf(a->value, sizeof(a->value), "%s", list[i].value + 1);
            a->has_value = true;
        } else if (list[i].value && doctor_eval(list[i].value, doctor_numbers_lookup, n, &v) == 0) {
            value_text(v, a->value, sizeof(a->value));
            a->has_value = true;
        }
    }
    return kept;
}
