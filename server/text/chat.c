/*
 * Finds a model's chat template and its token variables, and renders with the guard of chat.h.
 *
 * The guard: a string of the data in which the content of a special token begins gets a
 * noncharacter behind the first character of that place, so that the tokenizer cannot take it for
 * the token; the tokenizer removes it again. The same is done to a beginning at the very end of a
 * string, because the template may put another string of the data behind it. The noncharacter is
 * one that the data does not contain. Text that only the template's own editing of the data would
 * make into a special token (by cutting something out of its middle) is not seen here.
 */
#include "server/text/chat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/arena.h"
#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/json.h"
#include "server/text/jinja/jinja.h"
#include "server/text/jinja/str.h"
#include "server/text/textfile.h"
#include "server/text/tokenizer.h"

enum {
    GUARD_FIRST = 0xfdd0,
    GUARD_COUNT = 32,
    DATA_DEPTH_MAX = 128,
    FILE_BYTES_MAX = 64 << 20, /* tokenizer_config.json lists all added tokens in some models */
};

struct chat {
    struct jinja *plain;
    struct jinja *with_tools; /* NULL: the plain one serves tools too */
    json_t *constants;        /* object: bos_token, eos_token, ... and the defaults of all calls */
    char *source;             /* of the plain one */
    char *tools_source;       /* of the other; NULL: there is none */
    bool developer;           /* a template names that role */
    bool thinking;            /* and that member of a message */
};

const char *chat_source(const struct chat *c)
{
    return c->source;
}

bool chat_shows(const struct chat *c, const char *bytes)
{
    return strstr(c->source, bytes) || (c->tools_source && strstr(c->tools_source, bytes));
}

bool chat_knows_developer(const struct chat *c)
{
    return c->developer;
}

bool chat_shows_thinking(const struct chat *c)
{
    return c->thinking;
}

void chat_free(struct chat *c)
{
    if (!c)
        return;
    jinja_free(c->plain);
    jinja_free(c->with_tools);
    json_decref(c->constants);
    free(c->source);
    free(c->tools_source);
    free(c);
}

static int join_path(const char *dir, const char *name, char **ret_path)
{
    return asprintf(ret_path, "%s/%s", dir, name) < 0 ? -ENOMEM : 0;
}

static int parse_template(struct chat *c, const char *bytes, size_t len,
                          struct jinja **ret_template, struct ek_fault *fault)
{
    c->developer = c->developer || memmem(bytes, len, "\"developer\"", 11) ||
                   memmem(bytes, len, "'developer'", 11);
    c->thinking = c->thinking || memmem(bytes, len, "message.thinking", 16);
    char **source = c->source ? &c->tools_source : &c->source; /* the plain one is read first */
    *source = strndup(bytes ? bytes : "", len);
    return *source ? jinja_parse(bytes, len, ret_template, fault) : -ENOMEM;
}

/* A template file of the directory; 0 with *ret_template untouched when there is none. */
static int load_template(struct ek_bundle *b, const char *dir, const char *name, struct chat *c,
                         struct jinja **ret_template, struct ek_fault *fault)
{
    char *path = NULL;
    struct ek_buf text = {0};
    int r = join_path(dir, name, &path);
    if (r == 0)
        r = text_file_read(b, path, "chat_template", FILE_BYTES_MAX, &text, fault);
    if (r == 0)
        r = parse_template(c, text.data, text.len, ret_template, fault);
    ek_buf_done(&text);
    free(path);
    return r == -ENOENT ? 0 : r;
}

/* A JSON object of the directory; 0 and NULL when there is none. The caller releases it. */
static int load_json(struct ek_bundle *b, const char *dir, const char *name, json_t **ret_json,
                     struct ek_fault *fault)
{
    char *path = NULL;
    struct ek_buf text = {0};
    json_t *j = NULL;
    int r = join_path(dir, name, &path);
    if (r == 0)
        r = text_file_read(b, path, name, FILE_BYTES_MAX, &text, fault);
    if (r == 0) {
        json_error_t e;
        j = ek_json_parse(text.data, text.len, 0, &e);
        if (!j && json_error_code(&e) == json_error_out_of_memory)
            r = -ENOMEM;
        else if (!json_is_object(j))
            r = ek_fault_set(fault, "chat_template",
                             "%s is not a JSON object (line %d: %s); download it again", path,
                             j ? 1 : e.line, j ? "another type" : e.text);
    }
    if (r == 0) {
        *ret_json = j;
        j = NULL;
    }
    json_decref(j);
    ek_buf_done(&text);
    free(path);
    return r == -ENOENT ? 0 : r;
}

static int parse_json_template(const json_t *text, struct chat *c, struct jinja **ret_template,
                               struct ek_fault *fault)
{
    return parse_template(c, json_string_value(text), json_string_length(text), ret_template,
                          fault);
}

/* tokenizer_config.json's chat_template: a string, or a list of {"name", "template"}. */
static int templates_of(const json_t *config, struct chat *c, struct ek_fault *fault)
{
    const json_t *t = json_object_get(config, "chat_template"), *plain = NULL, *tools = NULL;
    if (!t || json_is_null(t))
        return 0;
    if (json_is_string(t))
        return parse_json_template(t, c, &c->plain, fault);
    for (size_t i = 0; i < json_array_size(t); i++) {
        const json_t *one = json_array_get(t, i), *text = json_object_get(one, "template");
        const char *name = json_string_value(json_object_get(one, "name"));
        if (!name || !json_is_string(text))
            continue;
        if (strcmp(name, "default") == 0 || (!plain && strcmp(name, "tool_use") != 0))
            plain = text;
        else if (strcmp(name, "tool_use") == 0)
            tools = text;
    }
    if (!plain)
        plain = tools;
    if (!plain)
        return ek_fault_set(fault, "chat_template",
                            "chat_template in tokenizer_config.json is neither a string nor a list "
                            "of named templates: give one with --chat-template.");
    int r = parse_json_template(plain, c, &c->plain, fault);
    if (r == 0 && tools && tools != plain)
        r = parse_json_template(tools, c, &c->with_tools, fault);
    return r;
}

/* The text of a token as the files write it: a string, or an object with "content". */
static json_t *token_text(json_t *t)
{
    return json_is_object(t) ? json_object_get(t, "content") : t;
}

/* bos_token and such from one file; those known already stay. */
static int add_tokens(json_t *constants, const json_t *config)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    int failed = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        json_t *text = token_text(json_object_get(config, names[i]));
        if (json_is_string(text) && !json_object_get(constants, names[i]))
            failed |= json_object_set(constants, names[i], text);
    }
    const json_t *more = json_object_get(config, "additional_special_tokens");
    if (!json_is_array(more) || json_object_get(constants, "additional_special_tokens"))
        return failed ? -ENOMEM : 0;
    json_t *list = json_array();
    for (size_t i = 0; list && i < json_array_size(more); i++) {
        json_t *text = token_text(json_array_get(more, i));
        if (json_is_string(text))
            failed |= json_array_append(list, text);
    }
    failed |= json_object_set_new(constants, "additional_special_tokens", list);
    return failed ? -ENOMEM : 0;
}

static int load_constants(struct ek_bundle *b, const char *dir, const json_t *config,
                          struct chat *c, struct ek_fault *fault)
{
    json_t *map = NULL;
    c->constants = json_pack("{s:n, s:n, s:b}", "tools", "documents", "add_generation_prompt", 0);
    if (!c->constants)
        return -ENOMEM;
    int r = config ? add_tokens(c->constants, config) : 0;
    if (r == 0)
        r = load_json(b, dir, "special_tokens_map.json", &map, fault);
    if (r == 0 && map)
        r = add_tokens(c->constants, map);
    json_decref(map);
    return r;
}

static int load_given(struct ek_bundle *b, const char *file, struct chat *c, struct ek_fault *fault)
{
    struct ek_buf text = {0};
    int r = text_file_read(b, file, "chat-template", FILE_BYTES_MAX, &text, fault);
    if (r == -ENOENT)
        r = ek_fault_set(fault, "chat-template", "The chat template %s does not exist.", file);
    if (r == 0)
        r = parse_template(c, text.data, text.len, &c->plain, fault);
    ek_buf_done(&text);
    return r;
}

int chat_load(const char *dir, const char *file, struct chat **ret_chat, struct ek_fault *fault)
{
    return chat_load_from(NULL, dir, file, ret_chat, fault);
}

int chat_load_from(struct ek_bundle *b, const char *dir, const char *file, struct chat **ret_chat,
                   struct ek_fault *fault)
{
    json_t *config = NULL;
    int r = -ENOMEM;

    struct chat *c = calloc(1, sizeof(*c));
    if (!c)
        goto out;
    r = load_json(b, dir, "tokenizer_config.json", &config, fault);
    if (r == 0)
        r = load_constants(b, dir, config, c, fault);
    if (r == 0 && file)
        r = load_given(b, file, c, fault);
    if (r == 0 && !file)
        r = load_template(b, dir, "chat_template.jinja", c, &c->plain, fault);
    if (r == 0 && !file && c->plain)
        r = load_template(b, dir, "additional_chat_templates/tool_use.jinja", c, &c->with_tools,
                          fault);
    if (r == 0 && !c->plain && config)
        r = templates_of(config, c, fault);
    if (r < 0)
        goto out;

    *ret_chat = c->plain ? c : NULL;
    if (c->plain)
        c = NULL;
out:
    json_decref(config);
    chat_free(c);
    return r;
}

/* ---- the guard ---- */

struct guard {
    struct jstr *specials; /* sorted by bytes */
    size_t count;
    bool first[256]; /* bytes that a special token begins with */
    uint32_t taken;  /* noncharacters of the data, one bit each */
    uint32_t used;   /* the one inserted, 0 while none was */
};

static int by_bytes(const void *a, const void *b)
{
    const struct jstr *x = a, *y = b;
    return jstr_compare(*x, *y);
}

static int guard_init(struct guard *g, const struct tokenizer *tok)
{
    size_t n = 0;
    while (tok && tokenizer_special(tok, n))
        n++;
    if (!n)
        return 0;
    g->specials = calloc(n, sizeof(*g->specials));
    if (!g->specials)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const char *s = tokenizer_special(tok, i);
        size_t len = strlen(s);
        if (!len)
            continue;
        g->specials[g->count++] = (struct jstr){s, len};
        g->first[(unsigned char)s[0]] = true;
    }
    qsort(g->specials, g->count, sizeof(*g->specials), by_bytes);
    return 0;
}

/* Which noncharacters a string contains: U+FDD0.. are EF B7 90 and on. */
static void note_taken(struct guard *g, const char *s, size_t len)
{
    for (size_t i = 0; i + 2 < len; i++) {
        const char *p = memchr(s + i, 0xef, len - 2 - i);
        if (!p)
            return;
        i = (size_t)(p - s);
        unsigned char last = (unsigned char)p[2];
        if ((unsigned char)p[1] == 0xb7 && last >= 0x90 && last < 0x90 + GUARD_COUNT)
            g->taken |= 1u << (last - 0x90);
    }
}

static int scan_data(struct guard *g, const json_t *j, int depth)
{
    if (depth == 0)
        return -EBADMSG;
    int r = 0;
    if (json_is_string(j))
        note_taken(g, json_string_value(j), json_string_length(j));
    for (size_t i = 0; r == 0 && json_is_array(j) && i < json_array_size(j); i++)
        r = scan_data(g, json_array_get(j, i), depth - 1);
    if (!json_is_object(j))
        return r;
    json_t *object; /* jansson's iteration wants one that may change */
    memcpy(&object, &j, sizeof(object));
    for (void *at = json_object_iter(object); r == 0 && at;
         at = json_object_iter_next(object, at)) {
        note_taken(g, json_object_iter_key(at), json_object_iter_key_len(at));
        r = scan_data(g, json_object_iter_value(at), depth - 1);
    }
    return r;
}

/* Whether a special token begins at s, whole, or cut off by the end of the string. Letters at the
 * end are left alone: they are words like "user" that templates compare. */
static bool begins_special(const struct guard *g, const char *s, size_t len)
{
    size_t low = 0, high = g->count;
    for (size_t d = 0; low < high; d++) {
        if (g->specials[low].len == d)
            return true;
        unsigned char first = (unsigned char)s[0];
        if (d == len)
            return first < 0x80 && !(first >= '0' && first <= '9') &&
                   !((first | 32) >= 'a' && (first | 32) <= 'z');
        size_t a = low, b = high;
        while (a < b) { /* the first one whose byte d is not below s[d] */
            size_t mid = a + (b - a) / 2;
            if ((unsigned char)g->specials[mid].p[d] < (unsigned char)s[d])
                a = mid + 1;
            else
                b = mid;
        }
        low = a;
        b = high;
        while (a < b) {
            size_t mid = a + (b - a) / 2;
            if ((unsigned char)g->specials[mid].p[d] <= (unsigned char)s[d])
                a = mid + 1;
            else
                b = mid;
        }
        high = a;
    }
    return false;
}

static size_t next_place(const struct guard *g, const char *s, size_t len, size_t at)
{
    for (; at < len; at++) {
        if (g->first[(unsigned char)s[at]] && begins_special(g, s + at, len - at))
            break;
    }
    return at;
}

/* The first character of a special token may have several bytes. */
static size_t char_bytes(const char *s, size_t len)
{
    size_t at = 0;
    (void)jstr_next((struct jstr){s, len}, &at); /* only where the next one begins */
    return at;
}

static int pick_guard(struct guard *g)
{
    for (uint32_t i = 0; !g->used && i < GUARD_COUNT; i++) {
        if (!(g->taken >> i & 1))
            g->used = GUARD_FIRST + i;
    }
    return g->used ? 0 : -EBADMSG;
}

static int guard_mark(void *arg, struct ek_arena *arena, const char **s, size_t *len)
{
    struct guard *g = arg;
    size_t at = next_place(g, *s, *len, 0), places = 0;
    if (at == *len)
        return 0;
    for (size_t p = at; p < *len; p = next_place(g, *s, *len, p + 1))
        places++;
    int r = pick_guard(g);
    if (r < 0)
        return r;
    char *out = ek_arena_take(arena, *len + places * 3 + 1);
    if (!out)
        return -ENOMEM;
    size_t n = 0, from = 0;
    for (; at < *len; at = next_place(g, *s, *len, at + 1)) {
        size_t to = at + char_bytes(*s + at, *len - at);
        memcpy(out + n, *s + from, to - from);
        n += to - from;
        n += jstr_put(out + n, g->used);
        from = to;
    }
    memcpy(out + n, *s + from, *len - from);
    *s = out;
    *len += places * 3;
    return 0;
}

int chat_render(const struct chat *c, const struct tokenizer *tok, const json_t *context,
                struct ek_work *work, struct ek_buf *out, uint32_t *ret_guard,
                struct ek_fault *fault)
{
    struct guard g = {0};
    struct jinja_env env = {.constants = c->constants, .context = context, .work = work};
    const json_t *tools = json_object_get(context, "tools");
    const struct jinja *t = json_array_size(tools) && c->with_tools ? c->with_tools : c->plain;
    int r = guard_init(&g, tok);
    if (r == 0 && g.count) {
        env.mark = guard_mark;
        env.mark_arg = &g;
        if (scan_data(&g, context, DATA_DEPTH_MAX) < 0)
            r = ek_fault_set(fault, "messages", "The request is nested deeper than %d levels.",
                             DATA_DEPTH_MAX);
    }
    env.now_s = ek_wall_us() / EK_US_PER_S;
    if (r == 0)
        r = jinja_render(t, &env, out, fault);
    if (r == 0)
        *ret_guard = g.used;
    free(g.specials);
    return r;
}
