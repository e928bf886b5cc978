/*
 * Weights of a model that also sees are named language_model.model.X and language_model.lm_head, or
 * model.language_model.X (SmolVLM: model.text_model.X) and lm_head, and then all other names are of
 * other parts; in those with one configuration model.X and lm_head, beside visual.X. Of models that
 * also speak (Qwen's Omni) the one that writes has names that begin with thinker.
 */
#include "server/model/textpart.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/model/safetensors.h"

/* What follows the prefix; NULL: it does not begin with it. */
static const char *after(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 ? name + n : NULL;
}

/* What the whole text model's names begin with, where other parts have names that begin with model.
 * as well; NULL: they begin so. */
static const char *inner_of(const struct st_set *s)
{
    static const char *const inner[] = {"model.language_model.", "model.text_model."};

    for (size_t k = 0; k < sizeof(inner) / sizeof(inner[0]); k++)
        for (uint32_t i = 0; i < s->count; i++)
            if (after(s->tensor[i].name, inner[k]))
                return inner[k];
    return NULL;
}

/* The name in a text model; NULL: it is of another part. */
static const char *plain_name(const char *name)
{
    static const char *const others[] = {"model.visual.",       "model.vision",
                                         "model.audio",         "model.embed_vision",
                                         "model.embed_audio",   "model.multi_modal_projector.",
                                         "model.image_newline", "model.resampler_model."};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (after(name, others[i]))
            return NULL;
    const char *rest = after(name, "language_model.");
    rest = rest ? rest : name;
    return after(rest, "model.") || after(rest, "backbone.") || after(rest, "lm_head.") ? rest
                                                                                        : NULL;
}

/* The same in `s`'s memory, where it is another one than in the file. */
static int textpart_name_of(struct st_set *s, const char *name, const char *inner,
                            const char **ret_name)
{
    const char *thinks = after(name, "thinker."), *own = thinks ? thinks : name;
    const char *rest = inner ? after(own, inner) : NULL;
    char *copy = rest ? ek_arena_take(&s->arena, strlen(rest) + sizeof("model.")) : NULL;

    if (rest && !copy)
        return -ENOMEM;
    if (rest)
        (void)stpcpy(stpcpy(copy, "model."), rest);
    if (inner)
        *ret_name = rest ? copy : after(own, "lm_head.") ? own : NULL;
    else
        *ret_name = plain_name(own);
    return 0;
}

int text_part_tensors(struct st_set *s, bool *ret_head)
{
    const char *inner = inner_of(s);
    bool head = false;
    for (uint32_t i = 0; i < s->count; i++) {
        struct st_tensor *t = &s->tensor[i];
        const char *name;
        int r = textpart_name_of(s, t->name, inner, &name);
        if (r < 0)
            return r;
        t->name = name ? name : t->name;
        t->used = !name && !after(t->name, "score."); /* classes are of the text part */
        head = head || (name && after(name, "lm_head."));
    }
    *ret_head = head;
    return 0;
}
