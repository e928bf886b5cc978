/*
 * A model directory, read and checked: configuration, the operations of a step (kernels/graph.h),
 * and where its weights lie. Nothing is computed here.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "server/model/classes.h"
#include "server/model/parameters.h"

struct ek_bundle;
struct ek_fault;

#define MODEL_FILE_NAME_BYTES 256

struct model {
    char dir[4096];
    char family[32]; /* model_type of config.json */
    struct ek_graph graph;
    struct ek_weight_files files;             /* read-only mappings of the safetensors */
    char (*file_name)[MODEL_FILE_NAME_BYTES]; /* theirs, as many */
    uint64_t parameters, weight_file_bytes;
    int32_t eos[MODEL_EOS_MOST];
    uint32_t eos_count;
    int32_t bos;              /* -1 if none */
    uint32_t max_model_len;   /* from config.json */
    uint32_t stretched_above; /* dynamic rope: longer sequences have frequencies of their own; 0 =
                                 none do */
    uint32_t long_above;      /* longrope: its original positions, 0 = none */
    struct model_defaults defaults;
    struct model_weights weights;
    struct model_classes classes;
    bool textless; /* it was made for its states or classes, and has no output layer for text */
    uint32_t index_tokens; /* what bounds max_model_len: tokens that its attention chooses, or 0 */
    bool embeds;           /* its states are what it was made for */
};

enum model_dtype { MODEL_DTYPE_AUTO, MODEL_DTYPE_F32, MODEL_DTYPE_F16, MODEL_DTYPE_BF16 };

struct model_choice {
    enum model_dtype dtype;
    const char *generation;   /* directory of generation_config.json, NULL = the model's, if any */
    struct ek_bundle *files;  /* what is read in place of the directory's, NULL = those */
    const char *quantization; /* as --quantization, NULL or "auto" = as the files are */
    bool kv_f8;               /* a KV cache of E4M3 */
    /* The backend keeps groups of 32 columns times a power of two only, and multiplies 8 bits that
     * are made while loading with one scale for a row. */
    bool wide_groups;
};

/* Reads config.json, generation_config.json, the safetensors headers (index too) and builds the
 * graph. Missing, extra or misshapen tensors are named. -EBADMSG (file, field, remedy), -ENOMEM. */
int model_open(const char *dir, enum model_dtype dtype, struct model **ret_model,
               struct ek_fault *fault);
int model_open_as(const char *dir, const struct model_choice *choice, struct model **ret_model,
                  struct ek_fault *fault);
/* How the matrices of layers are kept, short for the plan's table: "int8, 24 matrices" or "gptq, 20
 * of 24 matrices packed". "" when they are plain. Whole, a sentence for the log. */
const char *model_dtype_name(enum ek_dtype t); /* as vLLM calls it */
#define MODEL_NOTE_BYTES 280
void model_weights_note(const struct model *m, bool whole, char ret_text[MODEL_NOTE_BYTES]);
/* Tells the longest sequence that will be served, before a backend loads the graph: longrope has
 * other frequencies up to its original positions than beyond. */
void model_serve(struct model *m, uint32_t max_model_len);
/* Unmaps the weight files, once a backend has loaded them. */
void model_close_files(struct model *m);
void model_free(struct model *m);
