/*
 * The terminal while a live picture is on it: alternate screen, keys without Enter. It is put back
 * as it was on every way out, also by signals; its size is asked anew each time, so a resize needs
 * nothing more than the next picture.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <termios.h>

struct terminal {
    struct termios before;
    bool raw;
};

/* Keys that are no byte of their own. KEY_END: the input is over or a signal says to end. */
enum { KEY_NONE = -1, KEY_END = -2, KEY_UP = -3, KEY_DOWN = -4 };

void terminal_enter(struct terminal *t);
void terminal_leave(const struct terminal *t);
/* Columns of the terminal that stdout is; 0: it is none, or too narrow to fit anything. */
uint32_t terminal_cols(void);
/* 24 x 80 where it cannot be asked. */
void terminal_size(uint32_t *ret_rows, uint32_t *ret_cols);
/* The next key within so many ms, or KEY_NONE; also when the window changed. */
int terminal_key(int timeout_ms);
