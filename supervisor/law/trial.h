/*
 * Settings that an operator tries for a while (`evenkeelctl bench-fit --restart`, `recover`): flags
 * behind those of the configuration, from a restart that names them until one that does not. Only
 * what changes memory and speed can be tried. Not kept: another evenkeeld begins without. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct remedy_settings;

struct trial {
    double share;          /* --gpu-memory-utilization, 0 = as configured */
    uint32_t seqs, tokens; /* --max-num-seqs, --max-num-batched-tokens, 0 = as configured */
    uint32_t block_size;   /* --block-size, 0 = as configured */
    char dtype[16];        /* --dtype, "" = as configured */
    bool at_most;          /* share, seqs and tokens only where what it has is not lower */
};

/* The body of POST .../restart: empty, or {"trial": {"gpu_memory_utilization", "max_num_seqs",
 * "max_num_batched_tokens", "block_size", "dtype", "at_most"}}. 0, or -EBADMSG with a sentence and
 * the field. */
int trial_parse(const char *body, size_t len, struct trial *ret_trial, char *text, size_t size,
                const char **ret_field);
/* Whether nothing is tried. */
bool trial_is_none(const struct trial *t);
/* The trial without what is only a bound and not below what the server has (0 = not known, which
 * bounds nothing): a cap is the most, never the value. */
struct trial trial_within(const struct trial *t, const struct remedy_settings *has);
/* argv with the trial's flags behind it; free with remedy_free(). 0 or -ENOMEM. */
int trial_argv(const struct trial *t, char *const *argv, char ***ret_argv);
