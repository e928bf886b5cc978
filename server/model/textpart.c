/*
 * Weights of a model that also sees are named language_model.model.X and language_model.lm_head, or
 * model.language_model.X and lm_head; in those with one configuration model.X and lm_head, beside
 * visual.X.
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

/* The name in a text model, in `s`'s memory; NULL in *ret_name: it is of another part. */
static int name_of(struct st_set *s, const char *name, const char **ret_name)
{
    static const char *const others[] = {"model.visual.",      "model.vision",
                                         "model.audio",        "model.embed_vision",
                                         "model.embed_audio",  "model.multi_modal_projector.",
                                         "model.image_newline"};
    const char *rest = after(name, "model.language_model.");
    char *copy = rest ? ek_arena_take(&s->arena, strlen(rest) + sizeof("model.")) : NULL;
    if (rest && !copy)
        return -ENOMEM;
    *ret_name = copy;
    if (rest) {
        (void)stpcpy(stpcpy(copy, "model."), rest);
        return 0;
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (after(name, others[i]))
            return 0;
    rest = after(name, "language_model.");
    rest = rest ? rest : name;
    if (after(rest, "model.") || after(rest, "backbone.") || after(rest, "lm_head."))
        *ret_name = rest;
    return 0;
}

int text_part_tensors(struct st_set *s, bool *ret_head)
{
    bool head = false;
    for (uint32_t i = 0; i < s->count; i++) {
        struct st_tensor *t = &s->tensor[i];
        const char *name;
        int r = name_of(s, t->name, &name);
        if (r < 0)
            return r;
        t->name = name ? name : t->name;
        t->used = !name && !after(t->name, "score."); /* classes are of the text part */
        head = head || (name && after(name, "lm_head."));
    }
    *ret_head = head;
    return 0;
}
