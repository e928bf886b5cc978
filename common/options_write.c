/* What is written from an option table: --help, man page rows, a commented YAML file, Markdown. */
#include <errno.h>
#include <string.h>

#include "common/buf.h"
#include "common/options.h"

static const char *value_word(const struct ek_opt *o)
{
    switch (o->type) {
    case OPT_BOOL: return "";
    case OPT_UINT:
    case OPT_INT: return "N";
    case OPT_FRACTION: return o->max > 1 ? "NUMBER" : "FRACTION";
    case OPT_SECONDS: return "SECONDS";
    case OPT_STRING:
    case OPT_LIST: return "TEXT";
    case OPT_CHOICE: return o->choices;
    case OPT_IGNORED: return o->choices && strcmp(o->choices, "flag") == 0 ? "" : "X";
    }
    return "";
}

static void wrap(struct ek_buf *out, const char *text, size_t indent, size_t width)
{
    (void)ek_buf_printf(out, "%*s", (int)indent, "");
    ek_buf_wrap(out, text, indent, width);
}

static void write_help(const struct ek_opt *o, bool live, struct ek_buf *out)
{
    const char *word = value_word(o);
    if (o->type == OPT_IGNORED)
        return;
    if (o->group)
        (void)ek_buf_printf(out, "\n%s:\n", o->group);
    (void)ek_buf_printf(out, "  --%s%s%s", o->name, word[0] ? " " : "", word);
    if (o->def)
        (void)ek_buf_printf(out, "  [%s]", o->def);
    (void)ek_buf_printf(out, "%s\n", live ? "  (live)" : "");
    wrap(out, o->help, 6, 78);
}

/* What is taken and ignored only matters to scripts that have it: names only. */
static void write_ignored(const struct ek_opt *table, struct ek_buf *out)
{
    struct ek_buf names = {0};
    for (const struct ek_opt *o = table; o->name; o++) {
        if (o->type != OPT_IGNORED)
            continue;
        if (o->group)
            (void)ek_buf_printf(out, "\n%s (the man page says why):\n", o->group);
        (void)ek_buf_printf(&names, "%s--%s", names.len ? " " : "", o->name);
    }
    if (names.len)
        wrap(out, names.data, 2, 78);
    ek_buf_done(&names);
}

/* Text of a man page: what roff would take for its own, and the hyphens of flags, are escaped. */
static void roff_text(struct ek_buf *out, const char *text)
{
    bool flag = false;
    if (*text == '.' || *text == '\'')
        (void)ek_buf_puts(out, "\\&");
    for (const char *c = text; *c; c++) {
        if (*c == '-' && (c == text || strchr(" (", c[-1])))
            flag = true;
        else if (*c == ' ')
            flag = false;
        if (*c == '\\')
            (void)ek_buf_puts(out, "\\e");
        else if (*c == '~')
            (void)ek_buf_puts(out, "\\(ti");
        else
            (void)ek_buf_printf(out, "%s%c", *c == '-' && flag ? "\\" : "", *c);
    }
}

/* What a flag takes. A line may end behind one of many choices. */
static void roff_word(struct ek_buf *out, const char *word)
{
    const bool breaks = strlen(word) > 80;
    (void)ek_buf_puts(out, word[0] ? " \\fI" : "");
    for (const char *c = word; *c; c++)
        (void)ek_buf_printf(out, "%c%s", *c, breaks && *c == '|' ? "\\:" : "");
    (void)ek_buf_puts(out, word[0] ? "\\fR\n" : "\n");
}

static void write_roff(const struct ek_opt *o, bool live, struct ek_buf *out)
{
    const char *word = value_word(o);
    if (o->group)
        (void)ek_buf_printf(out, ".SS %s\n", o->group);
    (void)ek_buf_puts(out, ".TP\n.B \\-\\-");
    for (const char *c = o->name; *c; c++)
        (void)ek_buf_printf(out, "%s%c", *c == '-' ? "\\" : "", *c);
    roff_word(out, word);
    roff_text(out, o->help);
    if (o->def && o->type != OPT_IGNORED) {
        (void)ek_buf_puts(out, "\nDefault: ");
        roff_text(out, o->def);
        (void)ek_buf_puts(out, ".");
    }
    (void)ek_buf_puts(out, live ? "\nMay change while running.\n" : "\n");
}

static void write_yaml(const struct ek_opt *o, struct ek_buf *out)
{
    if (o->type == OPT_IGNORED || strcmp(o->name, "config") == 0 || strcmp(o->name, "help") == 0)
        return;
    if (o->group)
        (void)ek_buf_printf(out, "\n# --- %s\n", o->group);
    size_t begin = out->len;
    wrap(out, o->help, 2, 96);
    for (size_t i = begin; i < out->len; i++) {
        if ((i == begin || out->data[i - 1] == '\n') && out->data[i] == ' ')
            out->data[i] = '#';
    }
    (void)ek_buf_printf(out, "#%s: %s\n", o->name,
                        o->def ? o->def : (o->type == OPT_BOOL ? "false" : ""));
}

static void write_markdown(const struct ek_opt *o, bool live, struct ek_buf *out)
{
    if (o->group)
        (void)ek_buf_printf(out, "\n### %s\n\n| flag | default | meaning |\n|---|---|---|\n",
                            o->group);
    (void)ek_buf_printf(out, "| `--%s` | %s | %s%s |\n", o->name, o->def ? o->def : "", o->help,
                        live ? " May change while running." : "");
}

enum ek_opt_format ek_opt_format(const char *name)
{
    if (name && strcmp(name, "roff") == 0)
        return EK_OPT_ROFF;
    return name && strcmp(name, "yaml") == 0 ? EK_OPT_YAML : EK_OPT_MARKDOWN;
}

int ek_opt_write_live(const struct ek_opt *table, enum ek_opt_format format,
                      bool (*is_live)(const char *name), struct ek_buf *out)
{
    for (const struct ek_opt *o = table; o->name; o++) {
        bool live = is_live && is_live(o->name);
        switch (format) {
        case EK_OPT_HELP: write_help(o, live, out); break;
        case EK_OPT_ROFF: write_roff(o, live, out); break;
        case EK_OPT_YAML: write_yaml(o, out); break;
        case EK_OPT_MARKDOWN: write_markdown(o, live, out); break;
        }
    }
    if (format == EK_OPT_HELP)
        write_ignored(table, out);
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

int ek_opt_write(const struct ek_opt *table, enum ek_opt_format format, struct ek_buf *out)
{
    return ek_opt_write_live(table, format, NULL, out);
}
