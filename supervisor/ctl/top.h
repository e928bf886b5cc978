/*
 * `evenkeelctl top`: asks every second and draws in place until q, Ctrl-C or the end of input.
 */
#pragma once

#include <stdbool.h>

struct api;

/* Returns an exit code. once, or no terminal: one picture as plain lines. */
int top_run(struct api *a, const char *server, bool once);
