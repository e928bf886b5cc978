/* Reading evenkeeld's configuration again while its servers run. The loop's thread only. */
#pragma once

#include <stddef.h>

struct config;
struct loop;

/* 0, or -EBADMSG or -ENOMEM with a sentence in text; then everything is as it was. */
int reload_now(struct loop *l, char *text, size_t size);
/* Says which settings belong to no server. */
void reload_note_unused(const struct config *c);
/* Frees the servers that are configured no longer and have ended. Not from a server's callback. */
void reload_sweep(struct loop *l);
