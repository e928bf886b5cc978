/*
 * config.json and generation_config.json as plain numbers, in the spellings of transformers 4 and
 * 5 (torch_dtype or dtype, rope_theta and rope_scaling or rope_parameters). Every number is
 * checked against bounds, so that no product of them overflows. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/model/json.h"
#include "server/model/parameters.h"

/* Reads the text of config.json; an architecture that is not supported is named, with the list of
 * those that are. -EBADMSG with a fault (field and remedy), -ENOMEM. */
int config_parse(const char *text, size_t len, struct model_config *ret_config,
                 struct ek_fault *fault);
/* Reads the text of generation_config.json: what it sets, and its end-of-text tokens before those
 * of `config`. Codes as above. */
int config_parse_generation(const char *text, size_t len, struct model_config *config,
                            struct model_defaults *ret_defaults, struct ek_fault *fault);
struct model_defaults config_no_defaults(void);
