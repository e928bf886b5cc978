/*
 * The companion that evenkeeld puts into a vLLM (supervisor/companion): whether a server gets it,
 * and the flags and variables by which vLLM finds it. Nothing in vLLM's environment is changed.
 */
#pragma once

#include <stddef.h>

struct ek_fault;
struct server_config;

/* After the dialect is known: takes the engine's row with a companion where the server can have
 * one. Without one nothing changes. */
void companion_choose(struct server_config *s);
/* With a companion: adds its variables to `env` and its flags to argv, `*n` words long. Flags that
 * the operator gives are kept. 0 or -ENOMEM. */
int companion_add(struct server_config *s, size_t *n);
