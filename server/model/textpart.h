/*
 * The text part of a model that also sees or hears: its tensors have a prefix (of its configuration
 * common/textpart.h). Here they become those of a text model; the rest is not loaded.
 */
#pragma once

#include <stdbool.h>

struct st_set;

/* Gives the tensors of the text part the names that they have in a text model and marks all others
 * but classes (score.) as used; *ret_head: whether the output layer has one of its own. The set
 * must be sorted again. -ENOMEM. */
int text_part_tensors(struct st_set *s, bool *ret_head);
