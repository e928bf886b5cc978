/*
 * Rows of law/shares.h as JSON (api.c) and as HTML (page_server.c). The JSON has names only where
 * its caller says that they may be shown; the page never has them.
 */
#include "supervisor/web/key_table.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "supervisor/law/shares.h"
#include "supervisor/servers/fleet.h"
#include "supervisor/servers/server.h"

#define PREFIX "/api/v1/servers/"
#define SHOWN  12u /* rows on the page */

static uint32_t rows_of(const struct server *s, struct share rows[KEYS_MOST])
{
    return s->watch.shares ? shares_rows(s->watch.shares, rows) : 0;
}

static void put_key(const struct share *k, bool names, struct ek_buf *out)
{
    (void)ek_buf_printf(out, "{\"number\":%u,", k->number);
    if (names) {
        (void)ek_buf_puts(out, "\"name\":\"");
        (void)ek_buf_json(out, k->key->name, strlen(k->key->name));
        (void)ek_buf_puts(out, "\",");
    }
    (void)ek_buf_printf(out,
                        "\"weight\":%g,\"share\":%.4f,\"due\":%.4f,\"tokens_per_s\":%.1f,"
                        "\"running\":%.0f,\"waiting\":%.0f,\"ahead_tokens\":%.0f,\"held\":%s}",
                        k->key->weight, k->part, k->due, k->tokens_per_s, k->running, k->waiting,
                        k->key->ahead, k->held ? "true" : "false");
}

/* What there is to say of keys. False and an empty text: nothing. */
static bool say_why(const struct server *s, bool names, char *ret_text, size_t size)
{
    char share[240] = "";

    ret_text[0] = '\0';
    if (!s->watch.shares)
        return false;
    bool poison = shares_poison_why(s->watch.shares, names, ret_text, size);
    size_t len = strlen(ret_text);
    if (shares_why(s->watch.shares, names, share, sizeof(share)))
        (void)snprintf(ret_text + len, size - len, "%s%s", poison ? "; " : "", share);
    return ret_text[0] != '\0';
}

void key_table_json(const struct server *s, bool names, struct ek_buf *out)
{
    struct share rows[KEYS_MOST];
    char why[440];
    uint32_t count = rows_of(s, rows);
    (void)ek_buf_puts(out, "\"keys\":[");
    for (uint32_t i = 0; i < count; i++) {
        (void)ek_buf_puts(out, i ? "," : "");
        put_key(&rows[i], names, out);
    }
    (void)ek_buf_puts(out, "],\"keys_why\":");
    if (say_why(s, names, why, sizeof(why))) {
        (void)ek_buf_puts(out, "\"");
        (void)ek_buf_json(out, why, strlen(why));
        (void)ek_buf_puts(out, "\"");
    } else {
        (void)ek_buf_puts(out, "null");
    }
}

int key_table_read(const struct fleet *all, const char *path, struct ek_buf *out)
{
    if (strncmp(path, PREFIX, sizeof(PREFIX) - 1) != 0)
        return 0;
    path += sizeof(PREFIX) - 1;
    for (uint32_t i = 0; i < all->count; i++) {
        const struct server *s = all->servers[i];
        size_t len = strlen(s->config->name);
        if (strncmp(path, s->config->name, len) != 0 || strcmp(path + len, "/keys") != 0)
            continue;
        (void)ek_buf_puts(out, "{");
        key_table_json(s, true, out);
        (void)ek_buf_puts(out, "}");
        return ek_buf_ok(out) ? 200 : -ENOMEM;
    }
    return 0;
}

/* `of`: what stands before it where the head of the table is not shown. */
static void put_figure(struct ek_buf *out, const char *of, double value, const char *unit)
{
    (void)ek_buf_printf(out, "<td class=\"figure\" data-of=\"%s\">%.0f%s</td>", of, value, unit);
}

static void put_row(const struct share *k, struct ek_buf *out)
{
    (void)ek_buf_printf(out, "<tr%s><td class=\"what\"><b>key %u</b></td>",
                        k->held ? " data-held" : "", k->number);
    put_figure(out, "share", 100 * k->part, " %");
    put_figure(out, "due", 100 * k->due, " %");
    put_figure(out, "tokens/s", k->tokens_per_s, "");
    put_figure(out, "runs", k->running, "");
    put_figure(out, "waits", k->waiting, "");
    (void)ek_buf_puts(out, "<td>");
    if (k->held)
        (void)ek_buf_printf(out, "%.0f tokens ahead", k->key->ahead);
    (void)ek_buf_puts(out, "</td></tr>\n");
}

void key_table_page(const struct server *s, struct ek_buf *out)
{
    struct share rows[KEYS_MOST];
    char why[440] = "";
    uint32_t count = rows_of(s, rows);
    (void)ek_buf_printf(out,
                        "<div class=\"keys\"%s><h3>API keys, the last minute</h3><p "
                        "class=\"keys-why\" data-k=\"keys_why\">",
                        count ? "" : " hidden");
    if (say_why(s, false, why, sizeof(why)))
        (void)ek_buf_puts(out, why); /* without names: words and numbers */
    (void)ek_buf_puts(out, "</p><table><thead><tr><th>Key</th><th class=\"figure\">Share</th>"
                           "<th class=\"figure\">By weight</th><th class=\"figure\">Tokens/s</th>"
                           "<th class=\"figure\">Running</th><th class=\"figure\">Waiting</th>"
                           "<th>Held back</th></tr></thead><tbody class=\"keys-of\">\n");
    for (uint32_t i = 0; i < count && i < SHOWN; i++)
        put_row(&rows[i], out);
    (void)ek_buf_puts(out, "</tbody></table></div>\n");
}
