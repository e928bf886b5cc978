/* hf_quant_config.json, in which ModelOpt once said alone how weights are quantized. */
#pragma once

struct ek_buf;
struct ek_fault;

/* Where the directory has one and config.json, the text, no quantization_config, it becomes that.
 * -EBADMSG with a fault, -ENOMEM. */
int hf_quant_join(const char *dir, struct ek_buf *config, struct ek_fault *fault);
