/*
 * Fills page.html for status.c, and escapes text for all files that write HTML. Placeholders are
 * replaced in one pass over the file; the sections of the servers come from page_server.c.
 */
#include "supervisor/web/page.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/buf.h"
#include "common/clock.h"
#include "supervisor/law/reasons.h"
#include "supervisor/servers/fleet.h"
#include "supervisor/web/api.h"
#include "supervisor/web/page_server.h"

/* The file as it is, with a NUL after it; the build runs in the root of the tree. */
__asm__(".section .rodata\n"
        ".global page_html\n"
        "page_html:\n"
        ".incbin \"supervisor/web/page.html\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char page_html[];

int page_escape(struct ek_buf *out, const char *text)
{
    const char *end = text + strlen(text);
    for (size_t n; text < end; text += n) {
        n = ek_utf8_len((const unsigned char *)text, (size_t)(end - text));
        bool blank = *text == '\n' || *text == '\t';
        if (n == 0 ||
            (!blank && ek_text_control(text) > 0)) { /* text of a server may be any bytes */
            n = n > 0 ? n : 1;
            (void)ek_buf_puts(out, "\xEF\xBF\xBD");
            continue;
        }
        switch (*text) {
        case '&': (void)ek_buf_puts(out, "&amp;"); break;
        case '<': (void)ek_buf_puts(out, "&lt;"); break;
        case '>': (void)ek_buf_puts(out, "&gt;"); break;
        case '"': (void)ek_buf_puts(out, "&quot;"); break;
        case '\'': (void)ek_buf_puts(out, "&#39;"); break;
        default: (void)ek_buf_add(out, text, n);
        }
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

static void put_date(struct ek_buf *out, uint64_t wall_us)
{
    char text[64];
    struct tm tm;
    time_t t = (time_t)(wall_us / EK_US_PER_S);
    if (gmtime_r(&t, &tm) && strftime(text, sizeof(text), "%Y-%m-%d %T UTC", &tm) > 0)
        (void)ek_buf_puts(out, text);
}

/* `words` in back quotes are what is typed. */
static void put_hint(struct ek_buf *out, const struct fleet *all)
{
    struct ek_buf hint = {0}, text = {0};
    api_hint(all, &hint);
    (void)page_escape(&text, hint.data ? hint.data : "");
    (void)ek_buf_puts(out, "<section class=\"server first\"><h2>Nothing to serve yet</h2><p>");
    bool in = false;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] == '`')
            (void)ek_buf_puts(out, (in = !in) ? "<code>" : "</code>");
        else
            (void)ek_buf_add(out, text.data + i, 1);
    }
    (void)ek_buf_puts(out, "</p><p>Or let <code>evenkeelctl setup --model DIR</code> look at the "
                           "model and this machine and write the file. This page shows the server "
                           "as soon as it is there.</p></section>\n");
    ek_buf_done(&text);
    ek_buf_done(&hint);
}

static void put_place(struct ek_buf *out, const struct fleet *all, const char *name, size_t len,
                      const char *nonce)
{
    if (len == 5 && memcmp(name, "nonce", len) == 0) {
        (void)ek_buf_puts(out, nonce);
    } else if (len == 7 && memcmp(name, "version", len) == 0) {
        (void)ek_buf_puts(out, EK_VERSION);
    } else if (len == 7 && memcmp(name, "colours", len) == 0) {
        (void)reasons_style(out); /* page_write() looks at the buffer */
    } else if (len == 5 && memcmp(name, "marks", len) == 0) {
        (void)reasons_marks(out); /* so it does */
    } else if (len == 4 && memcmp(name, "time", len) == 0) {
        put_date(out, ek_wall_us());
    } else if (len == 7 && memcmp(name, "servers", len) == 0) {
        if (all->count == 0)
            put_hint(out, all);
        if (all->count > 1)
            page_overview(out, all->servers, all->count);
        /* One is open; of several, those that are opened. */
        for (uint32_t i = 0; i < all->count; i++)
            page_server(out, all->servers[i], all->count == 1);
    }
}

int page_write(const struct fleet *all, const char *nonce, struct ek_buf *out)
{
    for (const char *at = page_html;;) {
        const char *open = strstr(at, "{{"), *close = open ? strstr(open, "}}") : NULL;
        if (!close) {
            (void)ek_buf_puts(out, at);
            return ek_buf_ok(out) ? 0 : -ENOMEM;
        }
        (void)ek_buf_add(out, at, (size_t)(open - at));
        put_place(out, all, open + 2, (size_t)(close - open - 2), nonce);
        at = close + 2;
    }
}
