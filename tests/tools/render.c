/*
 * Renders a chat template with contexts from standard input, for tools/check-templates.py: a JSON
 * array of objects in, a line of JSON for each out: {"text": ...} or {"error": ...}. The context's
 * own "now" (seconds) is what strftime_now sees.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/jinja/jinja.h"

static int read_all(const char *path, struct ek_buf *out)
{
    char part[4096];
    size_t n;
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    while ((n = fread(part, 1, sizeof(part), f)) > 0)
        (void)ek_buf_add(out, part, n); /* tested by the caller */
    (void)fclose(f);                    /* only read */
    return ek_buf_ok(out) ? 0 : -1;
}

static void print_line(const char *key, const char *text, size_t len)
{
    struct ek_buf line = {0};
    (void)ek_buf_printf(&line, "{\"%s\": \"", key); /* tested below */
    (void)ek_buf_json(&line, text, len);
    (void)ek_buf_puts(&line, "\"}");
    (void)puts(ek_buf_ok(&line) ? line.data : "{\"error\": \"out of memory\"}");
    ek_buf_done(&line);
}

int main(int argc, char **argv)
{
    struct ek_buf source = {0};
    struct ek_fault fault = {0};
    struct jinja *t = NULL;
    json_t *contexts = json_loadf(stdin, 0, NULL);
    if (argc != 2 || read_all(argv[1], &source) < 0 || !contexts)
        return 2;
    int r = jinja_parse(source.data ? source.data : "", source.len, &t, &fault);
    for (size_t i = 0; i < json_array_size(contexts); i++) {
        const json_t *context = json_array_get(contexts, i);
        struct jinja_env env = {
            .context = context,
            .now_s = (uint64_t)json_integer_value(json_object_get(context, "now")),
        };
        struct ek_buf text = {0};
        if (t)
            r = jinja_render(t, &env, &text, &fault);
        if (r == 0)
            print_line("text", text.data ? text.data : "", text.len);
        else
            print_line("error", fault.msg, strlen(fault.msg));
        ek_buf_done(&text);
    }
    jinja_free(t);
    json_decref(contexts);
    ek_buf_done(&source);
    return 0;
}
