/* Takes the thinking out of an answer (reasoning.h). Called by choice.c with each piece of text. */
#include "server/text/answer/reasoning.h"

#include <errno.h>
#include <string.h>

#define MARKS_MOST 4

/* Marks that a style lacks are NULL. */
static const struct think_form {
    const char *open, *close, *open_too, *close_too;
    const char *label;            /* behind `open`; alone at the beginning it opens, too */
    const char *call;             /* ends the thinking and stays */
    const char *text[MARKS_MOST]; /* outside of it these are dropped, with the blanks around */
    bool always, again; /* again: it may open later, too, and a stray `close` is dropped */
} forms[] = {
    [THINK_NONE] = {0},
    [THINK_TAGS] = {.open = "<think>", .close = "</think>"},
    [THINK_ALWAYS] = {.open = "<think>", .close = "</think>", .always = true},
    [THINK_QWEN3] = {.open = "<think>", .close = "</think>", .call = "<tool_call>"},
    [THINK_SEED_OSS] = {.open = "<seed:think>",
                        .close = "</seed:think>",
                        .call = "<seed:tool_call>"},
    [THINK_ERNIE45] = {.open = "<think>",
                       .close = "</think>",
                       .text = {"<response>", "</response>"},
                       .always = true},
    [THINK_HUNYUAN] = {.open = "<think>", .close = "</think>", .text = {"<answer>", "</answer>"}},
    [THINK_GEMMA4] = {.open = "<|channel>",
                      .close = "<channel|>",
                      .label = "thought\n",
                      .call = "<|tool_call>",
                      .again = true},
    [THINK_MISTRAL] = {.open = "[THINK]", .close = "[/THINK]", .call = "[TOOL_CALLS]"},
    [THINK_GRANITE] = {.open = "Here is my thought process:",
                       .open_too = "Here's my thought process:",
                       .close = "Here is my response:",
                       .close_too = "Here's my response:"},
    [THINK_KIMI_K2] = {.open = "<think>",
                       .close = "</think>",
                       .call = "<|tool_calls_section_begin|>",
                       .always = true},
    [THINK_MINIMAX_M2] = {.open = "<think>",
                          .close = "</think>",
                          .call = "<minimax:tool_call>",
                          .always = true},
    [THINK_HY_V3] = {.open = "<think:opensource>",
                     .close = "</think:opensource>",
                     .open_too = "<think>",
                     .close_too = "</think>",
                     .call = "<tool_calls"},
    [THINK_COHERE] = {.open = "<|START_THINKING|>",
                      .close = "<|END_THINKING|>",
                      .call = "<|START_ACTION|>",
                      .text = {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>",
                               "<|END_TEXT|>"}},
    [THINK_KIMI_K3] = {.open = "<|open|>think<|sep|>",
                       .close = "<|close|>think<|sep|>",
                       .call = "<|open|>tools<|sep|>",
                       .text = {"<|open|>response<|sep|>", "<|close|>response<|sep|>",
                                "<|close|>message<|sep|>"}},
    [THINK_MINIMAX_M3] = {.open = "<mm:think>",
                          .close = "</mm:think>",
                          .call = "]<]minimax[>[<tool_call>"},
    [THINK_HARMONY] = {0},
};

static const struct {
    const char *name;
    enum thinkstyle style;
} names[] = {
    {"deepseek_r1", THINK_ALWAYS},
    {"deepseek_v3", THINK_TAGS},
    {"qwen3", THINK_QWEN3},
    {"glm45", THINK_QWEN3},
    {"glm47", THINK_QWEN3},
    {"seed_oss", THINK_SEED_OSS},
    {"ernie45", THINK_ERNIE45},
    {"hunyuan_a13b", THINK_HUNYUAN},
    {"gemma4", THINK_GEMMA4},
    {"openai_gptoss", THINK_HARMONY},
    {"mistral", THINK_MISTRAL},
    {"granite", THINK_GRANITE},
    {"kimi_k2", THINK_KIMI_K2},
    {"olmo3", THINK_ALWAYS},
    {"nemotron_v3", THINK_QWEN3},
    {"minimax_m2", THINK_MINIMAX_M2},
    {"hy_v3", THINK_HY_V3},
    {"deepseek_v4", THINK_TAGS},
    {"ling3", THINK_QWEN3},
    {"mimo", THINK_QWEN3},
    {"poolside_v1", THINK_QWEN3},
    {"step3p5", THINK_QWEN3},
    {"step3", THINK_ALWAYS},
    {"step5", THINK_ALWAYS},
    {"holo2", THINK_ALWAYS},
    {"granite_thinking_parser", THINK_QWEN3},
    {"minicpmv", THINK_QWEN3},
    {"deepseek_v41", THINK_TAGS},
    {"cohere_command3", THINK_COHERE},
    {"cohere_command4", THINK_COHERE},
    {"kimi_k3", THINK_KIMI_K3},
    {"minimax_m3", THINK_MINIMAX_M3},
};

enum thinkstyle thinkstyle_find(const char *name)
{
    for (size_t i = 0; name && i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i].name) == 0)
            return names[i].style;
    }
    return THINK_NONE;
}

bool reasoning_has_marks(enum thinkstyle style)
{
    return forms[style].close != NULL;
}

struct reasoning_marks reasoning_marks(const struct reasoning *r)
{
    const struct think_form *f = &forms[r->style];
    return (struct reasoning_marks){r->second ? f->open_too : f->open,
                                    r->second ? f->close_too : f->close, f->call, f->again};
}

bool reasoning_is_open(const struct reasoning *r)
{
    return r->inside || r->always;
}

bool thinkstyle_special(enum thinkstyle style)
{
    return style == THINK_SEED_OSS || style == THINK_GEMMA4 || style == THINK_MISTRAL ||
           style == THINK_KIMI_K2 || style == THINK_COHERE || style == THINK_KIMI_K3 ||
           style == THINK_MINIMAX_M3 || style == THINK_MINIMAX_M2 || style == THINK_HY_V3;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool ends_in(const char *p, size_t len, const char *mark)
{
    size_t n = mark ? strlen(mark) : 0;
    return mark && len >= n && memcmp(p + len - n, mark, n) == 0;
}

/* Whether text outside of thinking is looked through. */
static bool has_text_marks(const struct think_form *f)
{
    return f->again || f->text[0];
}

void reasoning_begin(struct reasoning *r, enum thinkstyle style, const char *prompt, size_t len)
{
    const struct think_form *f = &forms[style];
    while (len > 0 && is_blank(prompt[len - 1]))
        len--;
    bool closed = ends_in(prompt, len, f->close) || ends_in(prompt, len, f->close_too);
    bool labelled = false;
    for (size_t n = f->label ? strlen(f->label) - 1 : 0; n > 0 && len >= n && !labelled; n = 0) {
        labelled = memcmp(prompt + len - n, f->label, n) == 0;
        len -= labelled ? n : 0;
    }
    bool opened = ends_in(prompt, len, f->open) || ends_in(prompt, len, f->open_too);
    *r = (struct reasoning){.style = closed && !has_text_marks(f) ? THINK_NONE : style,
                            .always = f->always && !closed};
    r->inside = opened;
    r->second = ends_in(prompt, len, f->open_too);
    r->begun = opened || closed;
    r->label = opened && f->label && !labelled;
}

void reasoning_opened_only(struct reasoning *r)
{
    r->always = false;
}

/* How many blanks the held bytes begin with. There may be very many, which come one by one: each is
 * looked at once. */
static size_t blanks_held(struct reasoning *r)
{
    while (r->blanks < r->held.len && is_blank(r->held.data[r->blanks]))
        r->blanks++;
    return r->blanks;
}

static void drop_held(struct reasoning *r, size_t n)
{
    ek_buf_drop(&r->held, n);
    r->blanks = 0;
}

/* 1 = the held bytes at `at` begin with the mark, 0 = they may yet, -1. */
static int reasoning_begins(const struct reasoning *r, size_t at, const char *mark)
{
    size_t have = r->held.len - at, n = mark ? strlen(mark) : 0, both = have < n ? have : n;
    if (!mark || (both > 0 && memcmp(r->held.data + at, mark, both) != 0))
        return -1;
    return have >= n;
}

/* The answer's beginning: is it thinking? True when that is known. */
static bool find_begin(struct reasoning *r)
{
    const struct think_form *f = &forms[r->style];
    size_t at = blanks_held(r);
    int open = reasoning_begins(r, at, f->open), label = reasoning_begins(r, at, f->label);
    const int too = reasoning_begins(r, at, f->open_too);
    if (open == 0 || (open < 0 && (label == 0 || too == 0)))
        return false;
    if (open > 0 || too > 0)
        drop_held(r, at + strlen(open > 0 ? f->open : f->open_too));
    r->second = open <= 0 && too > 0;
    open = open > too ? open : too;
    r->inside = open > 0 || label > 0 || r->always;
    r->label = f->label && r->inside;
    r->after = open > 0; /* blanks behind the mark */
    r->begun = true;
    return true;
}

/* Where the first of the marks begins in p, *ret_mark = its number. Or, with count for a number,
 * where at the end of p something begins that may become one. */
static size_t find_marks(const char *p, size_t len, const char *const *mark, size_t count,
                         size_t *ret_mark)
{
    size_t first = len, keep = 0;
    *ret_mark = count;
    for (size_t i = 0; i < count; i++) {
        size_t n = mark[i] ? strlen(mark[i]) : 0;
        const char *at = n ? memmem(p, len, mark[i], n) : NULL;
        if (at && (size_t)(at - p) < first) {
            first = (size_t)(at - p);
            *ret_mark = i;
        }
        for (size_t k = len < n ? len : n - (n > 0); k > keep; k--) {
            if (memcmp(p + len - k, mark[i], k) == 0)
                keep = k;
        }
    }
    return *ret_mark < count ? first : len - keep;
}

/* Thinking up to its mark, or what cannot be a part of one. */
static int take_thought(struct reasoning *r, struct ek_buf *thought)
{
    const struct think_form *f = &forms[r->style];
    const char *const ends[] = {f->close, f->close_too, f->call};
    int label = r->label ? reasoning_begins(r, 0, f->label) : -1;
    size_t mark, skip;
    if (label == 0)
        return 0;
    r->label = false;
    if (label > 0)
        drop_held(r, strlen(f->label));
    size_t blanks = blanks_held(r);
    const char *p = r->held.data;
    size_t len = blanks + find_marks(p + blanks, r->held.len - blanks, ends, 3, &mark);
    /* Blanks before the mark belong to neither part; what is held may be nothing else. */
    size_t said = len > blanks ? len : 0;
    while (said > 0 && is_blank(p[said - 1]))
        said--;
    int code = ek_buf_add(thought, p, said);
    skip = mark < 2 ? strlen(ends[mark]) : 0;
    if (mark < 3 || said > 0)
        drop_held(r, mark < 3 ? len + skip : said);
    if (mark < 3) {
        r->inside = false;
        r->after = mark < 2;
    }
    return code;
}

/* Text up to a mark, or what cannot be a part of one. True: there is more to look at. */
static bool take_text(struct reasoning *r, struct ek_buf *text)
{
    const struct think_form *f = &forms[r->style];
    const char *const marks[MARKS_MOST] = {
        f->again ? f->open : f->text[0], f->again ? f->close : f->text[1], f->text[2], f->text[3]};
    size_t mark = MARKS_MOST, blanks = f->text[0] ? blanks_held(r) : 0;
    const char *p = r->held.data;
    size_t len = r->held.len;
    if (has_text_marks(f))
        len = blanks + find_marks(p + blanks, len - blanks, marks, MARKS_MOST, &mark);
    size_t said = f->text[0] && len == blanks ? 0 : len;
    while (f->text[0] && said > 0 && is_blank(p[said - 1]))
        said--;
    (void)ek_buf_add(text, p, said);
    const bool found = mark < MARKS_MOST;
    if (found || said > 0)
        drop_held(r, found ? len + strlen(marks[mark]) : said);
    if (!found)
        return false;
    r->inside = f->again && mark == 0;
    r->label = r->inside && f->label;
    r->after = r->inside || f->text[0];
    return true;
}

static void drop_blanks(struct reasoning *r)
{
    drop_held(r, blanks_held(r));
    r->after = r->after && r->held.len == 0;
}

int reasoning_push(struct reasoning *r, const char *bytes, size_t len, struct ek_buf *thought,
                   struct ek_buf *text)
{
    int code = ek_buf_add(&r->held, bytes, len);
    if (code == 0 && r->style != THINK_NONE && !r->begun && !find_begin(r))
        return 0;
    bool more = true;
    while (code == 0 && more) {
        bool was_inside = r->inside;
        if (r->after)
            drop_blanks(r);
        more = false;
        if (r->held.len && was_inside) {
            code = take_thought(r, thought);
            more = !r->inside;
        } else if (r->held.len) {
            more = take_text(r, text);
        }
    }
    return code < 0 ? code : ek_buf_ok(text) ? 0 : -ENOMEM;
}

int reasoning_end(struct reasoning *r, struct ek_buf *thought, struct ek_buf *text)
{
    bool thinks = r->inside || (r->always && !r->begun);
    size_t len = r->held.len;
    if (r->inside && r->label)
        len = 0; /* the beginning of a label */
    while (thinks && len > 0 && is_blank(r->held.data[len - 1]))
        len--;
    int code = len ? ek_buf_add(thinks ? thought : text, r->held.data, len) : 0;
    ek_buf_clear(&r->held);
    return code;
}

void reasoning_done(struct reasoning *r)
{
    ek_buf_done(&r->held);
}
