/*
 * Any bytes as config.json and as generation_config.json: what is accepted is within bounds, and
 * its rope table is finite.
 */
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "server/model/config.h"
#include "server/model/rope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model_config c = {.vocab = 1000};
    struct model_defaults d;
    struct ek_fault f = {0};
    const char *text = (const char *)data;
    if (config_parse_generation(text, size, &c, &d, &f) == 0)
        assert(c.eos_count <= MODEL_EOS_MOST && !(d.sampling.top_p > 1) &&
               !(d.sampling.temperature < 0));
    if (config_parse(text, size, &c, &f) == 0) {
        float freq[512];
        assert(c.head_dim >= 2 && c.head_dim <= 1024 && c.head_dim % 2 == 0);
        assert(c.kv_heads > 0 && c.q_heads % c.kv_heads == 0 && c.max_model_len > 0);
        assert(c.layers > 0 && c.layers <= CONFIG_LAYERS_MOST && c.family);
        assert(isfinite(config_rope_table(&c.rope, size % 2, freq)));
        for (uint32_t i = 0; i < c.rope.dims / 2; i++)
            assert(isfinite(freq[i]));
    }
    return 0;
}
