/* From options to who may reach the server: keys, transport, origins. */
#pragma once

struct http_shell;
struct options;

/* Takes keys out of sight: from the command line that other users see in /proc, and from the
 * environment (VLLM_API_KEY, which is a key as in vLLM). 0 or -ENOMEM. */
int shell_hide(struct options *o, int argc, char **argv);
/* *ret_shell borrows from *o. */
void shell_params(const struct options *o, struct http_shell *ret_shell);
/* The keys are hashed: their text is wiped. */
void shell_forget(struct options *o);
