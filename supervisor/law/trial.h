/*
 * Settings that an operator tries for a while (`evenkeelctl bench-fit --restart`): flags behind
 * those of the configuration, from a restart that names them until one that does not. Only what
 * changes memory and speed can be tried. Not kept: another evenkeeld begins without. Pure.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct trial {
    double share;        /* --gpu-memory-utilization, 0 = as configured */
    uint32_t block_size; /* --block-size, 0 = as configured */
    char dtype[16];      /* --dtype, "" = as configured */
};

/* The body of POST .../restart: empty, or {"trial": {"gpu_memory_utilization", "block_size",
 * "dtype"}}. 0, or -EBADMSG with a sentence and the field. */
int trial_parse(const char *body, size_t len, struct trial *ret_trial, char *text, size_t size,
                const char **ret_field);
/* argv with the trial's flags behind it; free with remedy_free(). 0 or -ENOMEM. */
int trial_argv(const struct trial *t, char *const *argv, char ***ret_argv);
