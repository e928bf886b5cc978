/*
 * Cached blocks in a file, from one run to the next (warm.h has what is in the list).
 *
 *   head      what it is of, how many blocks, where the index is; with its sum
 *   contents  of each block in order of the list, with the recurrent state behind it where it has
 *             a snapshot of that; a sum of each is in the index
 *   index     per block owner, parent and sum; then all tokens; its sum is in the head
 *
 * The head is written last and the file gets its name last: what was cut short is no file. It is
 * for its owner alone (0600), not synced (what a power cut leaves of it has a wrong sum), and used
 * once: opening it removes its name, so that no start fails twice for it. Whatever is wrong
 * with it, blocks are computed as if it were not there.
 *
 * Any thread; nothing here knows of a scheduler or a device.
 */
#pragma once

#include <stdint.h>

#include "server/engine/cache_about.h"
#include "server/engine/warm.h"

struct ek_fault;

/* Fills a block's content and, behind it, its state's; 0 or a code. Not 0 ends the file before that
 * block. */
typedef int (*warm_read_fn)(void *ctx, const struct warm_block *b, void *to);

/* Writes as many blocks of the list as `read` gives. 0, or an errno: then there is no file. */
int warm_file_write(const char *path, const struct warm_about *about, const struct warm_list *l,
                    warm_read_fn read, void *ctx, uint32_t *ret_blocks, uint64_t *ret_bytes);

/* How large a file may be there: `most`, or half of what the disk has free if that is less. */
uint64_t warm_file_room(const char *path, uint64_t most);
/* What a block takes in the file beside its content. */
uint64_t warm_file_row_bytes(uint32_t block_size);

/* Removes it, and what a write that was killed left of one. */
void warm_file_forget(const char *path);

struct warm_file;
/* -ENOENT when there is none. -EBADMSG with a fault when it is damaged, of something else, or not
 * this user's alone. The file has no name any more, in all cases. */
int warm_file_open(const char *path, const struct warm_about *about, struct warm_file **ret_file,
                   struct ek_fault *fault);
const struct warm_list *warm_file_list(const struct warm_file *f);
const uint8_t *warm_file_secret(const struct warm_file *f);
uint64_t warm_file_bytes(const struct warm_file *f);
/* The content of the i-th, and its state's behind it: -EBADMSG when it is damaged, or another
 * errno. */
int warm_file_read(struct warm_file *f, uint32_t i, void *to);
void warm_file_close(struct warm_file *f); /* accepts NULL */
