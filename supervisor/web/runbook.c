/*
 * A very small Markdown to HTML, for one file that is built in; status.c serves it at the path that
 * the alerts link to. Everything is escaped first, and what is no known form is a paragraph, so
 * that a mistake in the file shows as text and not as a broken page.
 */
#include "supervisor/web/runbook.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "common/buf.h"
#include "supervisor/web/page.h"

/* The file as it is, with a NUL after it; the build runs in the root of the tree. */
__asm__(".section .rodata\n"
        ".global runbook_md\n"
        "runbook_md:\n"
        ".incbin \"docs/runbook.md\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char runbook_md[];

static const char head[] =
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta name=\"color-scheme\" content=\"dark light\">\n<title>Evenkeel: runbook</title>\n"
    "<link rel=\"icon\" href=\"data:,\">\n<style nonce=\"";
static const char style[] =
    "\">\n:root { --bg: #f6f7f9; --card: #fff; --ink: #16202b; --soft: #5d6b7a; --line: #dfe4ea; "
    "--blue: #1f6feb; }\n"
    "@media (prefers-color-scheme: dark) { :root { --bg: #0c1117; --card: #141b24; --ink: #e4eaf1; "
    "--soft: #93a1b1; --line: #243040; --blue: #58a6ff; } }\n"
    "body { margin: 0; background: var(--bg); color: var(--ink); font: 15px/1.55 system-ui, "
    "-apple-system, \"Segoe UI\", Roboto, sans-serif; }\n"
    "main { max-width: 820px; margin: 0 auto; padding: 18px 20px 60vh; }\n"
    "a { color: var(--blue); text-decoration: none; } a:hover { text-decoration: underline; }\n"
    "h1 { font-size: 22px; } h2 { font-size: 18px; margin: 34px 0 6px; padding-top: 10px; "
    "border-top: 1px solid var(--line); }\n"
    "h2:target { border-top: 3px solid var(--blue); }\n"
    "code, pre { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }\n"
    "pre { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: "
    "10px 14px; overflow-x: auto; }\n"
    "nav { color: var(--soft); font-size: 13px; }\n</style>\n</head>\n<body>\n<main>\n"
    "<nav><a href=\"/\">Status</a></nav>\n";
static const char end[] = "</main>\n</body>\n</html>\n";

static void put_escaped(struct ek_buf *out, const char *s, size_t len)
{
    char one[2] = "";
    for (size_t i = 0; i < len; i++) {
        one[0] = s[i];
        (void)page_escape(out, one); /* what fails is kept in the buffer */
    }
}

/* [words](target): the length of it, 0 = it is none. */
static size_t find_link(const char *s, size_t len, size_t *ret_words)
{
    const char *close = memchr(s, ']', len);
    size_t words = close ? (size_t)(close - s) : 0;
    if (!close || words + 1 >= len || close[1] != '(')
        return 0;
    const char *stop = memchr(close, ')', len - words);
    if (!stop)
        return 0;
    *ret_words = words - 1;
    return (size_t)(stop - s) + 1;
}

/* A line with `code` and links. */
static void put_words(struct ek_buf *out, const char *s, size_t len)
{
    for (size_t at = 0, words = 0, n; at < len; at += n) {
        const char *stop = s[at] == '`' ? memchr(s + at + 1, '`', len - at - 1) : NULL;
        n = 1;
        if (stop) {
            n = (size_t)(stop - (s + at)) + 1;
            (void)ek_buf_puts(out, "<code>");
            put_escaped(out, s + at + 1, n - 2);
            (void)ek_buf_puts(out, "</code>");
        } else if (s[at] == '[' && (n = find_link(s + at, len - at, &words)) > 0) {
            put_escaped(out, s + at + 1, words);
        } else {
            n = 1;
            put_escaped(out, s + at, 1);
        }
    }
}

/* <h2 id="words">Words</h2>, the id as the alerts' links have it: small letters. */
static void put_heading(struct ek_buf *out, const char *s, size_t len)
{
    size_t level = 0;
    while (level < len && level < 6 && s[level] == '#')
        level++;
    size_t from = level;
    while (from < len && s[from] == ' ')
        from++;
    (void)ek_buf_printf(out, "<h%zu id=\"", level);
    for (size_t i = from; i < len; i++) {
        char c = s[i] >= 'A' && s[i] <= 'Z' ? (char)(s[i] + 32) : s[i] == ' ' ? '-' : s[i];
        put_escaped(out, &c, 1);
    }
    (void)ek_buf_puts(out, "\">");
    put_words(out, s + from, len - from);
    (void)ek_buf_printf(out, "</h%zu>\n", level);
}

void runbook_body(const char *text, struct ek_buf *out)
{
    bool block = false, paragraph = false;
    while (*text) {
        size_t len = strcspn(text, "\n");
        bool fence = len >= 3 && memcmp(text, "```", 3) == 0;
        bool words = !block && !fence && len > 0 && text[0] != '#';
        if (paragraph && !words)
            (void)ek_buf_puts(out, "</p>\n");
        if (fence) {
            (void)ek_buf_puts(out, block ? "</pre>\n" : "<pre>");
            block = !block;
        } else if (block) {
            put_escaped(out, text, len);
            (void)ek_buf_puts(out, "\n");
        } else if (words) {
            (void)ek_buf_puts(out, paragraph ? "\n" : "<p>");
            put_words(out, text, len);
        } else if (len > 0) {
            put_heading(out, text, len);
        }
        paragraph = words;
        text += len + (text[len] == '\n');
    }
    (void)ek_buf_puts(out, block ? "</pre>\n" : paragraph ? "</p>\n" : "");
}

int runbook_write(const char *nonce, struct ek_buf *out)
{
    (void)ek_buf_puts(out, head);
    (void)ek_buf_puts(out, nonce);
    (void)ek_buf_puts(out, style);
    runbook_body(runbook_md, out);
    (void)ek_buf_puts(out, end);
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
