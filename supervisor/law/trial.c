/*
 * Reads the settings of a trial from JSON and makes flags of them; servers/command_line.c puts
 * these behind the configuration's. Each setting has its own bounds. A trial that may only lower
 * (`at_most`) drops what is no lower than the server has it already (trial_within()).
 */
#include "supervisor/law/trial.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "supervisor/law/remedy.h"

#define SHARE_LEAST 0.05
#define BLOCK_MOST  1024
#define SEQS_MOST   65536
#define TOKENS_MOST 1048576

static const char *const dtypes[] = {"auto", "half", "float16", "bfloat16", "float32", "float"};
#define DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

static bool take_count(const json_t *v, uint32_t most, uint32_t *ret_count)
{
    double number = json_number_value(v);
    if (!json_is_number(v) || !(number >= 1 && number <= most) || number != (uint32_t)number)
        return false;
    *ret_count = (uint32_t)number;
    return true;
}

static bool take_dtype(const char *word, struct trial *t)
{
    size_t i = 0;
    while (word && i < DTYPES && strcmp(word, dtypes[i]) != 0)
        i++;
    if (!word || i == DTYPES)
        return false;
    (void)snprintf(t->dtype, sizeof(t->dtype), "%s", word);
    return true;
}

/* Takes one setting; a sentence about what is wrong, or NULL. */
static const char *trial_take(const char *key, const json_t *v, struct trial *t)
{
    if (strcmp(key, "gpu_memory_utilization") == 0) {
        double number = json_number_value(v);
        if (!json_is_number(v) || !(number >= SHARE_LEAST && number <= 1))
            return "must be a number from 0.05 to 1";
        t->share = number;
        return NULL;
    }
    if (strcmp(key, "max_num_seqs") == 0)
        return take_count(v, SEQS_MOST, &t->seqs) ? NULL : "must be a whole number from 1 to 65536";
    if (strcmp(key, "max_num_batched_tokens") == 0)
        return take_count(v, TOKENS_MOST, &t->tokens) ? NULL
                                                      : "must be a whole number from 1 to 1048576";
    if (strcmp(key, "block_size") == 0)
        return take_count(v, BLOCK_MOST, &t->block_size) ? NULL
                                                         : "must be a whole number from 1 to 1024";
    if (strcmp(key, "dtype") == 0)
        return take_dtype(json_string_value(v), t)
                   ? NULL
                   : "must be auto, half, float16, bfloat16, float32 or float";
    if (strcmp(key, "at_most") == 0) {
        t->at_most = json_is_true(v);
        return json_is_boolean(v) ? NULL : "must be true or false";
    }
    return "cannot be tried; there are gpu_memory_utilization, max_num_seqs, "
           "max_num_batched_tokens, block_size and dtype";
}

int trial_parse(const char *body, size_t len, struct trial *ret_trial, char *text, size_t size,
                const char **ret_field)
{
    struct trial t = {0};
    json_t *root = len ? json_loadb(body, len, JSON_REJECT_DUPLICATES, NULL) : json_object();
    json_t *trial = json_object_get(root, "trial");
    const char *wrong = NULL, *key;
    json_t *v;
    *ret_field = "trial";
    if (!json_is_object(root) || json_object_size(root) != (trial ? 1 : 0) ||
        (trial && !json_is_object(trial))) {
        (void)snprintf(text, size, "the body must be empty or {\"trial\": {...}}");
        json_decref(root);
        return -EBADMSG;
    }
    json_object_foreach(trial, key, v)
    {
        wrong = trial_take(key, v, &t);
        if (!wrong)
            continue;
        (void)snprintf(text, size, "trial: %.60s %s", key, wrong);
        break;
    }
    json_decref(root);
    if (wrong)
        return -EBADMSG;
    *ret_trial = t;
    return 0;
}

bool trial_is_none(const struct trial *t)
{
    return !(t->share > 0) && t->seqs == 0 && t->tokens == 0 && t->block_size == 0 && !t->dtype[0];
}

struct trial trial_within(const struct trial *t, const struct remedy_settings *has)
{
    struct trial within = *t;
    if (!t->at_most)
        return within;
    if (has->share > 0 && has->share <= t->share)
        within.share = 0;
    if (has->seqs && has->seqs <= t->seqs)
        within.seqs = 0;
    if (has->tokens && has->tokens <= t->tokens)
        within.tokens = 0;
    return within;
}

int trial_argv(const struct trial *t, char *const *argv, char ***ret_argv)
{
    char share[24], seqs[16], tokens[16], block[16];
    (void)snprintf(share, sizeof(share), "%.4f", t->share);
    (void)snprintf(seqs, sizeof(seqs), "%u", t->seqs);
    (void)snprintf(tokens, sizeof(tokens), "%u", t->tokens);
    (void)snprintf(block, sizeof(block), "%u", t->block_size);
    const char *const more[][2] = {
        {t->share > 0 ? "--gpu-memory-utilization" : NULL, share},
        {t->seqs ? "--max-num-seqs" : NULL, seqs},
        {t->tokens ? "--max-num-batched-tokens" : NULL, tokens},
        {t->block_size ? "--block-size" : NULL, block},
        {t->dtype[0] ? "--dtype" : NULL, t->dtype},
    };
    enum { MORE = sizeof(more) / sizeof(more[0]) };
    size_t n = 0, count = 0;
    while (argv[count])
        count++;
    char **out = calloc(count + 2 * MORE + 1, sizeof(*out));
    if (!out)
        return -ENOMEM;
    for (; n < count; n++)
        if (!(out[n] = strdup(argv[n])))
            goto failed;
    for (size_t i = 0; i < MORE; i++) {
        if (!more[i][0])
            continue;
        for (size_t k = 0; k < 2; k++)
            if (!(out[n++] = strdup(more[i][k])))
                goto failed;
    }
    *ret_argv = out;
    return 0;
failed:
    remedy_free(out);
    return -ENOMEM;
}
