/*
 * exit.json: why the server ended, for evenkeeld and for people. Written on every end but a kill.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct note {
    char path[512]; /* "" = nowhere to write */
    uint64_t started_wall_us;
    bool started_by_mpi; /* evenkeeld's child is what started this one */
};

/* Where it goes: DIR/exit.json, else beside the control socket, else nowhere. Removes an old one.
 */
void note_open(struct note *n, const char *state_dir, const char *control_socket);
/* A word for a code: "ok", "usage", "device_oom_start", ... */
const char *note_class(int code);
/* Replaces the file in one step. numbers: the inside of a JSON object, or "". */
void note_write(const struct note *n, int code, const char *why, const char *numbers);
