/*
 * Raw keys, size and alternate screen for `evenkeelctl top`; the other verbs only ask for the
 * width. The handler of signals sets a flag and no more: verb_top.c sees it when terminal_key()
 * returns and leaves the terminal as it was.
 */
#include "supervisor/ctl/terminal.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define COLS_LEAST 40

static volatile sig_atomic_t g_signal; /* a signal that ends it has come */

static void on_signal(int number)
{
    if (number != SIGWINCH) /* that one only ends the wait */
        g_signal = number;
}

void terminal_enter(struct terminal *t)
{
    struct sigaction act = {.sa_handler = on_signal};
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        (void)sigaction(numbers[i], &act, NULL); /* valid numbers: cannot fail */
    t->raw = tcgetattr(STDIN_FILENO, &t->before) == 0;
    if (t->raw) {
        struct termios now = t->before;
        now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        now.c_cc[VMIN] = 0;
        now.c_cc[VTIME] = 0;
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &now); /* if not, keys need Enter */
    }
    (void)fputs("\033[?1049h\033[?25l\033[2J", stdout);
    (void)fflush(stdout);
}

void terminal_leave(const struct terminal *t)
{
    (void)fputs("\033[?25h\033[?1049l", stdout);
    (void)fflush(stdout);
    if (t->raw)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &t->before); /* nothing left to try */
}

void terminal_size(uint32_t *ret_rows, uint32_t *ret_cols)
{
    struct winsize w = {0};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_row == 0 || w.ws_col == 0)
        w = (struct winsize){.ws_row = 24, .ws_col = 80};
    *ret_rows = w.ws_row;
    *ret_cols = w.ws_col;
}

uint32_t terminal_cols(void)
{
    struct winsize w = {0};
    if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) < 0)
        return 0;
    return w.ws_col >= COLS_LEAST ? w.ws_col : 0;
}

int terminal_key(int timeout_ms)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    int n = g_signal ? 0 : poll(&in, 1, timeout_ms);
    char keys[3];
    if (g_signal)
        return KEY_END;
    if (n <= 0)
        return KEY_NONE;
    if (read(STDIN_FILENO, keys, 1) != 1 || keys[0] == 4) /* closed, or Ctrl-D */
        return KEY_END;
    if (keys[0] != '\033')
        return (unsigned char)keys[0];
    if (poll(&in, 1, 20) <= 0 || read(STDIN_FILENO, keys, 2) != 2 || keys[0] != '[')
        return KEY_NONE;
    return keys[1] == 'A' ? KEY_UP : keys[1] == 'B' ? KEY_DOWN : KEY_NONE;
}
