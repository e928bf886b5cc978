/*
 * The API key that a server asks for: evenkeeld's own requests (readiness, canary, names) carry it,
 * and a vLLM that evenkeeld starts gets it in its environment, where no process list shows it.
 *
 * The file holds the key in its first line that is neither empty nor a comment; in lines of several
 * words, as evenkeel-server's key files have them (NAME KEY ...), it is the second. A file called
 * *.yaml is one of flags, as a vLLM reads it by --config; the key is the word behind `api-key:`.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define KEY_MOST 257 /* with its end */

/* A name without a slash is a credential of the unit that evenkeeld runs in. Writes the key, or
 * "" when path is NULL. 0; -ENOENT and such; -EBADMSG when there is no key in it that can be sent;
 * -EFBIG. */
int key_read(const char *path, char *ret_key, size_t size);
/* A file of flags that has the key: a path, *.yaml or *.yml. NULL is none. */
bool key_in_flags(const char *path);
/* The same as key_read() from such a file's bytes, and from another's. */
int key_parse_flags(const char *text, char *ret_key, size_t size);
int key_parse(const char *text, char *ret_key, size_t size);
