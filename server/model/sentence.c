/*
 * How a model for embeddings pools, by the files of sentence-transformers (sentence.h). Called by
 * scores.c.
 */
#include "server/model/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/model/files.h"
#include "server/model/json.h"

#define MODULES         "modules.json"
#define MODULES_BYTES   (1u << 20)
#define MODULES_PATH    256u
#define POOLING_SETTING "config.json"

/* A list, which modules.json is: model_json_parse() takes objects. */
static json_t *list_load(const struct ek_buf *text)
{
    json_t *list =
        json_loadb(text->data ? text->data : "", text->len, JSON_REJECT_DUPLICATES, NULL);
    if (json_is_array(list))
        return list;
    json_decref(list);
    return NULL;
}

static int pooling_read(struct ek_bundle *b, const char *dir, const char *path,
                        enum sentence_pooling *ret_pooling, struct ek_fault *fault)
{
    struct ek_buf text = {0};
    json_t *root = NULL;
    char at[4096 + MODULES_PATH];
    if (!model_name_ok(path))
        return ek_fault_set(fault, MODULES, MODULES ": the path of its pooling is no plain name");
    (void)snprintf(at, sizeof(at), "%s/%s", dir, path);
    int r = model_file_read(b, at, POOLING_SETTING, MODULES_BYTES, &text, fault);
    if (r == 0)
        r = model_json_parse(POOLING_SETTING, text.data, text.len, &root, fault);
    if (r == 0) {
        const char *mode = json_string_value(json_object_get(root, "pooling_mode"));
        bool last = json_is_true(json_object_get(root, "pooling_mode_lasttoken")) ||
                    (mode && strcmp(mode, "lasttoken") == 0);
        *ret_pooling = last ? SENTENCE_LAST : SENTENCE_OTHER;
    }
    json_decref(root);
    ek_buf_done(&text);
    return r == -ENOENT ? -EBADMSG : r;
}

int sentence_read(struct ek_bundle *b, const char *dir, enum sentence_pooling *ret_pooling,
                  struct ek_fault *fault)
{
    struct ek_buf text = {0};
    *ret_pooling = SENTENCE_NONE;
    if (!model_file_exists(b, dir, MODULES))
        return 0;
    int r = model_file_read(b, dir, MODULES, MODULES_BYTES, &text, fault);
    json_t *list = r == 0 ? list_load(&text) : NULL;
    if (r == 0 && !list)
        r = ek_fault_set(fault, MODULES, MODULES ": it is no list of modules; get it again");
    for (size_t i = 0; r == 0 && i < json_array_size(list); i++) {
        const json_t *m = json_array_get(list, i);
        const char *type = json_string_value(json_object_get(m, "type"));
        const char *path = json_string_value(json_object_get(m, "path"));
        const char *last = type ? strrchr(type, '.') : NULL;
        if (last && path && strcmp(last, ".Pooling") == 0)
            r = pooling_read(b, dir, path, ret_pooling, fault);
    }
    json_decref(list);
    ek_buf_done(&text);
    return r;
}
