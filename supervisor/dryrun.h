/*
 * evenkeeld --dry-run: for each server what would be started, with what, and whether the machine
 * has what that needs. Starts nothing but evenkeel-server --dry-run, which prints its memory plan.
 */
#pragma once

struct config;

/* Prints to stdout. An exit code: 0, 75 when a plan does not fit, 78 when something else lacks. */
int dryrun(const struct config *c);
