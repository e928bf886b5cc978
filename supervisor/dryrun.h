/*
 * evenkeeld --dry-run: for each server what would be started, with what, and whether the machine
 * has what that needs. Starts nothing but evenkeel-server --dry-run, which prints its memory plan.
 */
#pragma once

struct config;
struct server_config;

/* Prints to stdout. An exit code: 0, 75 when a plan does not fit, 78 when something else lacks. */
int dryrun(const struct config *c);
/* Whether evenkeel-server takes a server's flags and file, which it is asked; prints when not. 0 or
 * 78; of other programs it is not known. */
int dryrun_flags(const struct server_config *s);
