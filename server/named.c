/*
 * Finds the directory of the model that the options name (named.h). Called by the launcher and
 * start.c.
 */
#include "server/named.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/err.h"
#include "kernels/backend.h"
#include "server/model/model.h"
#include "server/options.h"

static enum model_dtype dtype_of(const char *name)
{
    if (strcmp(name, "float32") == 0 || strcmp(name, "float") == 0)
        return MODEL_DTYPE_F32;
    if (strcmp(name, "float16") == 0 || strcmp(name, "half") == 0)
        return MODEL_DTYPE_F16;
    if (strcmp(name, "bfloat16") == 0)
        return MODEL_DTYPE_BF16;
    return MODEL_DTYPE_AUTO;
}

static bool is_of_weights(const char *name)
{
    const char *dot = strrchr(name, '.');

    return strcmp(name, "config.json") == 0 || (dot && strcmp(dot, ".safetensors") == 0);
}

uint64_t named_stamp(const char *dir)
{
    DIR *d = opendir(dir);
    uint64_t sum = 0; /* in whatever order they come */

    for (const struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        struct stat st;
        if (!is_of_weights(e->d_name) || fstatat(dirfd(d), e->d_name, &st, 0) < 0)
            continue;
        const uint64_t about[] = {(uint64_t)st.st_dev, (uint64_t)st.st_ino, (uint64_t)st.st_size,
                                  (uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec};
        sum += XXH64(about, sizeof(about), XXH64(e->d_name, strlen(e->d_name), 0));
    }
    if (d)
        (void)closedir(d);
    return sum;
}

int named_same(const char *dir, uint64_t stamp, struct ek_fault *fault)
{
    if (named_stamp(dir) == stamp)
        return 0;
    return ek_fault_set(fault, "model",
                        "%s: its files are not those that the server has read: an engine that "
                        "takes the place of another one must have the same weights",
                        dir);
}

int named_unchanged(const char *dir, uint64_t stamp, struct ek_fault *fault)
{
    if (named_stamp(dir) == stamp)
        return 0;
    return ek_fault_set(fault, "model",
                        "%s: its files were changed while they were read; start again when they "
                        "are complete",
                        dir);
}

int named_model(const struct options *o, const char *dir, const struct ek_backend *backend,
                struct ek_bundle *files, struct model **ret_model, struct ek_fault *fault)
{
    const char *generation = o->generation_config;
    const bool named = strcmp(generation, "auto") != 0 && strcmp(generation, "vllm") != 0;
    const struct model_choice choice = {.dtype = dtype_of(o->dtype),
                                        .quantization = o->quantization,
                                        .generation = named ? generation : NULL,
                                        .kv_f8 = options_kv_f8(o),
                                        .files = files,
                                        .wide_groups =
                                            !backend || strcmp(backend->name, "cpu") != 0};
    int r = model_open_as(dir, &choice, ret_model, fault);
    if (r == 0)
        (*ret_model)->graph.kv_i8 = options_kv_i8(o);
    return r;
}
