/* From options to access to the server: keys, transport, origins. */
#pragma once

struct http_access;
struct options;
struct ek_fault;

/* Takes keys out of sight: from the command line that other users see in /proc, and from the
 * environment (VLLM_API_KEY, which is a key as in vLLM, and tokens of the hub, which are for
 * others). 0 or -ENOMEM. */
int access_options_hide(struct options *o, int argc, char **argv);
/* What concerns more than one option. 0, -EBADMSG with a fault, -ENOMEM. */
int access_options_check(struct options *o, struct ek_fault *fault);
/* *ret_access borrows from *o. */
void access_options_params(const struct options *o, struct http_access *ret_access);
/* The keys are hashed: their text is wiped. */
void access_options_forget(struct options *o);
