/*
 * What a server is started with: its command line and what is added to the environment, after what
 * the configuration says and what running out of memory taught. Reads nothing but evenkeeld's own
 * environment.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "supervisor/io/key.h"
#include "supervisor/law/remedy.h"

struct ek_strings;
struct server_config;
struct trial;

#define COMMAND_LINE_ALLOC 3 /* names that PyTorch has had for its allocator's settings */

struct command_line {
    char **argv, **env; /* env: a list of the configuration's texts, and those below */
    char *alloc[COMMAND_LINE_ALLOC];
    struct remedy_settings file, running; /* of the file alone; what it is started with */
    char devices[96], key[KEY_MOST + 64], limits[160];
};

/* 0 or -ENOMEM; then *w is empty. Ended by command_line_done() before the configuration. */
int command_line_make(const struct server_config *c, const struct trial *trial,
                      const struct remedy_settings *caps, struct command_line *w);
void command_line_done(struct command_line *w);
/* Adds the API key to the environment, under the name that the engine reads. */
void command_line_add_key(struct command_line *w, const char *name, const char *key);
/* Adds live limits that hold from the start ("name=value,..."); "" adds nothing. */
void command_line_add_limits(struct command_line *w, const char *limits);
/* Whether expandable segments are on or off is not evenkeeld's to choose: the operator has said so,
 * either way, or a flag rules them out. */
bool command_line_segments_settled(const struct server_config *c);
/* "cannot run PROGRAM", and where to name another one if it is an engine's command that PATH lacks.
 * error: of child_find_program(); what it means is not in the text. */
void command_line_cannot_run(const struct server_config *c, const char *program, int error,
                             char *ret_text, size_t size);
