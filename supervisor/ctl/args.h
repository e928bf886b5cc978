/*
 * evenkeelctl's command line, see args_help(). Options may stand before or after the command.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "supervisor/ctl/exits.h"

struct ek_buf;
struct ek_fault;

enum ctl_command {
    CMD_HELP,
    CMD_VERSION,
    CMD_STATUS,
    CMD_LIMITS_GET,
    CMD_LIMITS_SET,
    CMD_LIMITS_PIN,
    CMD_LIMITS_UNPIN,
    CMD_DRAIN,
    CMD_RESUME,
    CMD_RESTART,
    CMD_ROLL,
    CMD_ENGINE_RESTART,
    CMD_ENGINE_RELEASE,
    CMD_ENGINE_ACQUIRE,
    CMD_EXPLAIN,
    CMD_RELOAD,
};

enum { CTL_SEQS, CTL_TOKENS, CTL_KNOBS };

struct ctl_args {
    enum ctl_command command;
    const char *topic;  /* of help: a command; NULL = all */
    const char *socket; /* NULL = look for it */
    const char *server; /* NULL = the only one, or all */
    const char *reason;
    bool json, pin, wait;
    uint32_t timeout_s; /* of wait */
    uint32_t count;     /* decisions to show */
    const char *since;  /* NULL = none */
    uint64_t since_s;   /* since 1970 */
    struct {
        bool named;
        uint32_t value; /* 0 = none given */
    } knob[CTL_KNOBS];
};

/* Strings point into argv. Returns 0, or -EBADMSG with fault. */
int args_parse(int argc, char *const *argv, struct ctl_args *ret_args, struct ek_fault *fault);
/* A summary, or with `topic` (NULL = none) the help of that command if there is one. */
void args_help(const char *topic, struct ek_buf *out);

/* The table of small commands and the options that they share, for help and completion. */
struct args_command {
    const char *word, *sub; /* sub NULL = none */
    const char *takes;      /* what stands behind it, "NAME=N...", NULL = nothing */
    const char *about;
    enum ctl_command command;
    uint32_t options; /* of its own: a bit of each, besides those that all have */
    bool takes_knobs, needs_value;
    const char *help; /* a paragraph, NULL = none */
};
struct args_option {
    const char *name;
    char letter;       /* 0 = none */
    const char *takes; /* "NAME", NULL = no value */
    const char *about; /* lines separated by \n */
};
const struct args_command *args_command_at(uint32_t i); /* NULL behind the last */
const struct args_option *args_option_at(uint32_t i);
const char *args_knob(int knob); /* "max_num_running_seqs" */
