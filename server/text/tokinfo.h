/* What clients ask of a tokenizer that runs elsewhere: its configuration, as vLLM's
 * /tokenizer_info gives it. Runs at start. */
#pragma once

struct chat;
struct ek_buf;
struct ek_bundle;
struct ek_fault;

/* tokenizer_config.json of a model directory ({} where there is none; out of a bundle where `b` is
 * one) without the names of files, with the chat template that is in use (`chat` may be NULL). 0,
 * -EBADMSG with a fault, -ENOMEM. */
int tokinfo_write(struct ek_bundle *b, const char *dir, const struct chat *chat, struct ek_buf *out,
                  struct ek_fault *fault);
