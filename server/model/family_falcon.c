/*
 * FalconH1ForCausalLM: in each layer Mamba 2 (mamba.c) and attention read the same normed input,
 * and what both give is added; a gated feed-forward follows. Numbers of the file multiply what goes
 * into and comes out of nearly all of it: those of keys are in the scale of attention, the others
 * are operations where they are not 1.
 */
#include <math.h>
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"
#include "server/model/mamba.h"

static const struct model_range FALCON_TIMES = {1e-6, 1e6};

/* A list of so many multipliers; not there or null: they stay 1. */
static int falcon_list(const struct model_json *j, const char *key, uint32_t count, float *times)
{
    const json_t *list = json_object_get(j->object, key);

    if (!list || json_is_null(list))
        return 0;
    bool ok = json_array_size(list) == count;
    for (uint32_t i = 0; ok && i < count; i++) {
        const json_t *v = json_array_get(list, i);
        const double n = json_number_value(v);
        ok = json_is_number(v) && n >= FALCON_TIMES.min && n <= FALCON_TIMES.max;
        times[i] = (float)n;
    }
    return ok ? 0
              : ek_fault_set(j->fault, key, "%s: %s must be %u numbers from %g to %g; correct it",
                             j->file, key, count, FALCON_TIMES.min, FALCON_TIMES.max);
}

static int falcon_scan(const struct model_json *j, struct model_config *c)
{
    const struct mamba_keys keys = {"mamba_n_heads",   "mamba_n_groups",  "mamba_d_state",
                                    "mamba_d_conv",    "mamba_conv_bias", "mamba_proj_bias",
                                    .usual_groups = 1, .usual_state = 256};
    const bool none = json_is_null(json_object_get(j->object, "mamba_d_ssm"));
    const char *dim = json_string_value(json_object_get(j->object, "mamba_d_head"));
    struct config_scan *s = &c->scan;
    uint32_t inner = 1024, expand = 2;
    bool norm = false;
    int r = mamba_configure(j, &keys, c);
    if (r == 0)
        r = config_read_u32(j, "mamba_expand", 64, 2, &expand);
    if (r == 0)
        r = config_read_u32(j, "mamba_d_ssm", 1u << 20, none ? expand * c->hidden : inner, &inner);
    if (r == 0)
        r = config_read_bool(j, "mamba_rms_norm", false, &norm);
    if (r == 0)
        r = config_read_bool(j, "mamba_norm_before_gate", true, &s->norm_first);
    if (r == 0)
        r = config_read_bool(j, "projectors_bias", false, &s->out_bias);
    if (r < 0)
        return r;
    s->unnormed = !norm;
    s->head_dim = inner / s->heads;
    if (!dim || strcmp(dim, "auto") != 0)
        r = config_read_u32(j, "mamba_d_head", 1u << 16, s->head_dim + !s->head_dim, &s->head_dim);
    if (r == 0 && (uint64_t)s->head_dim * s->heads != inner)
        r = ek_fault_set(j->fault, "mamba_n_heads",
                         "%s: mamba_n_heads %u of mamba_d_head %u are not mamba_d_ssm %u; correct "
                         "one of them",
                         j->file, s->heads, s->head_dim, inner);
    return r;
}

static int falcon_configure(const struct model_json *j, struct model_config *c)
{
    struct config_falcon *t = &c->falcon;
    const struct {
        const char *key;
        float *times;
    } keys[] = {{"embedding_multiplier", &c->embed_scale},
                {"lm_head_multiplier", &c->logits_scale},
                {"key_multiplier", &t->keys},
                {"attention_in_multiplier", &t->attention_in},
                {"attention_out_multiplier", &t->attention_out},
                {"ssm_in_multiplier", &t->scan_in},
                {"ssm_out_multiplier", &t->scan_out}};
    int r = 0;

    if (c->act != EK_ACT_SILU) /* which the convolution has, too */
        return ek_fault_set(j->fault, "hidden_act", "%s: hidden_act must be silu for %s", j->file,
                            c->family->architecture);
    *t = (struct config_falcon){1, 1, 1, 1, 1, {1, 1}};
    for (uint32_t i = 0; i < CONFIG_SCAN_PARTS; i++)
        c->scan.times[i] = 1;
    for (size_t i = 0; r == 0 && i < sizeof(keys) / sizeof(keys[0]); i++)
        r = config_read_float(j, keys[i].key, FALCON_TIMES, keys[i].times);
    if (r == 0)
        r = falcon_list(j, "mlp_multipliers", 2, t->mlp);
    if (r == 0)
        r = falcon_list(j, "ssm_multipliers", CONFIG_SCAN_PARTS, c->scan.times);
    if (r == 0)
        r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    c->attention_scale = t->keys / sqrtf((float)c->head_dim);
    if (r == 0)
        r = config_read_bool(j, "mlp_bias", false, &c->mlp_bias);
    return r < 0 ? r : falcon_scan(j, c);
}

static void falcon_scale(struct graph_builder *b, uint16_t value, float times)
{
    if (times != 1.0f)
        graph_scale(b, value, times, NULL);
}

static void falcon_build(struct graph_builder *b, const struct model_config *c)
{
    const struct config_falcon *t = &c->falcon;
    struct layers l = {.mlp = "feed_forward", .gate_times = t->mlp[0]};
    struct mamba_values v;

    layers_begin(b, &l);
    mamba_begin(b, &v);
    const uint16_t aside = graph_value(b, c->hidden);
    for (uint32_t i = 0; i < c->layers; i++) {
        layers_prefix(b, &l, i);
        graph_norm(b, l.side, l.stream, "input_layernorm");
        graph_take(b, aside, l.side, (struct graph_run){.group = c->hidden, .heads = 1});
        falcon_scale(b, aside, t->scan_in);
        mamba_mixer(b, &v, aside, "mamba");
        falcon_scale(b, aside, t->scan_out);
        falcon_scale(b, l.side, t->attention_in);
        layers_attention(b, &l, i);
        falcon_scale(b, l.side, t->attention_out);
        graph_add(b, l.stream, aside);
        graph_add(b, l.stream, l.side);
        graph_norm(b, l.side, l.stream, "pre_ff_layernorm");
        layers_feed_forward(b, &l);
        falcon_scale(b, l.side, t->mlp[1]);
        graph_add(b, l.stream, l.side);
    }
    graph_head(b, l.stream, "model.final_layernorm", "model.embed_tokens");
}

const struct model_family family_falcon_h1 = {.architecture = "FalconH1ForCausalLM",
                                              .rms_eps = 1e-5,
                                              .configure = falcon_configure,
                                              .build = falcon_build};
