/*
 * vocab.json and merges.txt as the tokenizer.json that they amount to: GPT-2's byte-level BPE, in
 * which OPT and others of its time are published. The two say neither how texts are split nor which
 * tokens are special: that is code, so the class in tokenizer_config.json must be one whose code is
 * GPT-2's, and special tokens are those that the file names or lists. Directories of before 2023
 * list them in added_tokens.json and special_tokens_map.json instead. Runs once at start.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "server/text/tokparts.h"
#include "server/text/utf8.h"

#define END_OF_TEXT "<|endoftext|>" /* of GPT-2's class, where the file names none */

static int merges_class(const json_t *config, struct ek_fault *fault)
{
    static const char *const classes[] = {"GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer",
                                          "CodeGenTokenizerFast"};
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    bool known = !class;
    for (size_t i = 0; !known && i < sizeof(classes) / sizeof(classes[0]); i++)
        known = strcmp(class, classes[i]) == 0;
    if (known)
        return 0;
    return ek_fault_set(fault, "tokenizer_class",
                        TOK_FILE
                        " does not exist, and how a %.48s splits texts is not in " TOK_VOCAB
                        "; write it with AutoTokenizer's save_pretrained",
                        class);
}

/* Two tokens with a space between them. */
static bool merges_is_pair(const char *line, size_t len)
{
    const char *space = memchr(line, ' ', len);
    return space && space > line && space + 1 < line + len &&
           !memchr(space + 1, ' ', (size_t)(line + len - space - 1));
}

static int merges_read(const char *text, size_t len, json_t *merges, struct ek_fault *fault)
{
    const char *end = text + len;
    for (uint32_t number = 1; text < end; number++) {
        const char *next = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((next ? next : end) - text);
        if (n > 0 && text[n - 1] == '\r')
            n--;
        const bool head = number == 1 && n >= 8 && memcmp(text, "#version", 8) == 0;
        if (n > 0 && !head) {
            if (!merges_is_pair(text, n) || utf8_valid(text, n) != n)
                return ek_fault_set(fault, TOK_MERGES,
                                    TOK_MERGES ": line %u must be two tokens in UTF-8; download "
                                               "the file again",
                                    number);
            if (json_array_append_new(merges, json_stringn(text, n)) < 0)
                return -ENOMEM;
        }
        text = next ? next + 1 : end;
    }
    return 0;
}

/* Adds a special token that the vocabulary has; `seen` holds those that were added. */
static int merges_special(const json_t *vocab, const char *content, json_t *seen, json_t *added)
{
    const json_t *id = content ? json_object_get(vocab, content) : NULL;
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > UINT32_MAX ||
        json_object_get(seen, content))
        return 0;
    return json_object_set_new(seen, content, json_true()) < 0 ||
                   json_array_append_new(
                       added, tok_added((uint32_t)json_integer_value(id), content, true)) < 0
               ? -ENOMEM
               : 0;
}

/* Adds those that tokenizer_config.json lists with their ids, which the vocabulary may lack. */
static int merges_listed(const json_t *config, json_t *seen, json_t *added, struct ek_fault *fault)
{
    const char *key;
    json_t *one;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, one)
    {
        uint32_t id = 0;
        const char *content = "";
        int r = tok_listed(key, one, &id, &content, fault);
        if (r < 0)
            return r;
        const bool special = !json_is_false(json_object_get(one, "special"));
        if (json_object_set_new(seen, content, json_true()) < 0 ||
            json_array_append_new(added, tok_added(id, content, special)) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int merges_specials(const json_t *vocab, const json_t *config, json_t *added,
                           struct ek_fault *fault)
{
    const json_t *more = json_object_get(config, TOK_MORE_SPECIALS);
    json_t *seen = json_object();
    int r = seen ? merges_listed(config, seen, added, fault) : -ENOMEM;
    for (size_t i = 0; r == 0 && i < TOK_SPECIAL_KEYS; i++)
        r = merges_special(vocab, tok_text(json_object_get(config, tok_special_keys[i])), seen,
                           added);
    for (size_t i = 0; r == 0 && i < json_array_size(more); i++)
        r = merges_special(vocab, tok_text(json_array_get(more, i)), seen, added);
    if (r == 0 && json_array_size(added) == 0)
        r = merges_special(vocab, END_OF_TEXT, seen, added);
    json_decref(seen);
    return r;
}

/* What is put before a prompt; NULL without memory. */
static json_t *merges_around(const json_t *vocab, const json_t *config, const json_t *added)
{
    const char *bos = tok_text(json_object_get(config, "bos_token"));
    if (!bos)
        bos = END_OF_TEXT;
    const json_t *id = json_object_get(vocab, bos);
    for (size_t i = 0; !id && i < json_array_size(added); i++) {
        const json_t *one = json_array_get(added, i);
        if (strcmp(json_string_value(json_object_get(one, "content")), bos) == 0)
            id = json_object_get(one, "id");
    }
    if (!json_is_true(json_object_get(config, "add_bos_token")) || !json_is_integer(id) ||
        json_integer_value(id) < 0 || json_integer_value(id) > UINT32_MAX)
        return json_null();
    return tok_template(bos, (uint32_t)json_integer_value(id), NULL, 0);
}

int tok_from_merges(const json_t *vocab, const char *merges, size_t len, const json_t *config,
                    json_t **ret_root, struct ek_fault *fault)
{
    json_t *pairs = json_array(), *added = json_array(), *root = NULL;
    const bool space = json_is_true(json_object_get(config, "add_prefix_space"));
    int r = merges_class(config, fault);
    if (r == 0)
        r = pairs && added ? merges_read(merges, len, pairs, fault) : -ENOMEM;
    if (r == 0)
        r = merges_specials(vocab, config, added, fault);
    if (r == 0) {
        root = json_pack("{s:{s:s, s:O, s:O}, s:O, s:{s:s}, s:{s:s, s:b, s:b}, s:o}", "model",
                         "type", "BPE", "vocab", vocab, "merges", pairs, "added_tokens", added,
                         "decoder", "type", "ByteLevel", "pre_tokenizer", "type", "ByteLevel",
                         "add_prefix_space", space, "use_regex", true, "post_processor",
                         merges_around(vocab, config, added));
        r = root ? 0 : -ENOMEM;
    }
    json_decref(pairs);
    json_decref(added);
    if (r == 0)
        *ret_root = root;
    return r;
}

/* What added_tokens.json lists, as an added_tokens_decoder. */
static int merges_decoder(const json_t *added, const json_t *names, json_t *decoder,
                          struct ek_fault *fault)
{
    const char *content;
    const json_t *id;
    char key[24];
    json_object_foreach((json_t *)(uintptr_t)added, content, id) /* the macro only reads */
    {
        (void)snprintf(key, sizeof(key), "%lld", (long long)json_integer_value(id));
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > UINT32_MAX || !*content || json_object_get(decoder, key))
            return ek_fault_set(fault, TOK_ADDED,
                                TOK_ADDED ": \"%.80s\" must have an id of its own; download the "
                                          "file again",
                                content);
        if (json_object_set_new(decoder, key,
                                json_pack("{s:s, s:b}", "content", content, "special",
                                          json_object_get(names, content) != NULL)) < 0)
            return -ENOMEM;
    }
    return 0;
}

int tok_config_of_old(const json_t *config, const json_t *map, const json_t *added,
                      json_t **ret_config, struct ek_fault *fault)
{
    json_t *now = json_object(), *names = json_object(), *decoder = json_object();
    int r = now && names && decoder ? 0 : -ENOMEM;
    if (r == 0 && ((config && json_object_update(now, (json_t *)(uintptr_t)config) < 0) ||
                   (map && json_object_update(now, (json_t *)(uintptr_t)map) < 0)))
        r = -ENOMEM;
    if (r == 0)
        r = tok_named(now, names);
    if (r == 0 && added)
        r = merges_decoder(added, names, decoder, fault);
    if (r == 0 && json_object_set(now, "added_tokens_decoder", decoder) < 0)
        r = -ENOMEM;
    json_decref(decoder);
    json_decref(names);
    if (r < 0)
        json_decref(now);
    else
        *ret_config = now;
    return r;
}
