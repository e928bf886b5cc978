/*
 * What config.json says of quantized weights, and what --quantization asks for. Called by config.c
 * and model.c.
 */
#include "server/model/quant.h"

#include <string.h>

#include "common/err.h"
#include "common/memplan.h"

#define NAMES                                                                                      \
    "fp8, fbgemm_fp8, modelopt, compressed-tensors, gptq, awq, auto-round, quark and mxfp4"

static int quant_refuse(const struct model_json *j, const char *key, const char *value,
                        const char *known)
{
    return ek_fault_set(j->fault, "quantization_config",
                        "%s: quantization_config has %s '%.40s', which is not supported; supported "
                        "are %s; use another version of the model",
                        j->file, key, value, known);
}

/* AutoRound stores in the forms of others, and says in whose. */
static int read_packing(const struct model_json *q, enum config_quant *ret_method)
{
    static const struct {
        const char *packing;
        enum config_quant method;
    } table[] = {{"auto_round:auto_gptq", QUANT_GPTQ},
                 {"auto_round:auto_awq", QUANT_AWQ},
                 {"auto_round:llm_compressor", QUANT_COMPRESSED},
                 {"auto_round:fp8", QUANT_FP8}};
    const char *packing = table[0].packing;
    bool given = false;
    int r = model_json_string(q, "packing_format", &packing, &given);
    for (size_t i = 0; r == 0 && i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].packing, packing) == 0) {
            *ret_method = table[i].method;
            return 0;
        }
    return r < 0 ? r
                 : quant_refuse(q, "packing_format", packing,
                                "auto_round:auto_gptq, auto_round:auto_awq, "
                                "auto_round:llm_compressor and auto_round:fp8");
}

/* AMD Quark: numbers of 8 bits, or MXFP4, all called `weight`. */
static int read_quark(const struct model_json *q)
{
    static const char *const known[] = {"fp8_e4m3", "int8", "fp4"};
    const json_t *all = json_object_get(q->object, "global_quant_config");
    const json_t *weight = json_object_get(all, "weight");
    if (json_is_array(weight))
        weight = json_array_get(weight, 0);
    const char *type = json_string_value(json_object_get(weight, "dtype"));
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (type && strcmp(type, known[i]) == 0)
            return 0;
    return quant_refuse(q, "global_quant_config.weight.dtype", type ? type : "(none)",
                        "fp8_e4m3, int8 and fp4");
}

static int read_method(const struct model_json *q, const char **ret_name,
                       struct config_quant_params *p)
{
    static const struct {
        const char *name;
        enum config_quant method;
    } table[] = {{"fp8", QUANT_FP8},
                 {"fbgemm_fp8", QUANT_FP8},
                 {"modelopt", QUANT_MODELOPT},
                 {"compressed-tensors", QUANT_COMPRESSED},
                 {"modelopt_fp4", QUANT_MODELOPT},
                 {"modelopt_mixed", QUANT_MODELOPT},
                 {"gptq", QUANT_GPTQ},
                 {"awq", QUANT_AWQ},
                 {"quark", QUANT_QUARK},
                 {"mxfp4", QUANT_MXFP4}};
    bool given = false;
    *ret_name = "(none)";
    int r = model_json_string(q, "quant_method", ret_name, &given);
    if (r == 0 && !given && json_object_get(q->object, "quant_algo"))
        *ret_name = "modelopt"; /* whose older files name no method */
    if (r == 0 && strcmp(*ret_name, "auto-round") == 0)
        return read_packing(q, &p->method);
    for (size_t i = 0; r == 0 && i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].name, *ret_name) == 0) {
            p->method = table[i].method;
            return 0;
        }
    return r < 0 ? r : quant_refuse(q, "quant_method", *ret_name, NAMES);
}

const char *quant_method_name(const struct config_quant_params *p)
{
    switch (p->method) {
    case QUANT_NONE: return "";
    case QUANT_FP8: return "fp8";
    case QUANT_COMPRESSED: return "compressed-tensors";
    case QUANT_GPTQ: return "gptq";
    case QUANT_AWQ: return "awq";
    case QUANT_MXFP4: return "mxfp4";
    case QUANT_MODELOPT: return "modelopt";
    case QUANT_QUARK: return "quark";
    }
    return "";
}

const char *quant_load_name(enum quant_load load)
{
    switch (load) {
    case QUANT_AS_IT_IS: return "";
    case QUANT_LOAD_INT8: return "int8";
    case QUANT_LOAD_INT4: return "int4";
    case QUANT_LOAD_FP8: return "fp8";
    }
    return "";
}

int quant_load_find(const char *name, const struct config_quant_params *p,
                    enum quant_load *ret_load, struct ek_fault *fault)
{
    static const struct {
        const char *name;
        enum quant_load load;
        enum config_quant method; /* of a checkpoint that it goes with */
    } table[] = {{"int8", QUANT_LOAD_INT8, QUANT_NONE},
                 {"int4", QUANT_LOAD_INT4, QUANT_NONE},
                 {"fp8", QUANT_LOAD_FP8, QUANT_FP8},
                 {"fbgemm_fp8", QUANT_AS_IT_IS, QUANT_FP8},
                 {"modelopt", QUANT_AS_IT_IS, QUANT_MODELOPT},
                 {"modelopt_fp4", QUANT_AS_IT_IS, QUANT_MODELOPT},
                 {"modelopt_mixed", QUANT_AS_IT_IS, QUANT_MODELOPT},
                 {"compressed-tensors", QUANT_AS_IT_IS, QUANT_COMPRESSED},
                 {"gptq", QUANT_AS_IT_IS, QUANT_GPTQ},
                 {"gptq_marlin", QUANT_AS_IT_IS, QUANT_GPTQ},
                 {"awq", QUANT_AS_IT_IS, QUANT_AWQ},
                 {"awq_marlin", QUANT_AS_IT_IS, QUANT_AWQ},
                 {"quark", QUANT_AS_IT_IS, QUANT_QUARK},
                 {"auto-round", QUANT_AS_IT_IS, QUANT_GPTQ}, /* it packs in the words of four */
                 {"auto-round", QUANT_AS_IT_IS, QUANT_AWQ},
                 {"auto-round", QUANT_AS_IT_IS, QUANT_COMPRESSED},
                 {"auto-round", QUANT_AS_IT_IS, QUANT_FP8},
                 {"mxfp4", QUANT_AS_IT_IS, QUANT_MXFP4}};
    size_t i = 0, count = sizeof(table) / sizeof(table[0]);

    *ret_load = QUANT_AS_IT_IS;
    if (!name || strcmp(name, "auto") == 0)
        return 0;
    while (i < count && strcmp(table[i].name, name) != 0)
        i++;
    if (i == count)
        return ek_fault_set(fault, "quantization",
                            "--quantization '%.40s' is not known; int8, int4 and fp8 quantize "
                            "while loading, gptq, awq, compressed-tensors, mxfp4, fp8, quark and "
                            "auto-round are read as published",
                            name);
    for (size_t k = i; k < count && strcmp(table[k].name, name) == 0; k++)
        i = table[k].method == p->method ? k : i;
    if (p->method != QUANT_NONE && p->method == table[i].method)
        return 0;
    if (p->method != QUANT_NONE)
        return ek_fault_set(fault, "quantization",
                            "config.json: the weights are quantized with %s already, so "
                            "--quantization %s cannot be had; leave it out, or take the model "
                            "before it was quantized",
                            quant_method_name(p), name);
    if (table[i].load == QUANT_AS_IT_IS)
        return ek_fault_set(fault, "quantization",
                            "config.json: the weights are not quantized with %s, as --quantization "
                            "says; leave it out, or use int8, int4 or fp8 to quantize while "
                            "loading",
                            name);
    *ret_load = table[i].load;
    return 0;
}

enum ek_dtype quant_load_form(enum quant_load load, uint32_t cols, bool wide, uint32_t *ret_group)
{
    *ret_group = 0;
    if (load == QUANT_LOAD_INT4)
        *ret_group = ek_int4_group(cols);
    if (load == QUANT_LOAD_INT8 && !wide)
        *ret_group = EK_INT8_GROUP;
    return load == QUANT_LOAD_INT4 ? EK_I4 : load == QUANT_LOAD_FP8 ? EK_F8_E4M3 : EK_I8;
}

/* compressed-tensors: `format` of the whole and of each group. */
static int read_format(const struct model_json *q)
{
    static const char *const known[] = {
        "pack-quantized", "int-quantized",   "float-quantized",      "naive-quantized",
        "dense",          "mixed-precision", "nvfp4-pack-quantized", "mxfp4-pack-quantized"};
    const char *format = "dense";
    bool given = false, ok = false;
    int r = model_json_string(q, "format", &format, &given);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        ok = ok || strcmp(known[i], format) == 0;
    if (r < 0 || ok)
        return r;
    return quant_refuse(q, "format", format,
                        "pack-quantized, int-quantized, float-quantized, naive-quantized, "
                        "nvfp4-pack-quantized and mxfp4-pack-quantized");
}

/* What a group of compressed-tensors says of the inputs of its products. Ways that nothing here
 * computes (zeros, one scale for all tokens of a step) leave inputs as they are. */
static enum config_inputs inputs_of(const json_t *group)
{
    const json_t *in = json_object_get(group, "input_activations");
    const char *type = json_string_value(json_object_get(in, "type"));
    const char *strategy = json_string_value(json_object_get(in, "strategy"));
    const json_t *symmetric = json_object_get(in, "symmetric"),
                 *dynamic = json_object_get(in, "dynamic");

    if (json_integer_value(json_object_get(in, "num_bits")) != 8 || !type || !strategy ||
        (symmetric && !json_is_true(symmetric)) || json_is_string(dynamic))
        return INPUTS_AS_THEY_ARE;
    const bool now = json_is_true(dynamic), f8 = strcmp(type, "float") == 0;
    if (!f8 && strcmp(type, "int") != 0)
        return INPUTS_AS_THEY_ARE;
    if (now && strcmp(strategy, "token") == 0)
        return f8 ? INPUTS_F8_TOKEN : INPUTS_TOKEN;
    if (!now && strcmp(strategy, "tensor") == 0)
        return f8 ? INPUTS_F8_TENSOR : INPUTS_TENSOR;
    if (now && f8 && strcmp(strategy, "group") == 0 &&
        json_integer_value(json_object_get(in, "group_size")) == QUANT_INPUT_GROUP)
        return INPUTS_F8_GROUP;
    return INPUTS_AS_THEY_ARE;
}

static int read_compressed(const struct model_json *q, struct config_quant_params *p)
{
    const json_t *groups = json_object_get(q->object, "config_groups");
    const char *key;
    json_t *group;
    bool first = true;
    int r = read_format(q);
    json_object_foreach((json_t *)(uintptr_t)groups, key, group) /* the macro only reads */
    {
        struct model_json g = {.file = q->file, .object = group, .fault = q->fault};
        if (r == 0 && json_is_object(group))
            r = read_format(&g);
        if (first || inputs_of(group) != p->inputs) /* which matrices are whose is not read */
            p->inputs = first ? inputs_of(group) : INPUTS_AS_THEY_ARE;
        first = false;
    }
    return r;
}

static int read_groups(const struct model_json *q, struct config_quant_params *p)
{
    int64_t group = 128;
    bool given = false;
    const char *format = "gptq", *version = "gemm";
    int r = model_json_int(
        q, json_object_get(q->object, "q_group_size") ? "q_group_size" : "group_size",
        (struct model_range){-1, 1 << 20}, &group, &given);
    if (r == 0 && p->method == QUANT_GPTQ)
        r = model_json_string(q, "checkpoint_format", &format, &given);
    if (r == 0 && p->method == QUANT_AWQ)
        r = model_json_string(q, "version", &version, &given);
    if (r < 0)
        return r;
    if (strcmp(format, "gptq") != 0 && strcmp(format, "gptq_v2") != 0)
        return quant_refuse(q, "checkpoint_format", format, "gptq and gptq_v2");
    if (strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)
        return quant_refuse(q, "version", version, "gemm");
    p->group = group > 0 ? (uint32_t)group : 0;
    p->zeros_as_they_are = strcmp(format, "gptq_v2") == 0;
    return 0;
}

static int read_blocks(const struct model_json *q, struct config_quant_params *p)
{
    const json_t *size = json_object_get(q->object, "weight_block_size");
    if (!size || json_is_null(size))
        return 0;
    json_int_t rows = json_integer_value(json_array_get(size, 0));
    json_int_t cols = json_integer_value(json_array_get(size, 1));
    if (json_array_size(size) != 2 || rows < 1 || cols < 1 || rows > 1 << 20 || cols > 1 << 20)
        return ek_fault_set(q->fault, "weight_block_size",
                            "%s: weight_block_size must be two numbers from 1; correct it",
                            q->file);
    p->block_rows = (uint32_t)rows;
    p->block_cols = (uint32_t)cols;
    return 0;
}

/* ModelOpt: which matrices are quantized and in which of these ways is seen from the tensors. */
static int read_modelopt(const struct model_json *q, struct config_quant_params *p)
{
    const char *algorithm = "";
    bool given = false;
    static const struct {
        const char *name;
        enum config_inputs inputs;
    } known[] = {{"FP8", INPUTS_F8_TENSOR},
                 {"FP8_PER_CHANNEL_PER_TOKEN", INPUTS_F8_TOKEN},
                 {"NVFP4", INPUTS_AS_THEY_ARE},
                 {"W4A16_NVFP4", INPUTS_AS_THEY_ARE},
                 {"MIXED_PRECISION", INPUTS_AS_THEY_ARE}};
    int r = read_blocks(q, p);
    if (r == 0)
        r = model_json_string(q, "quant_algo", &algorithm, &given);
    for (size_t i = 0; r == 0 && i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].name, algorithm) == 0) {
            p->inputs = known[i].inputs;
            return 0;
        }
    return r < 0 ? r
                 : quant_refuse(
                       q, "quant_algo", algorithm,
                       "FP8, FP8_PER_CHANNEL_PER_TOKEN, NVFP4, W4A16_NVFP4 and MIXED_PRECISION");
}

/* FP8 of three makers: fp8 says in `activation_scheme` how inputs are rounded, fbgemm_fp8 means
 * each token up to a bound, auto-round has `act_bits` and `act_dynamic`. */
static int read_fp8(const struct model_json *q, const char *name, struct config_quant_params *p)
{
    const char *scheme = "dynamic";
    bool given = false;

    int r = read_blocks(q, p);
    if (r == 0)
        r = model_json_string(q, "activation_scheme", &scheme, &given);
    if (r < 0)
        return r;
    if (strcmp(name, "auto-round") == 0) { /* which says in other words what is done to inputs */
        if (json_integer_value(json_object_get(q->object, "act_bits")) != 8)
            return 0; /* weights alone */
        if (json_is_false(json_object_get(q->object, "act_dynamic")))
            scheme = "static";
    }
    const json_t *blocks = json_object_get(q->object, "weight_block_size");
    const bool dynamic = strcmp(scheme, "dynamic") == 0,
               blocked = strcmp(name, "fp8") == 0 && blocks && !json_is_null(blocks);
    if (strcmp(scheme, "static") == 0 && !blocked)
        p->inputs = INPUTS_F8_TENSOR;
    else if (dynamic)
        p->inputs = blocked ? INPUTS_F8_GROUP : INPUTS_F8_TOKEN;
    const double most = json_number_value(json_object_get(q->object, "activation_scale_ub"));
    if (strcmp(name, "fbgemm_fp8") == 0 && most > 0 && most < 1e30)
        p->input_most = (float)most;
    return 0;
}

int config_read_quant(const struct model_json *j, struct config_quant_params *ret_quant)
{
    const json_t *o = json_object_get(j->object, "quantization_config");
    struct config_quant_params p = {.block_rows = 128, .block_cols = 128};
    struct model_json q = {.file = j->file, .object = o, .fault = j->fault};
    const char *name;
    if (!o || json_is_null(o)) /* models of compressed-tensors once used another key */
        q.object = o = json_object_get(j->object, "compression_config");
    if (!o || json_is_null(o))
        return 0;
    if (!json_is_object(o))
        return ek_fault_set(j->fault, "quantization_config",
                            "%s: quantization_config must be an object; correct it", j->file);
    int r = read_method(&q, &name, &p);
    if (r == 0 && p.method == QUANT_COMPRESSED)
        r = read_compressed(&q, &p);
    if (r == 0 && (p.method == QUANT_GPTQ || p.method == QUANT_AWQ))
        r = read_groups(&q, &p);
    if (r == 0 && p.method == QUANT_QUARK)
        r = read_quark(&q);
    if (r == 0 && p.method == QUANT_FP8)
        r = read_fp8(&q, name, &p);
    if (r == 0 && p.method == QUANT_MODELOPT)
        r = read_modelopt(&q, &p);
    if (r == 0)
        *ret_quant = p;
    return r;
}
