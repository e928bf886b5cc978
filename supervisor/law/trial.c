#include "supervisor/law/trial.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "supervisor/law/remedy.h"

#define SHARE_LEAST 0.05
#define BLOCK_MOST  1024

static const char *const dtypes[] = {"auto", "half", "float16", "bfloat16", "float32", "float"};
#define DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

/* Takes one setting; a sentence about what is wrong, or NULL. */
static const char *trial_take(const char *key, const json_t *v, struct trial *t)
{
    double number = json_number_value(v);
    const char *word = json_string_value(v);
    if (strcmp(key, "gpu_memory_utilization") == 0) {
        if (!json_is_number(v) || !(number >= SHARE_LEAST && number <= 1))
            return "must be a number from 0.05 to 1";
        t->share = number;
    } else if (strcmp(key, "block_size") == 0) {
        if (!json_is_number(v) || !(number >= 1 && number <= BLOCK_MOST) ||
            number != (uint32_t)number)
            return "must be a whole number from 1 to 1024";
        t->block_size = (uint32_t)number;
    } else if (strcmp(key, "dtype") == 0) {
        size_t i = 0;
        while (word && i < DTYPES && strcmp(word, dtypes[i]) != 0)
            i++;
        if (!word || i == DTYPES)
            return "must be auto, half, float16, bfloat16, float32 or float";
        (void)snprintf(t->dtype, sizeof(t->dtype), "%s", word);
    } else {
        return "cannot be tried; there are gpu_memory_utilization, block_size and dtype";
    }
    return NULL;
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

int trial_argv(const struct trial *t, char *const *argv, char ***ret_argv)
{
    char share[24], block[16];
    (void)snprintf(share, sizeof(share), "%.4f", t->share);
    (void)snprintf(block, sizeof(block), "%u", t->block_size);
    const char *const more[][2] = {
        {t->share > 0 ? "--gpu-memory-utilization" : NULL, share},
        {t->block_size ? "--block-size" : NULL, block},
        {t->dtype[0] ? "--dtype" : NULL, t->dtype},
    };
    size_t n = 0, count = 0;
    while (argv[count])
        count++;
    char **out = calloc(count + 2 * 3 + 1, sizeof(*out));
    if (!out)
        return -ENOMEM;
    for (; n < count; n++)
        if (!(out[n] = strdup(argv[n])))
            goto failed;
    for (size_t i = 0; i < 3; i++) {
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
