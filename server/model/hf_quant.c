/*
 * Reads ModelOpt's own file of quantization (hf_quant.h). Called by model.c while the model is
 * read.
 */
#include "server/model/hf_quant.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/json.h"
#include "server/model/files.h"

#define NAME       "hf_quant_config.json"
#define MOST_BYTES (4u << 20)

/* {"quantization": {"quant_algo", "kv_cache_quant_algo", ...}} */
static int read_own(struct ek_bundle *b, const char *dir, json_t **ret_own, struct ek_fault *fault)
{
    struct ek_buf text = {0};
    json_error_t e;
    int r = model_file_read(b, dir, NAME, MOST_BYTES, &text, fault);
    json_t *root = r == 0 ? ek_json_parse(text.data, text.len, 0, &e) : NULL;
    json_t *own = json_object_get(root, "quantization");
    ek_buf_done(&text);
    if (r == 0 && !json_is_object(own))
        r = ek_fault_set(fault, NAME,
                         "%s/" NAME " must hold an object `quantization`; download it again, or "
                         "remove it if the weights are not quantized",
                         dir);
    if (r == 0)
        *ret_own = json_incref(own);
    json_decref(root);
    return r;
}

/* The text of config with it. */
static int write_joined(json_t *config, json_t *own, struct ek_buf *text)
{
    int r = -ENOMEM;
    char *joined = NULL;
    if (json_object_set_new(own, "quant_method", json_string("modelopt")) == 0 &&
        json_object_set(config, "quantization_config", own) == 0)
        joined = json_dumps(config, JSON_COMPACT);
    if (joined) {
        ek_buf_clear(text);
        r = ek_buf_puts(text, joined);
    }
    free(joined);
    return r;
}

int hf_quant_join(struct ek_bundle *b, const char *dir, struct ek_buf *config,
                  struct ek_fault *fault)
{
    json_error_t e;
    json_t *own = NULL;
    if (!model_file_exists(b, dir, NAME))
        return 0;
    json_t *root = ek_json_parse(config->data, config->len, 0, &e);
    int r = 0; /* what is no configuration is reported by its next reader */
    if (json_is_object(root) && !json_object_get(root, "quantization_config") &&
        !json_object_get(root, "compression_config"))
        r = read_own(b, dir, &own, fault);
    if (own)
        r = write_joined(root, own, config);
    json_decref(own);
    json_decref(root);
    return r;
}
