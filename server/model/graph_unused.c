/*
 * Whether a model's files have tensors that nothing reads: then they are of another model than
 * config.json, or have a part that would be missed. Called by model.c, when the graph is whole.
 */
#include "server/model/graph.h"

#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "server/model/family.h"
#include "server/model/quant.h"

/* What follows the layer of a tensor, with the point; NULL: it is of none. */
static const char *after_layer(const char *name, uint32_t *ret_layer)
{
    static const char LAYERS[] = "model.layers.";
    uint32_t layer = 0;

    if (strncmp(name, LAYERS, sizeof(LAYERS) - 1) != 0)
        return NULL;
    const char *at = name + sizeof(LAYERS) - 1;
    for (; *at >= '0' && *at <= '9' && layer < CONFIG_LAYERS_MOST; at++)
        layer = layer * 10 + (uint32_t)(*at - '0');
    *ret_layer = layer;
    return *at == '.' ? at : NULL;
}

/* Of a layer for drafts, behind those that are used. */
static bool of_drafts(const struct model_config *c, const char *name)
{
    uint32_t layer;
    return after_layer(name, &layer) && layer >= c->layers && layer < c->layers + c->extra_layers;
}

/* K and V of a layer that reads those of another one: its code has none. */
static bool of_readers(const struct model_config *c, const char *name)
{
    static const char *const parts[] = {".self_attn.k_proj.", ".self_attn.v_proj.",
                                        ".self_attn.k_norm.", ".self_attn.v_norm."};
    uint32_t layer;
    const char *part = c->kinds.shared > 0 ? after_layer(name, &layer) : NULL;
    for (size_t i = 0; part && i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strncmp(part, parts[i], strlen(parts[i])) == 0)
            return layer >= c->layers - c->kinds.shared && layer < c->layers;
    return false;
}

/* Experts for pictures, beside those for text: ERNIE 4.5 VL's are the later ones of a layer. */
static bool of_pictures(const struct model_config *c, const char *name)
{
    static const char EXPERTS[] = ".mlp.experts.";
    uint32_t layer;
    const bool both = c->text_part && c->family == &family_ernie_moe;
    const char *part = both ? after_layer(name, &layer) : NULL;
    if (!part)
        return false;
    if (strncmp(part, EXPERTS, sizeof(EXPERTS) - 1) == 0)
        return strtoul(part + sizeof(EXPERTS) - 1, NULL, 10) >= c->experts;
    return strcmp(part, ".mlp.gate.weight_1") == 0 || strncmp(part, ".mlp.vision_moe.", 16) == 0;
}

/* What chooses the tokens of a layer's attention, which sees all of them here. */
static bool of_indexer(const struct model_config *c, const char *name)
{
    static const char INDEXER[] = ".self_attn.indexer.";
    uint32_t layer;
    const char *part = c->indexed ? after_layer(name, &layer) : NULL;
    return part && strncmp(part, INDEXER, sizeof(INDEXER) - 1) == 0;
}

/* A factor that Gemma 3n has in its files, used or not. */
static bool of_streams(const struct model_config *c, const char *name)
{
    uint32_t layer;
    const bool unused = c->streams.count > 0 && !c->streams.scaled;
    const char *part = unused ? after_layer(name, &layer) : NULL;
    return part && strcmp(part, ".altup.correct_output_scale") == 0;
}

/* A.X K1's files have the norm of what a mixture gives in plain layers, too. */
static bool of_mixtures(const struct model_config *c, const char *name)
{
    uint32_t layer;
    const char *part = c->family == &family_axk1 ? after_layer(name, &layer) : NULL;
    return part && layer < c->layers && c->plain[layer] &&
           strcmp(part, ".post_mlp_layernorm.weight") == 0;
}

/* The mask of attention, which older files of these families have in each layer. */
static bool of_masks(const struct model_config *c, const char *name)
{
    static const char *const masks[] = {".attention.bias", ".attention.masked_bias", ".attn.bias",
                                        ".attn.masked_bias", ".attn.causal_mask"};
    const struct model_family *f = c->family;
    const bool masked = f == &family_gpt_neox || f == &family_gpt2 || f == &family_gpt_bigcode ||
                        f == &family_gpt_neo || f == &family_gptj || f == &family_codegen;
    const size_t len = strlen(name);
    bool is = false;

    for (size_t i = 0; masked && i < sizeof(masks) / sizeof(masks[0]); i++)
        is = is || (len > strlen(masks[i]) && strcmp(name + len - strlen(masks[i]), masks[i]) == 0);
    return is;
}

/* Left in many checkpoints by what wrote them, computed or tied here. */
static bool harmless(const struct model_config *c, const char *name)
{
    static const char INV_FREQ[] = "rotary_emb.inv_freq";
    size_t len = strlen(name), tail = sizeof(INV_FREQ) - 1;
    return (len >= tail && strcmp(name + len - tail, INV_FREQ) == 0) ||
           (c->quant.method != QUANT_NONE && quant_harmless(name)) || of_drafts(c, name) ||
           of_mixtures(c, name) || of_readers(c, name) || of_pictures(c, name) ||
           of_indexer(c, name) || of_streams(c, name) || of_masks(c, name) ||
           strncmp(name, "mtp.", 4) == 0 || /* layers for drafts, too */
           strncmp(name, "model.mtp_layers.", 17) == 0 ||
           (c->tied &&
            (strcmp(name, "lm_head.weight") == 0 || strcmp(name, "embed_out.weight") == 0));
}

/* Tools for GPTQ write a bias of zeros for matrices that have none. */
static bool zero_bias(const struct graph_builder *b, const struct st_tensor *t)
{
    size_t len = strlen(t->name);
    if (b->config->quant.method != QUANT_GPTQ || len < 5 || strcmp(t->name + len - 5, ".bias") != 0)
        return false;
    const char *bytes = b->tensors->file[t->file].data;
    uint64_t at = t->begin;
    while (at < t->end && bytes[at] == 0)
        at++;
    return at == t->end;
}

int graph_check_unused(struct graph_builder *b)
{
    const struct st_tensor *first = NULL;
    uint32_t extra = 0;
    if (b->error)
        return b->error;
    for (uint32_t i = 0; i < b->tensors->count; i++) {
        const struct st_tensor *t = &b->tensors->tensor[i];
        if (t->used || harmless(b->config, t->name) || zero_bias(b, t))
            continue;
        first = first ? first : t;
        extra++;
    }
    if (!first)
        return 0;
    b->error = ek_fault_set(b->fault, first->name,
                            "%s: tensor '%.128s' (one of %u) has no place in a %s of this "
                            "configuration; config.json does not belong to these weights, download "
                            "both again",
                            st_file_name(b->tensors, first), first->name, extra,
                            b->config->family->architecture);
    return b->error;
}
