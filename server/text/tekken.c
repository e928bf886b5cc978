/*
 * Mistral's tekken.json as the tokenizer.json that it amounts to: tokens are bytes, special ones
 * come first, two tokens merge when they make one, lowest rank first. Runs once at start.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/tokparts.h"
#include "server/text/utf8.h"

#define SPECIALS_MOST 65536

/* Of files that do not list theirs; the rest is filled with <SPECIAL_n>. */
static const char *const old_specials[] = {"<unk>",
                                           "<s>",
                                           "</s>",
                                           "[INST]",
                                           "[/INST]",
                                           "[AVAILABLE_TOOLS]",
                                           "[/AVAILABLE_TOOLS]",
                                           "[TOOL_RESULTS]",
                                           "[/TOOL_RESULTS]",
                                           "[TOOL_CALLS]",
                                           "[IMG]",
                                           "<pad>",
                                           "[IMG_BREAK]",
                                           "[IMG_END]",
                                           "[PREFIX]",
                                           "[MIDDLE]",
                                           "[SUFFIX]",
                                           "[SYSTEM_PROMPT]",
                                           "[/SYSTEM_PROMPT]",
                                           "[TOOL_CONTENT]"};
#define OLD_SPECIALS (sizeof(old_specials) / sizeof(old_specials[0]))

struct tekken {
    const json_t *config, *vocab, *listed;
    uint32_t specials, count; /* special tokens; others that are used */
    struct ek_fault *fault;
};

static int add_specials(const struct tekken *t, json_t *added)
{
    char filler[32];
    for (uint32_t i = 0; i < t->specials; i++) {
        const json_t *o = json_array_get(t->listed, i);
        const char *name = json_string_value(json_object_get(o, "token_str"));
        const json_t *control = json_object_get(o, "is_control");
        (void)snprintf(filler, sizeof(filler), "<SPECIAL_%u>", i);
        if (!o)
            name = !t->listed && i < OLD_SPECIALS ? old_specials[i] : filler;
        if (!name || !*name || (o && json_integer_value(json_object_get(o, "rank")) != i))
            return ek_fault_set(t->fault, "special_tokens",
                                TOK_TEKKEN ": special_tokens: item %u needs a token_str and the "
                                           "rank %u",
                                i, i);
        if (json_array_append_new(added, tok_added(i, name, !json_is_false(control))) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int add_tokens(const struct tekken *t, struct vocab *content, uint32_t *order)
{
    struct ek_buf name = {0}, raw = {0};
    int r = vocab_init(content, t->specials + t->count, true);
    for (uint32_t i = 0; r == 0 && i < t->count; i++) {
        const json_t *o = json_array_get(t->vocab, i);
        const char *bytes = json_string_value(json_object_get(o, "token_bytes"));
        r = bytes && json_integer_value(json_object_get(o, "rank")) == i
                ? tok_spell(bytes, &raw, &name)
                : -EBADMSG;
        if (r == 0)
            r = vocab_put(content, i + t->specials, name.data, name.len);
        if (r == -EBADMSG || r == -EEXIST)
            r = ek_fault_set(t->fault, "vocab",
                             TOK_TEKKEN ": vocab: item %u needs its own token_bytes in base64 and "
                                        "the rank %u",
                             i, i);
        order[i] = i + t->specials;
    }
    ek_buf_done(&name);
    ek_buf_done(&raw);
    return r;
}

static int read_counts(struct tekken *t)
{
    json_int_t all = json_integer_value(json_object_get(t->config, "default_vocab_size"));
    json_int_t specials =
        json_integer_value(json_object_get(t->config, "default_num_special_tokens"));
    if (specials < 3 || specials > SPECIALS_MOST || all <= specials || all > VOCAB_MOST ||
        all - specials > (json_int_t)json_array_size(t->vocab) ||
        json_array_size(t->listed) > (size_t)specials)
        return ek_fault_set(t->fault, "config",
                            TOK_TEKKEN ": config: default_vocab_size and "
                                       "default_num_special_tokens must fit the %zu tokens of "
                                       "vocab",
                            json_array_size(t->vocab));
    t->specials = (uint32_t)specials;
    t->count = (uint32_t)(all - specials);
    return 0;
}

int tok_from_tekken(const json_t *root, struct tok_source *ret_source, struct ek_fault *fault)
{
    struct tekken t = {.config = json_object_get(root, "config"),
                       .vocab = json_object_get(root, "vocab"),
                       .listed = json_object_get(root, "special_tokens"),
                       .fault = fault};
    struct tok_source s = {0};
    json_t *added = NULL;
    const char *pattern = json_string_value(json_object_get(t.config, "pattern"));
    if (!json_is_array(t.listed))
        t.listed = NULL;
    if (!pattern || !json_is_array(t.vocab))
        return ek_fault_set(fault, "config",
                            TOK_TEKKEN ": needs a config with a pattern, and a "
                                       "vocab");
    int r = read_counts(&t);
    if (r < 0)
        return r;
    added = json_array();
    s.order = malloc(t.count * sizeof(*s.order));
    s.orders = t.count;
    r = added && s.order ? add_specials(&t, added) : -ENOMEM;
    if (r == 0)
        r = add_tokens(&t, &s.content, s.order);
    if (r == 0) {
        const json_t *bos = json_object_get(json_array_get(added, 1), "content");
        s.root = tok_byte_root(pattern, added, tok_template(json_string_value(bos), 1, NULL, 0));
        r = s.root ? 0 : -ENOMEM;
    }
    json_decref(added);
    if (r < 0)
        tok_source_done(&s);
    else
        *ret_source = s;
    return r;
}
