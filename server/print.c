/*
 * The options of evenkeel-server that print and end, for main.c, and the plan for --dry-run and the
 * log. Each text is made in a buffer first and printed whole, or not at all.
 */
#include "server/print.h"

#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/log.h"
#include "kernels/backend.h"
#include "kernels/registry.h"
#include "server/engine/limits.h"
#include "server/net/bounds.h"
#include "server/net/metrics.h"
#include "server/options.h"
#include "server/rank_table.h"
#include "server/start.h"

static int print_print(int r, struct ek_buf *text)
{
    if (r == 0 && text->data)
        (void)fputs(text->data, stdout);
    ek_buf_done(text);
    return r == 0 ? EK_EXIT_OK : EK_EXIT_INTERNAL;
}

int print_plan(struct stack *t)
{
    struct ek_fault f = {0};
    struct ek_buf text = {0};
    int code = EK_EXIT_INTERNAL;
    if (start_plan(t, &code, &f) < 0) {
        ek_text_clean(f.msg);
        (void)fprintf(stderr, "evenkeel-server: %s\n", f.msg);
        if (code == EK_EXIT_NO_FIT && rank_table_write(t, false, &text) == 0 && text.data)
            (void)fputs(text.data, stderr); /* whose need that is */
        ek_buf_done(&text);
    } else {
        code = print_print(start_write_plan(t, t->o->json, &text), &text);
    }
    start_done(t);
    return code;
}

int print_and_end(const struct options *o)
{
    struct ek_buf text = {0};
    if (o->help) {
        (void)ek_buf_puts(&text, "Usage: evenkeel-server [OPTIONS] MODEL\n\n"
                                 "Serves the model in a directory over OpenAI's API. Flags are "
                                 "spelled as in vLLM;\nin brackets the default.\n");
        return print_print(ek_opt_write_live(option_table, EK_OPT_HELP, limits_are_set_by, &text),
                           &text);
    }
    if (o->version) {
        (void)puts("evenkeel-server " EK_VERSION);
        return EK_EXIT_OK;
    }
    if (o->print_metrics)
        return print_print(metrics_reference(&text), &text);
    if (o->print_limits)
        return print_print(bounds_write(&text), &text);
    if (o->print_options)
        return print_print(ek_opt_write_live(option_table, ek_opt_format(o->print_options),
                                             limits_are_set_by, &text),
                           &text);
    if (o->list_backends)
        return print_print(ek_backend_list(&text), &text);
    if (o->check_config) {
        (void)puts("The options are fine.");
        return EK_EXIT_OK;
    }
    return -1;
}

void print_plan_to_log(const struct stack *t)
{
    struct ek_buf table = {0};
    if (start_write_plan(t, false, &table) == 0 && table.data) {
        for (char *line = table.data, *end; *line; line = end) {
            end = line + strcspn(line, "\n");
            bool more = *end != '\0';
            *end = '\0';
            ek_log(EK_LOG_INFO, "%s", line);
            end += more;
        }
    }
    ek_buf_done(&table);
}
