/* hf_quant_config.json, in which ModelOpt once said alone how weights are quantized. */
#pragma once

struct ek_buf;
struct ek_bundle;
struct ek_fault;

/* Where the directory, or the bundle if there is one, has one and config.json, the text, no
 * quantization_config, it becomes that. -EBADMSG with a fault, -ENOMEM. */
int hf_quant_join(struct ek_bundle *b, const char *dir, struct ek_buf *config,
                  struct ek_fault *fault);
