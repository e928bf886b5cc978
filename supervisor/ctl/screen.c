/*
 * The rows and columns under the picture of `evenkeelctl top`: board_show.c and board_detail.c
 * write, verb_top.c sends the buffer to the terminal. A line is cut by the columns that it takes,
 * so escape sequences and the later bytes of a UTF-8 character count as none.
 */
#include "supervisor/ctl/screen.h"

#include <math.h>
#include <string.h>

#define LEVELS 8

void screen_colour(struct screen *s, const char *code)
{
    if (s->colour)
        (void)ek_buf_printf(&s->line, "\033[%sm", code);
}

uint32_t screen_left(const struct screen *s)
{
    return s->rows == 0 ? UINT32_MAX : s->used < s->rows ? s->rows - s->used : 0;
}

/* Bytes of the escape sequence at p, 0 if there is none. */
static size_t escape_at(const char *p, size_t left)
{
    size_t n = 0;
    if (left == 0 || p[0] != '\033')
        return 0;
    while (n < left && p[n] != 'm')
        n++;
    return n < left ? n + 1 : n;
}

static bool is_tail(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

void screen_column(struct screen *s, uint32_t column)
{
    uint32_t cols = 0;
    for (size_t i = 0; i < s->line.len;) {
        size_t n = escape_at(s->line.data + i, s->line.len - i);
        cols += n == 0 && !is_tail(s->line.data[i]);
        i += n ? n : 1;
    }
    (void)ek_buf_printf(&s->line, "%*s", cols < column ? (int)(column - cols) : 1, "");
}

void screen_end_line(struct screen *s)
{
    const char *p = s->line.data ? s->line.data : "";
    uint32_t cols = 0;
    bool room = s->rows == 0 || s->used < s->rows;
    for (size_t i = 0; room && i < s->line.len;) {
        size_t n = escape_at(p + i, s->line.len - i);
        if (n > 0) {
            (void)ek_buf_add(s->out, p + i, n);
            i += n;
            continue;
        }
        cols += !is_tail(p[i]);
        if (cols <= s->cols)
            (void)ek_buf_add(s->out, p + i, 1);
        i++;
    }
    if (room) {
        bool last = s->rows && s->used + 1 == s->rows;
        (void)ek_buf_puts(s->out, !s->rows ? "\n" : last ? "\033[K" : "\033[K\r\n");
    }
    s->used++;
    if (s->line.failed)
        s->out->failed = true;
    ek_buf_clear(&s->line);
}

void screen_spark(struct screen *s, const float *value, uint32_t count, double most)
{
    static const char *const blocks[LEVELS] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char ascii[] = "_.,-=+*#";
    bool largest = most <= 0;
    for (uint32_t i = 0; largest && i < count; i++)
        most = fmax(most, isfinite(value[i]) ? (double)value[i] : 0);
    for (uint32_t i = 0; i < count; i++) {
        double part = most > 0 ? (double)value[i] / most : 0;
        if (!isfinite(value[i])) {
            (void)ek_buf_puts(&s->line, " ");
            continue;
        }
        int level = (int)(fmin(fmax(part, 0), 1) * LEVELS);
        level = level < LEVELS ? level : LEVELS - 1;
        if (s->utf8)
            (void)ek_buf_puts(&s->line, blocks[level]);
        else
            (void)ek_buf_add(&s->line, &ascii[level], 1);
    }
}

void screen_done(struct screen *s)
{
    ek_buf_done(&s->line);
}
