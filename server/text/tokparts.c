/*
 * What the readers of other files than tokenizer.json (tekken.c, tiktoken.c, spm.c) have in common:
 * parts of the tokenizer.json that theirs amounts to, and tokens that are written in base64.
 */
#include "server/text/tokparts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/utf8.h"

const char *const tok_special_keys[TOK_SPECIAL_KEYS] = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

json_t *tok_added(uint32_t id, const char *content, bool special)
{
    return json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id, "content",
                     content, "special", special, "normalized", false, "lstrip", false, "rstrip",
                     false, "single_word", false);
}

const char *tok_text(const json_t *token)
{
    const char *content = json_string_value(json_object_get(token, "content"));
    return content ? content : json_string_value(token);
}

int tok_listed(const char *key, const json_t *token, uint32_t *ret_id, const char **ret_content,
               struct ek_fault *fault)
{
    const char *content = json_string_value(json_object_get(token, "content"));
    char *end = NULL;
    const unsigned long id = *key >= '0' && *key <= '9' ? strtoul(key, &end, 10) : 0;
    if (!end || *end || id > UINT32_MAX || !content || !*content)
        return ek_fault_set(fault, "added_tokens_decoder",
                            "tokenizer_config.json: added_tokens_decoder: %.32s must be an id and "
                            "have a content",
                            key);
    *ret_id = (uint32_t)id;
    *ret_content = content;
    return 0;
}

int tok_named(const json_t *config, json_t *names)
{
    const json_t *more = json_object_get(config, TOK_MORE_SPECIALS);
    for (size_t i = 0; i < TOK_SPECIAL_KEYS + json_array_size(more); i++) {
        json_t *token = i < TOK_SPECIAL_KEYS ? json_object_get(config, tok_special_keys[i])
                                             : json_array_get(more, i - TOK_SPECIAL_KEYS);
        const char *text = tok_text(token);
        if (text && json_object_set(names, text, token) < 0)
            return -ENOMEM;
    }
    return 0;
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

json_t *tok_byte_root(const char *pattern, json_t *added, json_t *around)
{
    return json_pack(
        "{s:{s:s, s:b}, s:O, s:{s:s}, s:{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s, s:b, s:b}]}, s:o}",
        "model", "type", "BPE", "ignore_merges", true, "added_tokens", added, "decoder", "type",
        "ByteLevel", "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split",
        "pattern", "Regex", pattern, "behavior", "Isolated", "type", "ByteLevel",
        "add_prefix_space", false, "use_regex", false, "post_processor", around);
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
