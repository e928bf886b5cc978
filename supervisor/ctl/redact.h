/* Takes secrets out of text that is shown to others. */
#pragma once

#include <stddef.h>

struct ek_buf;

/* Appends the text with the values of keys, tokens, passwords and secrets replaced: in YAML and
 * environments (`api-key: X`, `HF_TOKEN=X`), behind flags (`--api-key X`), in `Bearer X`, and words
 * that begin with sk- or hf_. Paths (`api-key-file: /etc/...`) stay. */
void redact(const char *text, size_t len, struct ek_buf *out);
