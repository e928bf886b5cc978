/*
 * Calls of tools. Where calls must come, they are written as hermes does. Where they may come,
 * everything up to the mark of a call is free; behind it the frame that the parser of the style
 * reads, with arguments that are valid where the tool is strict and any others where it is not.
 */
#include <errno.h>
#include <string.h>

#include "common/err.h"
#include "server/grammar/expr_text.h"
#include "server/grammar/schema_tools.h"

static bool is_strict(const json_t *tool)
{
    return json_is_true(json_object_get(json_object_get(tool, "function"), "strict")) ||
           json_is_true(json_object_get(tool, "strict"));
}

/* The arguments as a JSON object. References are into the parameters. */
static int read_arguments(struct schema_reader *r, const json_t *tool, bool bound,
                          uint32_t *ret_expr)
{
    const json_t *parameters = json_object_get(json_object_get(tool, "function"), "parameters");
    json_t *any = json_pack("{s:s}", "type", "object");
    int code = any ? 0 : -ENOMEM;

    if (code == 0)
        code = schema_root(r, json_is_object(parameters) && bound ? parameters : any);
    if (code == 0)
        code = schema_value(r, r->root, ret_expr);
    *ret_expr = json_as_call(r, code == 0 ? *ret_expr : EXPR_NEVER, "arguments");
    schema_root_done(r);
    json_decref(any);
    return code;
}

static const char *schema_tools_name_of(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

/* An object that is a call: before the name and between it and the arguments. */
struct object_form {
    const char *style, *open, *between;
};

static const struct object_form *object_form(const char *style)
{
    static const struct object_form forms[] = {
        {"llama3_json", "{\"name\": ", ", \"parameters\": "},
        {"internlm", "{\"name\": ", ", \"parameters\": "},
        {"cohere_command3", "\", \"tool_name\": ", ", \"parameters\": "}, /* behind an id */
        {"apertus", "{", ": "},
        {"", "{\"name\": ", ", \"arguments\": "}, /* the others' */
    };
    const struct object_form *f = forms;

    while (*f->style && strcmp(f->style, style) != 0)
        f++;
    return f;
}

/* The object of a style, behind `before`. */
static int read_object_call(struct schema_reader *r, const json_t *tool, const char *before,
                            const char *style, bool bound, uint32_t *ret_expr)
{
    const struct object_form *f = object_form(style);
    struct expr_list all = {.set = r->set};
    uint32_t name = EXPR_EMPTY, arguments = EXPR_EMPTY;
    const json_t *text = json_object_get(json_object_get(tool, "function"), "name");
    int code = json_is_string(text) ? json_literal(r, text, &name) : -EBADMSG;

    if (code == 0)
        code = read_arguments(r, tool, bound, &arguments);
    expr_push(&all, expr_text(r->set, before));
    if (f->open[0] == '"') {
        expr_push(&all, expr_text(r->set, "{\"tool_call_id\": \""));
        expr_push(&all, expr_repeat(r->set, expr_byte(r->set, '0', '9'), 1, 3));
    }
    expr_push(&all, expr_text(r->set, f->open));
    expr_push(&all, name);
    expr_push(&all, expr_text(r->set, f->between));
    expr_push(&all, arguments);
    expr_push(&all, expr_text(r->set, "}"));
    *ret_expr = expr_seq(&all);
    return code;
}

/* ---- where they must come ---- */

static int read_calls(struct schema_reader *r, const json_t *root, uint32_t *ret_expr)
{
    const json_t *tools = json_object_get(root, "tools"), *only = json_object_get(root, "name");
    struct expr_list alt = {.set = r->set};
    uint32_t most = (uint32_t)json_integer_value(json_object_get(root, "most"));
    int code = 0;

    for (size_t i = 0; code == 0 && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
        uint32_t e = EXPR_NEVER;
        if (json_is_string(only) && !json_equal(only, name))
            continue;
        code = read_object_call(r, tool, "<tool_call>\n", "hermes", true, &e);
        expr_push(&alt, expr_pair(r->set, e, expr_text(r->set, "\n</tool_call>")));
    }
    uint32_t one = json_as_call(r, expr_alt(&alt), "call");
    uint32_t next = expr_pair(r->set, expr_text(r->set, "\n"), one);
    *ret_expr = expr_pair(r->set, one, expr_repeat(r->set, next, 0, most > 1 ? most - 1 : 0));
    return code;
}

/* ---- where they may come ---- */

/* What a style's calls stand between, where they have marks. */
static const struct tool_marks {
    const char *style, *begin, *end;
} tool_marks[] = {
    {"mistral", "[TOOL_CALLS]", ""},
    {"seed_oss", "<seed:tool_call>", "</seed:tool_call>"},
    {"hunyuan_a13b", "<tool_calls>", "</tool_calls>"},
    {"deepseek_v3", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"},
    {"deepseek_v31", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"},
    {"gemma4", "<|tool_call>", "<tool_call|>"},
    {"kimi_k2", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"},
    {"minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>"},
    {"dots", "<dots_function_call>", "</dots_function_call>"},
    {"deepseek_v32", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"},
    {"deepseek_v4", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"}, /* of the same parser */
    {"hy_v3", "<tool_calls:opensource>", "</tool_calls:opensource>"},
    {"hy_v3_preview", "<tool_calls>", "</tool_calls>"}, /* of the same parser */
    {"granite", "<|tool_call|>", ""},
    {"phi4_mini_json", "functools[", ""}, /* the word alone is text */
    {"nemotron_json", "<TOOLCALL>", "</TOOLCALL>"},
    {"lfm2", "<|tool_call_start|>", "<|tool_call_end|>"},
    {"olmo3", "<function_calls>", "</function_calls>"},
    {"longcat", "<longcat_tool_call>", "</longcat_tool_call>"},
    {"internlm", "<|action_start|><|plugin|>", "<|action_end|>"},
    {"granite-20b-fc", "<function_call>", ""},
    {"gigachat3", "<|function_call|>", ""},
    {"gigachat3_0", "<|message_sep|>\n\nfunction call<|role_sep|>", ""}, /* of the same parser */
    {"cohere_command3", "<|START_ACTION|>", "<|END_ACTION|>"},
    {"apertus", "<|tools_prefix|>", "<|tools_suffix|>"},
    {"deepseek_v41", "<｜DSML｜ calls>", "</｜DSML｜ calls>"},
    {"step3", "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"},
    {"minicpm5", "<function name=", ""},
    {"kimi_k3", "<|open|>tools<|sep|>", "<|close|>tools<|sep|>"},
    {"functiongemma", "<start_function_call>", "<end_function_call>"},
    {"", "<tool_call>", "</tool_call>"}, /* the others' */
};

static const struct tool_marks *marks_of(const char *style)
{
    const struct tool_marks *m = tool_marks;
    while (*m->style && strcmp(m->style, style) != 0)
        m++;
    return m;
}

/* call_begin NAME sep arguments call_end; V3 has a type and a fence beside. */
static int read_deepseek_call(struct schema_reader *r, const json_t *tool, bool v3, bool bound,
                              uint32_t *ret_expr)
{
    struct expr_list all = {.set = r->set};
    uint32_t arguments = EXPR_EMPTY;
    int code = read_arguments(r, tool, bound, &arguments);

    expr_push(&all, expr_text(r->set, "<｜tool▁call▁begin｜>"));
    expr_push(&all, expr_text(r->set, v3 ? "function<｜tool▁sep｜>" : ""));
    expr_push(&all, expr_text(r->set, schema_tools_name_of(tool)));
    expr_push(&all, expr_text(r->set, v3 ? "\n```json\n" : "<｜tool▁sep｜>"));
    expr_push(&all, arguments);
    expr_push(&all, expr_text(r->set, v3 ? "\n```" : ""));
    expr_push(&all, expr_text(r->set, "<｜tool▁call▁end｜>"));
    *ret_expr = expr_seq(&all);
    return code;
}

static bool is_one_of(const char *style, const char *const *names)
{
    while (*names && strcmp(*names, style) != 0)
        names++;
    return *names != NULL;
}
#define ONE_OF(style, ...) is_one_of((style), (const char *const[]){__VA_ARGS__, NULL})

static bool is_deepseek(const char *style)
{
    return ONE_OF(style, "deepseek_v3", "deepseek_v31");
}

static bool is_dsml(const char *style)
{
    return ONE_OF(style, "deepseek_v32", "deepseek_v4", "deepseek_v41");
}

/* call_begin functions.NAME:0 argument_begin arguments call_end */
static int read_kimi_call(struct schema_reader *r, const json_t *tool, bool bound,
                          uint32_t *ret_expr)
{
    struct expr_list all = {.set = r->set};
    uint32_t arguments = EXPR_EMPTY, digit = expr_byte(r->set, '0', '9');
    int code = read_arguments(r, tool, bound, &arguments);

    expr_push(&all, expr_text(r->set, "<|tool_call_begin|>functions."));
    expr_push(&all, expr_text(r->set, schema_tools_name_of(tool)));
    expr_push(&all, expr_text(r->set, ":"));
    expr_push(&all, expr_repeat(r->set, digit, 1, 3));
    expr_push(&all, expr_text(r->set, "<|tool_call_argument_begin|>"));
    expr_push(&all, arguments);
    expr_push(&all, expr_text(r->set, "<|tool_call_end|>"));
    *ret_expr = expr_seq(&all);
    return code;
}

/* One call of any of the tools, in the frame of a style. */
static int read_any_call(struct schema_reader *r, const json_t *tools, const char *style,
                         uint32_t *ret_expr)
{
    struct expr_list alt = {.set = r->set};
    int code = 0;

    for (size_t i = 0; code == 0 && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        bool bound = is_strict(tool);
        uint32_t e = EXPR_NEVER;
        if (!schema_tools_name_of(tool))
            code = ek_fault_set(r->fault, "", "a tool has no name");
        else if (ONE_OF(style, "qwen3_coder", "seed_oss", "mimo"))
            code = tool_read_qwen(r, tool, bound, strcmp(style, "mimo") != 0, &e);
        else if (strcmp(style, "glm45") == 0)
            code = tool_read_glm(r, tool, bound, &e);
        else if (ONE_OF(style, "hy_v3", "hy_v3_preview"))
            code = tool_read_hy(r, tool, bound, strcmp(style, "hy_v3") != 0, &e);
        else if (is_dsml(style) ||
                 ONE_OF(style, "minimax_m2", "dots", "step3", "minicpm5", "kimi_k3"))
            /* V4 has another section */
            code = tool_read_invoke(r, tool, bound,
                                    strcmp(style, "deepseek_v4") == 0 ? "deepseek_v32" : style, &e);
        else if (ONE_OF(style, "gemma4", "functiongemma"))
            code = tool_read_gemma(r, tool, bound, strcmp(style, "gemma4") != 0, &e);
        else if (is_deepseek(style))
            code = read_deepseek_call(r, tool, strcmp(style, "deepseek_v3") == 0, bound, &e);
        else if (strcmp(style, "kimi_k2") == 0)
            code = read_kimi_call(r, tool, bound, &e);
        else if (ONE_OF(style, "pythonic", "lfm2", "olmo3"))
            code = tool_read_python(r, tool, bound, &e);
        else
            code = read_object_call(r, tool, "", style, bound, &e);
        expr_push(&alt, e);
    }
    *ret_expr = expr_alt(&alt);
    return code;
}

/* name{...} and name[ARGS]{...} */
static int read_named_call(struct schema_reader *r, const json_t *tools, uint32_t *ret_expr)
{
    struct expr_list alt = {.set = r->set};
    int code = 0;

    for (size_t i = 0; code == 0 && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        uint32_t e = EXPR_NEVER;
        struct expr_list all = {.set = r->set};
        code = read_arguments(r, tool, is_strict(tool), &e);
        expr_push(&all, expr_text(r->set, schema_tools_name_of(tool)));
        expr_push(&all, expr_maybe(r->set, expr_text(r->set, "[ARGS]")));
        expr_push(&all, e);
        expr_push(&alt, expr_seq(&all));
    }
    *ret_expr = expr_alt(&alt);
    return code;
}

/* Behind the mark of a style whose calls have one, up to the end of the call. */
static int read_marked(struct schema_reader *r, const json_t *tools, const char *style, bool one,
                       uint32_t *ret_expr)
{
    struct expr_set *s = r->set;
    uint32_t line = expr_maybe(s, expr_text(s, "\n")), e = EXPR_NEVER, named = EXPR_NEVER;
    const bool mistral = strcmp(style, "mistral") == 0, olmo = strcmp(style, "olmo3") == 0;
    const bool lines = olmo || is_dsml(style) || ONE_OF(style, "minimax_m2", "dots");
    const bool hy = ONE_OF(style, "hy_v3", "hy_v3_preview");
    const bool row =
        is_deepseek(style) || lines || hy || ONE_OF(style, "kimi_k2", "kimi_k3", "step3");
    const bool python = olmo || strcmp(style, "lfm2") == 0;
    const bool cohere = strcmp(style, "cohere_command3") == 0;
    const bool list = cohere || ONE_OF(style, "mistral", "hunyuan_a13b", "granite",
                                       "phi4_mini_json", "nemotron_json", "lfm2", "apertus");
    uint32_t end = expr_text(s, marks_of(style)->end);

    r->python = python;
    int code = read_any_call(r, tools, style, &e);
    r->python = false;
    if (!row && !list) {
        if (strcmp(style, "granite-20b-fc") == 0)
            line = expr_maybe(s, expr_text(s, " "));
        if (strcmp(style, "minicpm5") == 0) /* the name follows its mark */
            line = EXPR_EMPTY;
        *ret_expr = expr_pair(
            s, line, expr_pair(s, e, *marks_of(style)->end ? expr_pair(s, line, end) : EXPR_EMPTY));
        return code;
    }
    if (code == 0 && mistral)
        code = read_named_call(r, tools, &named);
    uint32_t call = json_as_call(r, e, "call"), more = EXPR_EMPTY;
    /* a call on each line */
    uint32_t between = lines ? expr_text(s, "\n")
                       : row ? line
                             : expr_text(s, cohere ? ",\n    " : ", ");
    if (!one)
        more = expr_repeat(s, expr_pair(s, between, call), 0, EXPR_MANY);
    uint32_t calls = expr_pair(s, call, more);
    if (row) {
        uint32_t begin = lines || hy ? line : EXPR_EMPTY, last = expr_pair(s, begin, end);
        *ret_expr = expr_pair(s, begin, expr_pair(s, calls, last));
        return code;
    }
    const char *open = strcmp(style, "phi4_mini_json") == 0 ? "" : cohere ? "[\n    " : "[";
    calls =
        expr_pair(s, expr_text(s, open), expr_pair(s, calls, expr_text(s, cohere ? "\n]" : "]")));
    if (mistral || strcmp(style, "granite") == 0) /* no mark ends it */
        *ret_expr = expr_pair(s, expr_maybe(s, expr_text(s, " ")), expr_either(s, calls, named));
    else if (*marks_of(style)->end)
        *ret_expr = expr_pair(s, line, expr_pair(s, calls, expr_pair(s, line, end)));
    else
        *ret_expr = calls;
    return code;
}

/* text (mark call text)* */
static int read_tags(struct schema_reader *r, const json_t *root, const char *style, uint32_t rule)
{
    /* Granite 3.0 and 3.1 have different marks, and so have a preview of Hy3, DeepSeek V4 and
     * GigaChat 3.0. */
    const char *const styles[] = {style, strcmp(style, "hy_v3") == 0          ? "hy_v3_preview"
                                         : strcmp(style, "deepseek_v32") == 0 ? "deepseek_v4"
                                         : strcmp(style, "gigachat3") == 0    ? "gigachat3_0"
                                                                              : NULL};
    bool one = json_is_true(json_object_get(root, "one"));
    struct text_word mark[2];
    uint32_t count = 0;
    int code = 0;

    for (; code == 0 && count < 2 && styles[count]; count++) {
        uint32_t call = EXPR_NEVER;
        code = read_marked(r, json_object_get(root, "tools"), styles[count], one, &call);
        uint32_t inner = json_as_call(r, call, "call");
        uint32_t then = one ? inner : expr_pair(r->set, inner, expr_call(r->set, rule));
        mark[count] = (struct text_word){marks_of(styles[count])->begin, then};
    }
    if (strcmp(style, "granite") == 0)
        mark[count++] = (struct text_word){"<tool_call>", mark[0].then};
    expr_text_write(r->set, rule, mark, count, true, false);
    return code;
}

/* Any bytes. */
static uint32_t any_text(struct expr_set *s)
{
    uint32_t rule = expr_rule_new(s, "text");

    expr_text_write(s, rule, NULL, 0, true, false);
    return expr_call(s, rule);
}

/* Text that begins with neither `open` nor the mark, blanks in front not counted. */
static void write_other(struct expr_set *s, const char *mark, uint8_t open, uint32_t rule,
                        uint32_t calls)
{
    struct expr_list alt = {.set = s};
    uint32_t any = any_text(s), marked = EXPR_NEVER;

    for (size_t n = strlen(mark); n-- > 0;) { /* what has begun like the mark and is not it */
        uint8_t b = (uint8_t)mark[n];
        struct expr_list at = {.set = s};
        bool whole = n + 1 == strlen(mark);
        expr_push(&at, expr_pair(s, expr_byte(s, b, b), whole ? calls : marked));
        if (n > 0) {
            expr_push(&at, EXPR_EMPTY);
            expr_push(&at, expr_pair(s, expr_byte(s, 0, (uint8_t)(b - 1)), any));
            expr_push(&at, expr_pair(s, expr_byte(s, (uint8_t)(b + 1), 255), any));
        }
        marked = expr_alt(&at);
        if (n > 0) {
            uint32_t step = expr_rule_new(s, "text");
            expr_rule_set(s, step, marked);
            marked = expr_call(s, step);
        }
    }
    expr_push(&alt, EXPR_EMPTY);
    expr_push(&alt, marked);
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t byte = expr_byte(s, (uint8_t)b, (uint8_t)b);
        bool blank = b == ' ' || b == '\t' || b == '\n' || b == '\r';
        if (b != open && (!*mark || b != (uint8_t)mark[0]))
            expr_push(&alt, expr_pair(s, byte, blank ? expr_call(s, rule) : any));
    }
    expr_push(&alt, calls);
    expr_rule_set(s, rule, expr_alt(&alt));
}

static bool opens_list(const char *style)
{
    return ONE_OF(style, "pythonic", "xlam");
}

/* Calls of a style that has no mark between them, at most `most`. The first byte stands in the
 * expression itself, not in a rule that it calls. */
static int read_row(struct schema_reader *r, const json_t *tools, const char *style, uint32_t most,
                    uint32_t *ret_expr)
{
    bool python = strcmp(style, "pythonic") == 0, list = opens_list(style);
    struct expr_set *s = r->set;
    uint32_t first = EXPR_NEVER;

    r->python = python;
    int code = read_any_call(r, tools, style, &first);
    r->python = false;
    uint32_t call = json_as_call(r, first, "call"), next, more;
    next = expr_pair(s, expr_text(s, list ? ", " : "; "), call);
    more =
        most == 1 ? EXPR_EMPTY : expr_repeat(s, next, 0, most == EXPR_MANY ? EXPR_MANY : most - 1);
    *ret_expr = list ? expr_pair(s, expr_text(s, "["),
                                 expr_pair(s, call, expr_pair(s, more, expr_text(s, "]"))))
                     : expr_pair(s, first, more);
    return code;
}

static const char *row_mark(const char *style)
{
    return strcmp(style, "pythonic") == 0 ? "<|python_start|>"
           : strcmp(style, "xlam") == 0   ? ""
                                          : "<|python_tag|>";
}

/* Calls are the whole answer, or there are none. */
static int read_whole(struct schema_reader *r, const json_t *root, const char *style, uint32_t rule)
{
    bool one = json_is_true(json_object_get(root, "one"));
    uint32_t calls = EXPR_NEVER;
    int code = read_row(r, json_object_get(root, "tools"), style, one ? 1 : EXPR_MANY, &calls);

    /* It sees all bytes: it is free. */
    write_other(r->set, row_mark(style), opens_list(style) ? '[' : '{', rule, calls);
    return code;
}

/* ---- where nothing else may come but a form ---- */

static bool is_row(const char *style)
{
    return strcmp(style, "llama3_json") == 0 || opens_list(style);
}

static int read_only_calls(struct schema_reader *r, const json_t *root, const char *style,
                           uint32_t *ret_expr)
{
    const json_t *tools = json_object_get(root, "tools");
    bool one = json_is_true(json_object_get(root, "one"));
    json_int_t said = json_integer_value(json_object_get(root, "most"));
    uint32_t most = one || said < 1 ? 1 : (uint32_t)said, inner = EXPR_NEVER;
    struct expr_set *s = r->set;

    if (is_row(style)) {
        int code = read_row(r, tools, style, most, &inner);
        *ret_expr = expr_pair(s, expr_maybe(s, expr_text(s, row_mark(style))), inner);
        return code;
    }
    int code = read_marked(r, tools, style, one, &inner);
    const char *mark = marks_of(style)->begin;
    uint32_t call = json_as_call(r, expr_pair(s, expr_text(s, mark), inner), "call");
    uint32_t next = expr_pair(s, expr_maybe(s, expr_text(s, "\n")), call);
    *ret_expr = expr_pair(s, call, expr_repeat(s, next, 0, most - 1));
    return code;
}

/* ---- all of them ---- */

int schema_read_calls(struct expr_set *set, const char *text, size_t len, uint32_t *ret_rule,
                      struct ek_fault *fault)
{
    struct schema_reader r = {.set = set, .fault = fault};
    json_t *root = json_loadb(text, len, 0, NULL);
    uint32_t body = EXPR_NEVER;
    int code = json_is_object(root) ? read_calls(&r, root, &body)
                                    : ek_fault_set(fault, "", "the tools are no JSON object");

    if (code == -EBADMSG && fault && !fault->msg[0])
        (void)ek_fault_set(fault, "", "a tool has no name");
    *ret_rule = expr_rule_new(set, "root");
    expr_rule_set(set, *ret_rule, body);
    json_decref(root);
    return code;
}

int schema_read_tags(struct expr_set *set, const char *text, size_t len, uint32_t *ret_rule,
                     struct ek_fault *fault)
{
    struct schema_reader r = {.set = set, .fault = fault};
    json_t *root = json_loadb(text, len, 0, NULL);
    const char *style = json_string_value(json_object_get(root, "style"));
    int code;

    *ret_rule = expr_rule_new(set, "root");
    expr_rule_set(set, *ret_rule, EXPR_NEVER);
    if (!style)
        code = ek_fault_set(fault, "", "the tools are no JSON object with a style");
    else if (is_row(style))
        code = read_whole(&r, root, style, *ret_rule);
    else
        code = read_tags(&r, root, style, *ret_rule);
    if (code == -EBADMSG && fault && !fault->msg[0])
        (void)ek_fault_set(fault, "", "a tool has no name");
    json_decref(root);
    return code;
}

int schema_read_only_calls(struct expr_set *set, const json_t *root, uint32_t *ret_rule,
                           struct ek_fault *fault)
{
    struct schema_reader r = {.set = set, .fault = fault};
    const char *style = json_string_value(json_object_get(root, "style"));
    uint32_t body = EXPR_NEVER;
    int code = style ? read_only_calls(&r, root, style, &body)
                     : ek_fault_set(fault, "", "the tools have no style");

    if (code == -EBADMSG && fault && !fault->msg[0])
        (void)ek_fault_set(fault, "", "a tool has no name");
    *ret_rule = expr_rule_new(set, "calls");
    expr_rule_set(set, *ret_rule, body);
    return code;
}
