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

json_t *tok_added(uint32_t id, const char *content, bool special)
{
    return json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id, "content",
                     content, "special", special, "normalized", false, "lstrip", false, "rstrip",
                     false, "single_word", false);
}

/* Adds {"SpecialToken": {"id": name}} to the template and its id to the list. */
static int template_token(json_t *single, json_t *tokens, const char *name, uint32_t id)
{
    if (!name)
        return 0;
    return json_array_append_new(single, json_pack("{s:{s:s}}", "SpecialToken", "id", name)) < 0 ||
                   json_object_set_new(tokens, name, json_pack("{s:[I]}", "ids", (json_int_t)id)) <
                       0
               ? -ENOMEM
               : 0;
}

json_t *tok_template(const char *bos, uint32_t bos_id, const char *eos, uint32_t eos_id)
{
    json_t *single = json_array(), *tokens = json_object();
    int r = single && tokens ? template_token(single, tokens, bos, bos_id) : -ENOMEM;
    if (r == 0)
        r = json_array_append_new(single, json_pack("{s:{s:s}}", "Sequence", "id", "A"));
    if (r == 0)
        r = template_token(single, tokens, eos, eos_id);
    if (r < 0) {
        json_decref(single);
        json_decref(tokens);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:o}", "type", "TemplateProcessing", "single", single,
                     "special_tokens", tokens);
}

static int base64_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

int tok_base64(const char *s, struct ek_buf *out)
{
    uint32_t bits = 0, count = 0;
    for (; *s && *s != '='; s++) {
        int digit = base64_digit(*s);
        if (digit < 0)
            return -EBADMSG;
        bits = bits << 6 | (uint32_t)digit;
        count += 6;
        if (count >= 8) {
            count -= 8;
            (void)ek_buf_add(out, &(char){(char)(bits >> count)}, 1);
        }
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

int tok_spell(const char *s, struct ek_buf *bytes, struct ek_buf *out)
{
    ek_buf_clear(bytes);
    ek_buf_clear(out);
    int r = tok_base64(s, bytes);
    if (r < 0 || bytes->len == 0)
        return r < 0 ? r : -EBADMSG;
    for (size_t i = 0; i < bytes->len; i++) {
        char character[UTF8_MOST];
        (void)ek_buf_add(out, character,
                         utf8_put(character, utf8_from_byte((uint8_t)bytes->data[i])));
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

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
        s.root = json_pack(
            "{s:{s:s, s:b}, s:O, s:{s:s}, s:{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s, s:b, s:b}]}, "
            "s:o}",
            "model", "type", "BPE", "ignore_merges", true, "added_tokens", added, "decoder", "type",
            "ByteLevel", "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split",
            "pattern", "Regex", pattern, "behavior", "Isolated", "type", "ByteLevel",
            "add_prefix_space", false, "use_regex", false, "post_processor",
            tok_template(json_string_value(json_object_get(json_array_get(added, 1), "content")), 1,
                         NULL, 0));
        r = s.root ? 0 : -ENOMEM;
    }
    json_decref(added);
    if (r < 0)
        tok_source_done(&s);
    else
        *ret_source = s;
    return r;
}
