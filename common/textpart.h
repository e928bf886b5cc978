/*
 * The configuration of a model that also sees or hears, as that of its text part. evenkeel-server
 * loads the text part alone, and evenkeelctl plans it. Pure.
 */
#pragma once

#include <jansson.h>

/* The configuration of the text part of `root`, which the caller owns: an object with the keys of
 * text_config, or those of root where it has none, and `architectures` of a text model. 0 with NULL
 * when root is of a text model, or of one whose text part is not known. -ENOMEM. */
int ek_text_part(const json_t *root, json_t **ret_config);
