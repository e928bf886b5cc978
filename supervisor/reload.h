/* Reading evenkeeld's configuration again while its servers run. The loop's thread only. */
#pragma once

#include <stddef.h>

struct config;
struct loop;

/* Reads it, and asks each evenkeel-server whose command is new or changed for its flags, before
 * anything changes. 1: cb follows, unless it is NULL, with 0, -EBADMSG or -ENOMEM and a sentence.
 * 0: it is read. Else -EBADMSG, -ENOMEM, or -EBUSY while one is under way (without a cb it is then
 * read again after that), with a sentence in text. On failure everything is as it was. */
int reload_begin(struct loop *l, void (*cb)(void *ctx, int error, const char *text), void *ctx,
                 char *text, size_t size);
void reload_free(struct loop *l); /* what is under way, without its callback */
/* Says which settings belong to no server. */
void reload_note_unused(const struct config *c);
/* Frees the servers that are configured no longer and have ended. Not from a server's callback. */
void reload_sweep(struct loop *l);
