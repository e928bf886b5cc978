/*
 * Latent attention (DeepSeek's MLA). What is kept of a token is one vector for all heads: the
 * latent, `rank` wide, and behind it a key of `rope_dim` that turned. A head's own keys and values
 * would be products of the latent, [nope_dim | value_dim, rank]. Instead of computing them for
 * every token that is looked at, the product is moved to the other side of the scores:
 *
 *   q * (W_k c) = (q * W_k) c     each head's query is brought into the space of the latent once
 *   sum p (W_v c) = W_v (sum p c) and what was attended is brought out of it once
 *
 * So attention is one of many query heads on a single head of keys, rank + rope_dim wide, whose
 * values are the first `rank` elements of the keys.
 */
#include "server/model/layers.h"

#define LATENT_EPS 1e-6 /* of both inner norms, whatever rms_norm_eps is: the published code's */

void latent_begin(struct graph_builder *b, struct layers *l)
{
    const struct config_latent *t = &b->config->latent;
    const uint32_t heads = b->config->q_heads, key = t->rank + t->rope_dim;

    if (t->q_rank > 0)
        l->latent.q_down = graph_value(b, t->q_rank);
    l->latent.q = graph_value(b, heads * (t->nope_dim + t->rope_dim));
    l->latent.keys = graph_value(b, key);
    l->latent.wide = graph_value(b, heads * key);
    l->latent.latents = graph_value(b, heads * t->rank);
    l->heads = graph_value(b, heads * t->value_dim);
}

static void latent_queries(struct graph_builder *b, const struct layers *l, uint16_t src)
{
    const struct model_config *c = b->config;
    const struct config_latent *t = &c->latent;
    const uint32_t width = c->q_heads * (t->nope_dim + t->rope_dim);
    const struct graph_part down = {"self_attn.q_a_proj", t->q_rank};
    const struct graph_part up = {"self_attn.q_b_proj", width}, plain = {"self_attn.q_proj", width};

    if (t->q_rank == 0) {
        graph_linear(b, l->latent.q, src, &plain, 1, false);
        return;
    }
    graph_linear(b, l->latent.q_down, src, &down, 1, c->qkv_bias);
    graph_norm_first(b, l->latent.q_down, "self_attn.q_a_layernorm", t->q_rank, LATENT_EPS);
    graph_linear(b, l->latent.q, l->latent.q_down, &up, 1, false);
}

void latent_attention(struct graph_builder *b, const struct layers *l, uint16_t src, uint32_t layer)
{
    const struct model_config *c = b->config;
    const struct config_latent *t = &c->latent;
    const struct graph_part keys = {"self_attn.kv_a_proj_with_mqa", t->rank + t->rope_dim};
    const struct graph_part out = {"self_attn.o_proj", c->hidden};
    struct graph_head_part part = {.name = "self_attn.kv_b_proj",
                                   .heads = c->q_heads,
                                   .step = t->nope_dim + t->value_dim,
                                   .rows = t->nope_dim,
                                   .cols = t->rank,
                                   .turned = true};

    latent_queries(b, l, src);
    graph_rotate_heads(b, l->latent.q, l->rope,
                       (struct graph_heads){t->nope_dim, t->nope_dim + t->rope_dim, c->q_heads});
    graph_linear(b, l->latent.keys, src, &keys, 1, c->qkv_bias);
    graph_norm_first(b, l->latent.keys, "self_attn.kv_a_layernorm", t->rank, LATENT_EPS);
    graph_rotate_heads(b, l->latent.keys, l->rope, (struct graph_heads){t->rank, t->rope_dim, 1});
    graph_by_head(b, l->latent.wide, l->latent.q, &part, t->rope_dim);
    if (c->warm_every > 0)
        graph_warm(b, l->latent.wide, 0, c->q_heads);
    graph_latent_attention(b, l->latent.latents, l->latent.wide, l->latent.keys, layer);
    part.first = t->nope_dim;
    part.rows = t->value_dim;
    part.turned = false;
    graph_by_head(b, l->heads, l->latent.latents, &part, 0);
    graph_linear(b, l->side, l->heads, &out, 1, c->o_bias);
}
