/*
 * Takes messages of gpt-oss apart (harmony.h). Called by choice.c with each piece of text, and by
 * prompt.c for how an answer begins.
 */
#include "server/text/answer/harmony.h"

#include <errno.h>
#include <string.h>

static const char functions[] = "to=functions.";

const char *harmony_text(enum harmony_mark mark)
{
    static const char *const texts[HARMONY_MARKS] = {[HARMONY_START] = "<|start|>",
                                                     [HARMONY_CHANNEL] = "<|channel|>",
                                                     [HARMONY_CONSTRAIN] = "<|constrain|>",
                                                     [HARMONY_MESSAGE] = "<|message|>",
                                                     [HARMONY_END] = "<|end|>",
                                                     [HARMONY_RETURN] = "<|return|>",
                                                     [HARMONY_CALL] = "<|call|>"};
    return texts[mark];
}

void harmony_begin(struct harmony *h, bool offered)
{
    *h = (struct harmony){.on = true, .offered = offered, .place = HARMONY_TEXT};
}

void harmony_open(struct harmony *h)
{
    h->bare = h->place == HARMONY_ROLE;
    h->given = h->role_len;
    h->thought = h->said = false;
    h->fresh = false;
}

/* ---- heads ---- */

static void add_head(char *part, uint32_t *len, const char *bytes, size_t n)
{
    size_t room = HARMONY_HEAD - *len, take = n < room ? n : room;
    memcpy(part + *len, bytes, take);
    *len += (uint32_t)take;
}

/* The word that begins with `with`, or the first one: its length, 0 = there is none. */
static size_t find_word(const char *s, size_t len, const char *with, const char **ret_word)
{
    size_t n = strlen(with), at = 0;
    while (at < len) {
        while (at < len && tool_blank(s[at]))
            at++;
        size_t from = at;
        while (at < len && !tool_blank(s[at]))
            at++;
        if (at > from && at - from >= n && memcmp(s + from, with, n) == 0) {
            *ret_word = s + from;
            return at - from;
        }
    }
    return 0;
}

static bool is_word(const char *word, size_t len, const char *want)
{
    return len == strlen(want) && memcmp(word, want, len) == 0;
}

/* The head is whole: whose is the body? */
static int open_body(struct harmony *h, struct harmony_out *out)
{
    const char *to = NULL, *channel = NULL;
    size_t to_len = find_word(h->role, h->role_len, "to=", &to);
    if (to_len == 0)
        to_len = find_word(h->to, h->to_len, "to=", &to);
    size_t channel_len = find_word(h->to, h->to_len, "", &channel), n = strlen(functions);
    bool call = to_len > n && memcmp(to, functions, n) == 0 && h->offered &&
                to_len - n < TOOLCALL_NAME_LEN && !memchr(to, '\0', to_len) &&
                !tool_full(out->calls);

    h->fresh = true;
    h->bare = false;
    if (call) {
        h->place = HARMONY_ARGS;
        return tool_begin(out->calls, to + n, to_len - n);
    }
    bool thought = to_len > 0 || is_word(channel, channel_len, "analysis");
    h->place = thought ? HARMONY_THOUGHT : HARMONY_TEXT;
    return 0;
}

static void open_head(struct harmony *h, enum harmony_place place)
{
    h->place = place;
    h->bare = false;
    if (place == HARMONY_ROLE)
        h->role_len = h->given = 0;
    if (place != HARMONY_FORM)
        h->to_len = 0;
}

/* ---- bodies ---- */

/* Blanks at the end of arguments wait for what follows. */
static int add_args(struct toolcalls *t, const char *bytes, size_t len)
{
    struct ek_buf *held = &t->held;
    size_t from = 0, to = len;
    bool none = t->call[t->count - 1].args.len == 0;
    while (none && from < len && tool_blank(bytes[from]))
        from++;
    while (to > from && tool_blank(bytes[to - 1]))
        to--;
    int r = 0;
    if (to > from) {
        if (held->len)
            r = tool_args(t, held->data, held->len);
        ek_buf_clear(held);
        if (r == 0)
            r = tool_args(t, bytes + from, to - from);
    }
    return r == 0 && to < len ? ek_buf_add(held, bytes + to, len - to) : r;
}

static int close_args(struct toolcalls *t)
{
    ek_buf_clear(&t->held);
    t->open = false;
    return t->call[t->count - 1].args.len ? 0 : tool_args(t, "{}", 2);
}

static int add_body(struct ek_buf *to, bool *some, bool *fresh, const char *bytes, size_t len)
{
    int r = *fresh && *some ? ek_buf_add(to, "\n", 1) : 0;
    *fresh = false;
    *some = true;
    return r == 0 ? ek_buf_add(to, bytes, len) : r;
}

static int close_body(struct harmony *h, struct harmony_out *out)
{
    int r = h->place == HARMONY_ARGS ? close_args(out->calls) : 0;
    open_head(h, HARMONY_ROLE);
    return r;
}

/* What was taken for a head is the answer's text. */
static int give_up_head(struct harmony *h, struct harmony_out *out)
{
    uint32_t len = h->role_len - h->given;
    h->place = HARMONY_TEXT;
    h->bare = h->fresh = false;
    h->role_len = h->given;
    h->said = h->said || len > 0;
    return len ? ek_buf_add(out->text, h->role + h->given, len) : 0;
}

/* What comes first: 1 = a head with a recipient, which is all that may come there, 0 = it may
 * still become one, -1 = no head. */
static int bare_head(const struct harmony *h)
{
    size_t at = h->given, n = strlen("to=");
    while (at < h->role_len && tool_blank(h->role[at]))
        at++;
    size_t have = h->role_len - at;
    if (h->role_len == HARMONY_HEAD || memcmp(h->role + at, "to=", have < n ? have : n) != 0)
        return -1;
    return have >= n;
}

/* Of the text where a head may begin, byte by byte, so that cuts do not matter: bytes taken. */
static size_t add_role(struct harmony *h, const char *bytes, size_t len)
{
    size_t n = 0;
    while (n < len && bare_head(h) >= 0)
        add_head(h->role, &h->role_len, bytes + n++, 1);
    return n;
}

int harmony_push(struct harmony *h, const char *bytes, size_t len, struct harmony_out *out)
{
    int r = 0;
    if (len == 0)
        return 0;
    if (h->place == HARMONY_ROLE && h->bare) {
        size_t n = add_role(h, bytes, len);
        if (bare_head(h) >= 0)
            return 0;
        r = give_up_head(h, out);
        return r < 0 ? r : harmony_push(h, bytes + n, len - n, out);
    }
    switch (h->place) {
    case HARMONY_ROLE: add_head(h->role, &h->role_len, bytes, len); break;
    case HARMONY_TO: add_head(h->to, &h->to_len, bytes, len); break;
    case HARMONY_FORM: break;
    case HARMONY_THOUGHT: r = add_body(out->thought, &h->thought, &h->fresh, bytes, len); break;
    case HARMONY_TEXT: r = add_body(out->text, &h->said, &h->fresh, bytes, len); break;
    case HARMONY_ARGS: r = add_args(out->calls, bytes, len); break;
    }
    return r;
}

int harmony_mark(struct harmony *h, enum harmony_mark mark, struct harmony_out *out)
{
    bool head = h->place < HARMONY_THOUGHT;
    int r = 0;
    switch (mark) {
    case HARMONY_START:
    case HARMONY_END:
    case HARMONY_RETURN:
    case HARMONY_CALL: return close_body(h, out);
    case HARMONY_CHANNEL:
        if (!head)
            r = close_body(h, out); /* its beginning is missing */
        open_head(h, HARMONY_TO);
        return r;
    case HARMONY_CONSTRAIN:
        if (head)
            open_head(h, HARMONY_FORM);
        return 0;
    case HARMONY_MESSAGE: return head ? open_body(h, out) : 0;
    case HARMONY_MARKS: break;
    }
    return 0;
}

int harmony_end(struct harmony *h, struct harmony_out *out)
{
    if (h->place == HARMONY_ARGS)
        return close_args(out->calls);
    if (h->place == HARMONY_ROLE && h->bare && bare_head(h) <= 0)
        return give_up_head(h, out);
    return 0;
}
