/*
 * Tool calls in text, see toolcall.h. Here: the styles' marks, and the way through the states.
 */
#include "server/text/answer/toolcall.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char tool_call[] = "<tool_call>", tool_call_end[] = "</tool_call>";
static const char deepseek_calls[] = "<｜tool▁calls▁begin｜>";

static const struct {
    const char *name, *begin, *end;
    bool lists;           /* of JSON objects */
    const char *second;   /* a mark that may stand for `begin`, or NULL */
    bool whole;           /* the whole answer is calls */
    const char *name_key; /* of toolscan */
} styles[] = {
    [TOOLS_NONE] = {.name = "", .begin = "", .end = ""},
    [TOOLS_HERMES] = {.name = "hermes", .begin = tool_call, .end = tool_call_end},
    [TOOLS_LLAMA3_JSON] = {.name = "llama3_json",
                           .begin = "<|python_tag|>",
                           .end = "",
                           .whole = true},
    [TOOLS_MISTRAL] = {.name = "mistral", .begin = "[TOOL_CALLS]", .end = "", .lists = true},
    [TOOLS_QWEN3_CODER] = {.name = "qwen3_coder", .begin = tool_call, .end = tool_call_end},
    [TOOLS_PYTHONIC] = {.name = "pythonic", .begin = "<|python_start|>", .end = "", .whole = true},
    [TOOLS_SEED_OSS] = {.name = "seed_oss",
                        .begin = "<seed:tool_call>",
                        .end = "</seed:tool_call>"},
    [TOOLS_GLM45] = {.name = "glm45", .begin = tool_call, .end = tool_call_end},
    [TOOLS_ERNIE45] = {.name = "ernie45", .begin = tool_call, .end = tool_call_end},
    [TOOLS_HUNYUAN] = {.name = "hunyuan_a13b",
                       .begin = "<tool_calls>",
                       .end = "</tool_calls>",
                       .lists = true},
    [TOOLS_DEEPSEEK_V3] = {.name = "deepseek_v3", .begin = deepseek_calls, .end = ""},
    [TOOLS_DEEPSEEK_V31] = {.name = "deepseek_v31", .begin = deepseek_calls, .end = ""},
    [TOOLS_GEMMA4] = {.name = "gemma4", .begin = "<|tool_call>", .end = "<tool_call|>"},
    [TOOLS_KIMI_K2] = {.name = "kimi_k2", .begin = "<|tool_calls_section_begin|>", .end = ""},
    [TOOLS_MINIMAX_M2] = {.name = "minimax_m2", .begin = "<minimax:tool_call>", .end = ""},
    [TOOLS_DOTS] = {.name = "dots", .begin = "<dots_function_call>", .end = ""},
    [TOOLS_DEEPSEEK_V32] = {.name = "deepseek_v32",
                            .begin = "<｜DSML｜function_calls>",
                            .end = "",
                            .second = "<｜DSML｜tool_calls>"},
    [TOOLS_GRANITE] = {.name = "granite",
                       .begin = "<|tool_call|>",
                       .end = "",
                       .lists = true,
                       .second = tool_call},
    [TOOLS_PHI4_MINI] = {.name = "phi4_mini_json", .begin = "functools", .end = "", .lists = true},
    [TOOLS_NEMOTRON] = {.name = "nemotron_json",
                        .begin = "<TOOLCALL>",
                        .end = "</TOOLCALL>",
                        .lists = true},
    [TOOLS_LFM2] = {.name = "lfm2", .begin = "<|tool_call_start|>", .end = "<|tool_call_end|>"},
    [TOOLS_OLMO3] = {.name = "olmo3", .begin = "<function_calls>", .end = "</function_calls>"},
    [TOOLS_HY_V3] = {.name = "hy_v3",
                     .begin = "<tool_calls:opensource>",
                     .end = "",
                     .second = "<tool_calls>"},
    [TOOLS_LONGCAT] = {.name = "longcat",
                       .begin = "<longcat_tool_call>",
                       .end = "</longcat_tool_call>"},
    [TOOLS_INTERNLM] = {.name = "internlm",
                        .begin = "<|action_start|><|plugin|>",
                        .end = "<|action_end|>"},
    [TOOLS_GRANITE_20B] = {.name = "granite-20b-fc", .begin = "<function_call>", .end = ""},
    [TOOLS_GIGACHAT3] = {.name = "gigachat3",
                         .begin = "<|function_call|>",
                         .end = "<|message_sep|>",
                         .second = "<|message_sep|>\n\nfunction call<|role_sep|>"},
    [TOOLS_COHERE] = {.name = "cohere_command3",
                      .begin = "<|START_ACTION|>",
                      .end = "<|END_ACTION|>",
                      .lists = true,
                      .name_key = "tool_name"},
    [TOOLS_APERTUS] = {.name = "apertus",
                       .begin = "<|tools_prefix|>",
                       .end = "<|tools_suffix|>",
                       .lists = true,
                       .name_key = ""},
    [TOOLS_XLAM] = {.name = "xlam", .begin = "", .end = "", .lists = true, .whole = true},
    [TOOLS_DEEPSEEK_V41] = {.name = "deepseek_v41", .begin = "<｜DSML｜ calls>", .end = ""},
    [TOOLS_STEP3] = {.name = "step3", .begin = "<｜tool_calls_begin｜>", .end = ""},
    [TOOLS_MINICPM5] = {.name = "minicpm5", .begin = "<function name=", .end = ""},
    [TOOLS_KIMI_K3] = {.name = "kimi_k3", .begin = "<|open|>tools<|sep|>", .end = ""},
    [TOOLS_MIMO] = {.name = "mimo", .begin = tool_call, .end = tool_call_end},
    [TOOLS_FUNCTIONGEMMA] = {.name = "functiongemma",
                             .begin = "<start_function_call>",
                             .end = "<end_function_call>"},
    [TOOLS_OPENAI] = {.name = "openai", .begin = "", .end = ""},
};

/* Further names of vLLM's. */
static const struct {
    const char *name;
    enum toolstyle style;
} aliases[] = {
    {"llama4_pythonic", TOOLS_PYTHONIC}, /* it has Llama 4's mark */
    {"llama4_json", TOOLS_LLAMA3_JSON},
    {"qwen3_xml", TOOLS_QWEN3_CODER},
    {"glm47", TOOLS_GLM45},
    {"granite4", TOOLS_HERMES},
    {"qwen3_json", TOOLS_HERMES},
    {"ling3", TOOLS_GLM45},
    {"step3p5", TOOLS_QWEN3_CODER},
    {"poolside_v1", TOOLS_GLM45},
    {"deepseek_v4", TOOLS_DEEPSEEK_V32},
    {"cohere_command4", TOOLS_COHERE},
    {"jamba", TOOLS_HUNYUAN},
    {"step5", TOOLS_QWEN3_CODER},
};

enum toolstyle toolstyle_find(const char *name)
{
    for (size_t i = 0; name && i < sizeof(aliases) / sizeof(aliases[0]); i++) {
        if (strcmp(name, aliases[i].name) == 0)
            return aliases[i].style;
    }
    for (int i = TOOLS_HERMES; name && i <= TOOLS_OPENAI; i++) {
        if (strcmp(name, styles[i].name) == 0)
            return (enum toolstyle)i;
    }
    return TOOLS_NONE;
}

const char *toolstyle_name(enum toolstyle style)
{
    return styles[style].name;
}

const char *toolstyle_begin(enum toolstyle style)
{
    return styles[style].begin;
}

const char *toolstyle_second(enum toolstyle style)
{
    return styles[style].second ? styles[style].second : "";
}

const char *toolstyle_end(enum toolstyle style)
{
    return styles[style].end;
}

bool toolstyle_lists(enum toolstyle style)
{
    return styles[style].lists;
}

bool toolstyle_whole(enum toolstyle style)
{
    return styles[style].whole;
}

bool tool_full(const struct toolcalls *t)
{
    return t->count == TOOLCALL_MOST;
}

int tool_begin(struct toolcalls *t, const char *name, size_t len)
{
    if (t->count == t->cap) {
        uint32_t cap = t->cap ? t->cap * 2 : 2;
        struct toolcall *more = realloc(t->call, cap * sizeof(*more));
        if (!more)
            return -ENOMEM;
        t->call = more;
        t->cap = cap;
    }
    struct toolcall c = {.name = strndup(name, len)};
    if (!c.name)
        return -ENOMEM;
    t->call[t->count++] = c;
    t->open = true;
    return 0;
}

int tool_named(struct toolcalls *t, const char *id, size_t len)
{
    struct toolcall *last = &t->call[t->count - 1];
    for (const struct toolcall *c = t->call; c < last; c++)
        if (c->id && strlen(c->id) == len && memcmp(c->id, id, len) == 0)
            return 0;
    last->id = strndup(id, len);
    return last->id ? 0 : -ENOMEM;
}

int tool_args(struct toolcalls *t, const char *bytes, size_t len)
{
    return ek_buf_add(&t->call[t->count - 1].args, bytes, len);
}

void tool_drop(struct toolcalls *t, size_t n)
{
    ek_buf_drop(&t->held, n);
    t->looked = 0;
    t->runs = 0;
}

int tool_word(const struct toolcalls *t, size_t at, const char *word)
{
    size_t have = t->held.len - at, n = strlen(word);
    size_t both = have < n ? have : n;
    if (both && memcmp(t->held.data + at, word, both) != 0)
        return -1;
    return have >= n;
}

static void pass_on(struct toolcalls *t, size_t n, struct ek_buf *text)
{
    if (n == 0)
        return;
    (void)ek_buf_add(text, t->held.data, n);
    tool_drop(t, n);
    t->midst = true;
}

int tool_text(struct toolcalls *t, struct ek_buf *text, enum toolstate then)
{
    size_t n = t->looked ? t->looked : 1;
    pass_on(t, n < t->held.len ? n : t->held.len, text);
    t->state = then;
    t->listed = t->listing = false;
    return TOOL_MORE;
}

size_t tool_blanks(struct toolcalls *t, size_t at)
{
    uint32_t k = 0;
    size_t to = at;
    for (; k < TOOLCALL_RUNS && k < t->runs; k++) {
        if (t->run[k].from == at) {
            to = t->run[k].to;
            break;
        }
    }
    while (to < t->held.len && tool_blank(t->held.data[to]))
        to++;
    if (k < TOOLCALL_RUNS && to > at) { /* an empty one costs nothing */
        t->run[k].from = at;
        t->run[k].to = to;
        t->runs += k == t->runs;
    }
    return to;
}

size_t tool_behind_mark(struct toolcalls *t)
{
    const size_t at = tool_blanks(t, 0);
    const char *mark = t->second ? toolstyle_second(t->style) : toolstyle_begin(t->style);

    return t->listed ? at : tool_blanks(t, at + strlen(mark));
}

void tool_begin_head(struct toolcalls *t)
{
    t->state = TOOL_HEAD;
    t->scanning = t->listing = false;
    t->scan = (struct toolscan){.name_key = styles[t->style].name_key};
}

int tool_section_tail(struct toolcalls *t, const char *const *ends, size_t count, const char *begin)
{
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        size_t next = tool_blanks(t, at);
        int there = next < t->held.len ? tool_word(t, next, ends[i]) : 0;
        if (there == 0)
            return TOOL_WAIT;
        if (there > 0)
            at = next + strlen(ends[i]);
        t->listed = t->listed && !(there > 0 && i + 1 == count);
    }
    size_t next = tool_blanks(t, at);
    int more = !t->listed ? -1 : next < t->held.len ? tool_word(t, next, begin) : 0;
    if (more == 0)
        return TOOL_WAIT;
    tool_drop(t, more > 0 ? next : at);
    t->listed = more > 0;
    if (more > 0)
        tool_begin_head(t);
    else
        t->state = TOOL_OUTSIDE;
    return TOOL_MORE;
}

/* ---- outside of calls ---- */

/* How many bytes are text for certain; *ret_mark: a marker follows them. */
static size_t toolcall_plain(struct toolcalls *t, const char *mark, bool *ret_mark)
{
    /* Blanks ahead of a call are dropped, and no mark begins with one. */
    size_t blanks = t->midst ? 0 : tool_blanks(t, 0);
    const char *p = t->held.data;
    size_t len = t->held.len, n = strlen(mark);
    const char *at = memmem(p + blanks, len - blanks, mark, n);
    *ret_mark = at != NULL;
    if (at) {
        len = (size_t)(at - p);
    } else {
        size_t k = len - blanks < n ? len - blanks : n - 1;
        while (k > 0 && memcmp(p + len - k, mark, k) != 0)
            k--;
        len -= k;
    }
    return blanks == len ? 0 : len;
}

/* Styles whose calls have a marker. Qwen3-Coder often leaves its first one out, and so may a model
 * that was taught the same; Granite 3.0 and 3.1 have different ones. */
static int look_for_mark(struct toolcalls *t, struct ek_buf *text)
{
    const char *mark = styles[t->style].begin;
    bool found = false, other = false;
    size_t n = t->held.len ? toolcall_plain(t, mark, &found) : 0;
    bool bare =
        t->style == TOOLS_QWEN3_CODER || t->style == TOOLS_SEED_OSS || t->style == TOOLS_MIMO;
    const char *second = bare && !t->marked ? tool_qwen_mark : toolstyle_second(t->style);
    if (*second && t->held.len) {
        size_t m = toolcall_plain(t, second, &other);
        if (other && (!found || m < n))
            mark = second;
        n = found && !other ? n : other && !found ? m : m < n ? m : n;
        found = found || other;
    }
    pass_on(t, n, text);
    if (!found)
        return TOOL_WAIT;
    t->looked = tool_blanks(t, 0) + strlen(mark);
    t->second = mark == second;
    tool_begin_head(t);
    return TOOL_MORE;
}

/* Styles where the whole answer is calls. */
static int look_at_begin(struct toolcalls *t, struct ek_buf *text)
{
    size_t at = tool_blanks(t, 0);
    const char *mark = styles[t->style].begin;
    int word = tool_word(t, at, mark);
    if (at == t->held.len || word == 0)
        return TOOL_WAIT;
    if (word > 0)
        at = tool_blanks(t, at + strlen(mark));
    if (at == t->held.len)
        return TOOL_WAIT;
    if (t->held.data[at] != (t->style == TOOLS_LLAMA3_JSON ? '{' : '[')) {
        t->looked = at;
        return tool_text(t, text, TOOL_PLAIN);
    }
    t->looked = at;
    tool_begin_head(t);
    return TOOL_MORE;
}

/* Compares the beginning of the answer with that of a call of one tool, as the grammar writes it,
 * in a style without marks. As tool_word(), or -ENOMEM. */
static int begins_call(const struct toolcalls *t, const json_t *tool)
{
    const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
    struct ek_buf head = {0};
    bool python = t->style == TOOLS_PYTHONIC;
    if (json_string_length(name) >= TOOLCALL_NAME_LEN)
        return -1; /* nothing that is called so becomes a call */
    const bool list = t->style == TOOLS_XLAM;
    (void)ek_buf_puts(&head, python ? "[" : list ? "[{\"name\": \"" : "{\"name\": \"");
    if (python)
        (void)ek_buf_puts(&head, json_string_value(name));
    else
        (void)ek_buf_json(&head, json_string_value(name), json_string_length(name));
    (void)ek_buf_puts(&head, python ? "(" : list ? "\", \"arguments\": " : "\", \"parameters\": ");
    int r = ek_buf_ok(&head) ? tool_word(t, 0, head.data) : -ENOMEM;
    ek_buf_done(&head);
    return r;
}

/* Whether the answer is calls or the form, which is known from its first bytes: what belongs to
 * the form is passed on as it comes, whatever it holds. */
static int look_at_either(struct toolcalls *t, struct ek_buf *text)
{
    bool row = styles[t->style].whole;
    int best = *styles[t->style].begin ? tool_word(t, 0, styles[t->style].begin) : -1;
    int second = *toolstyle_second(t->style) ? tool_word(t, 0, toolstyle_second(t->style)) : -1;
    best = second > best ? second : best;
    for (size_t i = 0; row && best <= 0 && i < json_array_size(t->tools); i++) {
        int one = begins_call(t, json_array_get(t->tools, i));
        if (one == -ENOMEM)
            return one;
        best = one > best ? one : best;
    }
    if (best == 0)
        return TOOL_WAIT;
    if (best > 0)
        return row ? look_at_begin(t, text) : look_for_mark(t, text);
    t->state = TOOL_PLAIN;
    return TOOL_MORE;
}

/* ---- the steps ---- */

static int step_head(struct toolcalls *t, struct ek_buf *text)
{
    switch (t->style) {
    case TOOLS_NONE:
    case TOOLS_OPENAI: return TOOL_WAIT;
    case TOOLS_QWEN3_CODER:
    case TOOLS_SEED_OSS:
    case TOOLS_MIMO: return tool_qwen_head(t, text);
    case TOOLS_GLM45: return tool_glm_head(t, text);
    case TOOLS_FUNCTIONGEMMA:
    case TOOLS_GEMMA4: return tool_gemma_head(t, text);
    case TOOLS_PYTHONIC: return tool_python_list(t, text);
    case TOOLS_LFM2: return tool_lfm_head(t, text);
    case TOOLS_OLMO3: return tool_olmo_head(t, text);
    case TOOLS_KIMI_K2: return tool_kimi_head(t, text);
    case TOOLS_MINIMAX_M2:
    case TOOLS_DOTS:
    case TOOLS_DEEPSEEK_V32:
    case TOOLS_DEEPSEEK_V41:
    case TOOLS_STEP3:
    case TOOLS_MINICPM5:
    case TOOLS_KIMI_K3: return tool_invoke_head(t, text);
    case TOOLS_HY_V3: return tool_hy_head(t, text);
    case TOOLS_DEEPSEEK_V3:
    case TOOLS_DEEPSEEK_V31: return tool_deepseek_head(t, text);
    case TOOLS_HERMES:
    case TOOLS_ERNIE45:
    case TOOLS_HUNYUAN:
    case TOOLS_GRANITE:
    case TOOLS_PHI4_MINI:
    case TOOLS_NEMOTRON:
    case TOOLS_LLAMA3_JSON:
    case TOOLS_LONGCAT:
    case TOOLS_INTERNLM:
    case TOOLS_GRANITE_20B:
    case TOOLS_GIGACHAT3:
    case TOOLS_COHERE:
    case TOOLS_APERTUS:
    case TOOLS_XLAM:
    case TOOLS_MISTRAL: break;
    }
    return tool_json_head(t, text);
}

static int step_params(struct toolcalls *t, bool over)
{
    bool gemma = t->style == TOOLS_GEMMA4 || t->style == TOOLS_FUNCTIONGEMMA;
    return gemma ? tool_gemma_params(t, over) : tool_qwen_params(t, over);
}

/* Behind an object of a list, at `at`: TOOL_MORE, or 0 when the list is over. */
static int step_list(struct toolcalls *t, size_t at)
{
    char c = t->held.data[at];
    t->listed = c == ',';
    t->looked = 0;
    if (c == ',' || c == ']')
        tool_drop(t, at + 1);
    if (c == ',')
        tool_begin_head(t);
    return c == ',' || t->held.len == 0 ? TOOL_MORE : 0;
}

/* Behind a call: its end marker, or what leads to the next one. */
static int step_tail(struct toolcalls *t, struct ek_buf *text)
{
    size_t at = tool_blanks(t, 0);
    const char *end = styles[t->style].end;
    t->midst = false;
    if (at == t->held.len)
        return TOOL_WAIT;
    char c = t->held.data[at];
    if (t->style == TOOLS_DEEPSEEK_V3 || t->style == TOOLS_DEEPSEEK_V31)
        return tool_deepseek_tail(t);
    if (t->style == TOOLS_KIMI_K2)
        return tool_kimi_tail(t);
    if (toolstyle_invokes(t->style))
        return tool_invoke_tail(t);
    if (t->style == TOOLS_HY_V3)
        return tool_hy_tail(t);
    if (t->listed && styles[t->style].lists) {
        if (step_list(t, at) == TOOL_MORE)
            return TOOL_MORE; /* held is empty, or the next object is looked for */
        at = tool_blanks(t, 0);
    } else if (t->style == TOOLS_LLAMA3_JSON) {
        if (c != ';' && c != ',')
            return tool_text(t, text, TOOL_PLAIN);
        tool_drop(t, at + 1);
    }
    int word = *end ? at < t->held.len ? tool_word(t, at, end) : 0 : -1;
    if (word == 0)
        return TOOL_WAIT;
    if (word > 0)
        tool_drop(t, at + strlen(end));
    t->state = TOOL_OUTSIDE;
    return TOOL_MORE;
}

static int toolcall_step(struct toolcalls *t, struct ek_buf *text)
{
    switch (t->state) {
    case TOOL_OUTSIDE:
        if (t->either && t->count == 0)
            return look_at_either(t, text);
        return styles[t->style].whole ? look_at_begin(t, text) : look_for_mark(t, text);
    case TOOL_PLAIN: pass_on(t, t->held.len, text); return TOOL_WAIT;
    case TOOL_HEAD: return step_head(t, text);
    case TOOL_ARGS: return tool_json_args(t);
    case TOOL_REST: return tool_json_rest(t);
    case TOOL_PARAMS: return step_params(t, false);
    case TOOL_TAIL: return step_tail(t, text);
    }
    return TOOL_WAIT;
}

int toolcalls_push(struct toolcalls *t, const char *bytes, size_t len, struct ek_buf *text)
{
    int more = TOOL_MORE;
    (void)ek_buf_add(&t->held, bytes, len);
    if (!ek_buf_ok(&t->held))
        return -ENOMEM;
    while (more > 0 && t->held.len > 0)
        more = toolcall_step(t, text);
    return more < 0 ? more : ek_buf_ok(text) ? 0 : -ENOMEM;
}

int toolcalls_end(struct toolcalls *t, struct ek_buf *text)
{
    int r = t->state == TOOL_PARAMS ? step_params(t, true) : 0;
    bool inside = t->state == TOOL_ARGS || t->state == TOOL_REST || t->state == TOOL_PARAMS;
    if (r < 0)
        return r;
    if (t->style == TOOLS_OLMO3 && t->state == TOOL_HEAD && t->listed && !t->scanning)
        inside = true; /* of the mark that ends them */
    size_t blanks = tool_blanks(t, 0);
    if (inside || (t->state == TOOL_TAIL && t->held.len > 0 && blanks < t->held.len))
        ek_buf_clear(&t->held); /* of a call that was cut off, or its end marker */
    else if (t->midst || t->count == 0 || blanks < t->held.len)
        pass_on(t, t->held.len, text);
    ek_buf_clear(&t->held);
    t->open = false;
    return ek_buf_ok(text) ? 0 : -ENOMEM;
}

void toolcalls_done(struct toolcalls *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        free(t->call[i].name);
        free(t->call[i].id);
        ek_buf_done(&t->call[i].args);
    }
    free(t->call);
    ek_buf_done(&t->held);
    *t = (struct toolcalls){0};
}
