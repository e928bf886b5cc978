/* What is written from the option tables: --help, the reference, the law's constants as JSON. */
#include "supervisor/config/options_table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"

#define POL(field) offsetof(struct server_config, policy.field)

int config_help(struct ek_buf *out)
{
    (void)ek_buf_puts(out,
                      "Usage: evenkeeld --config FILE [OPTION]...\n"
                      "       evenkeeld --model DIR [--port N] [OPTION]... [-- SERVER FLAGS]\n"
                      "       evenkeeld --engine vllm --model DIR [OPTION]... [-- VLLM FLAGS]\n\n"
                      "Launches servers, watches them, moves their limits and starts them again.\n"
                      "In brackets the default.\n\n"
                      "  --config, -c FILE\n      YAML file with the keys below and `servers:`; "
                      "--print-options yaml lists all\n      of them.\n");
    int r = ek_opt_write(daemon_table, EK_OPT_HELP, out);
    return r < 0 ? r : (ek_buf_ok(out) ? 0 : -ENOMEM);
}

void config_policy_json(const struct policy_params *p, struct ek_buf *out)
{
    static const char *const modes[] = {"observe", "advise", "act"};
    struct server_config c = {.policy = *p,
                              .raise_step = p->raise_step,
                              .panic_count = p->panic_count,
                              .osc_damp = p->osc_damp,
                              .osc_freeze = p->osc_freeze};
    bool law = false;
    (void)ek_buf_printf(out, "\"mode\":\"%s\"", modes[p->mode]);
    for (const struct ek_opt *o = server_table; o->name; o++) {
        law |= o->at == POL(window_s); /* the first row of the law */
        if (!law)
            continue;
        const char *at = (const char *)&c + o->at;
        if (o->type == OPT_UINT) {
            uint64_t value;
            memcpy(&value, at, sizeof(value));
            (void)ek_buf_printf(out, ",\"%s\":\"%llu\"", o->name, (unsigned long long)value);
        } else {
            double value;
            memcpy(&value, at, sizeof(value));
            (void)ek_buf_printf(out, ",\"%s\":\"%.17g\"", o->name, value);
        }
    }
}

/* The law's rows with the defaults of config_law_defaults(), which the table leaves to it. */
static int write_server_table(enum ek_opt_format format, struct ek_buf *out)
{
    struct row_text {
        char text[24]; /* a double as %g has 13 characters */
    };
    size_t n = server_rows();
    struct server_config c = {0};
    int r = -ENOMEM;
    struct ek_opt *rows = calloc(n, sizeof(*rows));
    struct row_text *texts = calloc(n, sizeof(*texts));
    if (!rows || !texts)
        goto out;
    config_law_defaults(&c);
    for (size_t i = 0; i < n; i++) {
        rows[i] = server_table[i];
        if (!rows[i].name)
            continue;
        const char *at = (const char *)&c + rows[i].at;
        uint64_t count = 0;
        if (rows[i].type == OPT_UINT && !rows[i].def)
            memcpy(&count, at, sizeof(count));
        if (count > 0) { /* of the law: all others are zero here */
            (void)snprintf(texts[i].text, sizeof(texts[i].text), "%llu", (unsigned long long)count);
            rows[i].def = texts[i].text;
        }
        if (rows[i].at < POL(window_s))
            continue;
        double value;
        memcpy(&value, at, sizeof(value));
        (void)snprintf(texts[i].text, sizeof(texts[i].text), "%g", value);
        rows[i].def = texts[i].text;
    }
    r = ek_opt_write(rows, format, out);
out:
    free(texts);
    free(rows);
    return r;
}

int config_reference(enum ek_opt_format format, struct ek_buf *out)
{
    int r = ek_opt_write(daemon_table, format, out);
    if (r == 0 && format == EK_OPT_MARKDOWN)
        r = ek_buf_puts(out, "\n");
    return r < 0 ? r : write_server_table(format, out);
}
