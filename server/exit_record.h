/*
 * exit.json: why the server ended, for evenkeeld and for people. Written on every end but a kill.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct exit_record {
    char path[512]; /* "" = nowhere to write */
    uint64_t started_wall_us;
    bool started_by_mpi; /* evenkeeld's child is what started this one */
};

/* Where it goes: DIR/exit.json, else beside the control socket, else nowhere. Removes an old one.
 */
void exit_record_open(struct exit_record *n, const char *state_dir, const char *control_socket);
/* A word for a code: "ok", "usage", "device_oom_start", ... */
const char *exit_record_class(int code);
/* Replaces the file in one step. numbers: the inside of a JSON object, or "". */
void exit_record_write(const struct exit_record *n, int code, const char *why, const char *numbers);
