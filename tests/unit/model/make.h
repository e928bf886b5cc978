/*
 * Model directories for tests: a very small model of any family in a temporary directory, its files
 * written from a configuration and a list of tensors that a test may change first. Weights are
 * zeros. hidden 8, intermediate 12, 2 layers, 2 query heads and 1 key head of 4, 10 tokens, 64
 * positions.
 */
#pragma once

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

struct make {
    char dir[64];    /* made by make_begin(), removed by make_done() */
    json_t *config;  /* config.json */
    json_t *tensors; /* {name: [shape]}, all BF16 but those in */
    json_t *types;   /* {name: type} */
};

static inline void make_file(const struct make *m, const char *file, const void *data, size_t bytes)
{
    char path[400];
    assert_true(snprintf(path, sizeof(path), "%s/%s", m->dir, file) < (int)sizeof(path));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static inline void make_text(const struct make *m, const char *file, const char *text)
{
    make_file(m, file, text, strlen(text));
}

/* cols 0: a vector. */
static inline void make_tensor(struct make *m, const char *name, uint32_t rows, uint32_t cols)
{
    json_t *shape = cols ? json_pack("[i, i]", (int)rows, (int)cols) : json_pack("[i]", (int)rows);
    assert_int_equal(json_object_set_new(m->tensors, name, shape), 0);
}

static inline void make_typed(struct make *m, const char *name, const char *type, uint32_t rows,
                              uint32_t cols)
{
    make_tensor(m, name, rows, cols);
    assert_int_equal(json_object_set_new(m->types, name, json_string(type)), 0);
}

static inline void make_layers(struct make *m, const char *name, uint32_t rows, uint32_t cols)
{
    for (int i = 0; i < 2; i++) {
        char full[128];
        (void)snprintf(full, sizeof(full), "model.layers.%d.%s", i, name);
        make_tensor(m, full, rows, cols);
    }
}

static inline void make_begin(struct make *m, const char *architecture)
{
    (void)snprintf(m->dir, sizeof(m->dir), "/tmp/evenkeel-model-XXXXXX");
    assert_non_null(mkdtemp(m->dir));
    m->config = json_pack("{s:[s], s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s}",
                          "architectures", architecture, "hidden_size", 8, "intermediate_size", 12,
                          "num_hidden_layers", 2, "num_attention_heads", 2, "num_key_value_heads",
                          1, "head_dim", 4, "vocab_size", 10, "max_position_embeddings", 64,
                          "torch_dtype", "bfloat16", "model_type", "small");
    assert_non_null(m->config);
    m->tensors = json_object();
    m->types = json_object();
    make_tensor(m, "model.embed_tokens.weight", 10, 8);
    make_tensor(m, "model.norm.weight", 8, 0);
    make_tensor(m, "lm_head.weight", 10, 8);
    make_layers(m, "input_layernorm.weight", 8, 0);
    make_layers(m, "post_attention_layernorm.weight", 8, 0);
    make_layers(m, "self_attn.q_proj.weight", 8, 8);
    make_layers(m, "self_attn.k_proj.weight", 4, 8);
    make_layers(m, "self_attn.v_proj.weight", 4, 8);
    make_layers(m, "self_attn.o_proj.weight", 8, 8);
    make_layers(m, "mlp.gate_proj.weight", 12, 8);
    make_layers(m, "mlp.up_proj.weight", 12, 8);
    make_layers(m, "mlp.down_proj.weight", 8, 12);
}

/* A safetensors file with those of the tensors whose place in the list is `part` modulo `parts`. */
static inline void make_shard(struct make *m, const char *file, size_t part, size_t parts)
{
    json_t *header = json_object();
    const char *name;
    json_t *shape;
    size_t i = 0, at = 0;
    json_object_foreach(m->tensors, name, shape)
    {
        if (i++ % parts != part)
            continue;
        const char *type = json_string_value(json_object_get(m->types, name));
        type = type ? type : "BF16";
        size_t bytes = strstr(type, "32") ? 4 : strstr(type, "8") ? 1 : 2, d;
        json_t *n;
        json_array_foreach(shape, d, n) bytes *= (size_t)json_integer_value(n);
        json_object_set_new(header, name,
                            json_pack("{s:s, s:O, s:[I, I]}", "dtype", type, "shape", shape,
                                      "data_offsets", (json_int_t)at, (json_int_t)(at + bytes)));
        at += bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    assert_non_null(text);
    uint64_t len = strlen(text);
    uint8_t *all = calloc(1, 8 + len + at);
    assert_non_null(all);
    for (size_t b = 0; b < 8; b++)
        all[b] = (uint8_t)(len >> (8 * b));
    memcpy(all + 8, text, len);
    make_file(m, file, all, 8 + len + at);
    free(all);
    free(text);
    json_decref(header);
}

static inline void make_config(const struct make *m)
{
    char *text = json_dumps(m->config, 0);
    assert_non_null(text);
    make_text(m, "config.json", text);
    free(text);
}

/* config.json and model.safetensors. */
static inline void make_write(struct make *m)
{
    make_config(m);
    make_shard(m, "model.safetensors", 0, 1);
}

static inline void make_remove(const struct make *m, const char *file)
{
    char path[400];
    (void)snprintf(path, sizeof(path), "%s/%s", m->dir, file);
    (void)unlink(path); /* it may not be there */
}

static inline void make_done(struct make *m)
{
    DIR *d = opendir(m->dir);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        make_remove(m, e->d_name);
    (void)closedir(d);
    assert_int_equal(rmdir(m->dir), 0);
    json_decref(m->config);
    json_decref(m->tensors);
    json_decref(m->types);
}
