/* The pages for people, see pages.h. Read-only once made: any thread may send them. */
#include "server/net/pages.h"

#include <errno.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/net/request.h"
#include "server/net/send.h"
#include "server/net/state.h"

/* The files as they are, with a NUL after each; the build runs in the root of the tree. */
__asm__(".section .rodata\n"
        ".global pages_chat_html\n"
        "pages_chat_html:\n"
        ".incbin \"server/net/chat.html\"\n"
        ".byte 0\n"
        ".global pages_docs_html\n"
        "pages_docs_html:\n"
        ".incbin \"server/net/docs.html\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char pages_chat_html[], pages_docs_html[];

enum which { PAGE_CHAT, PAGE_DOCS, PAGES };

#define DIGEST      32u /* bytes of a SHA-256 */
#define DIGEST_TEXT 48u /* in base64, with its NUL; it takes 45 */

struct pages {
    struct page {
        const char *text;
        size_t len;
        char etag[DIGEST_TEXT + 2]; /* with its quotes */
        char policy[384];           /* Content-Security-Policy */
    } page[PAGES];
};

static int hash(const char *text, size_t len, char ret[DIGEST_TEXT])
{
    unsigned char digest[DIGEST];
    const gnutls_datum_t raw = {digest, sizeof(digest)};
    gnutls_datum_t text64 = {0};
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, text, len, digest) < 0)
        return -EIO;
    if (gnutls_base64_encode2(&raw, &text64) < 0)
        return -ENOMEM;
    (void)snprintf(ret, DIGEST_TEXT, "%s", (const char *)text64.data);
    gnutls_free(text64.data);
    return 0;
}

/* Of what stands between two tags, each of which a page has once. */
static int hash_inside(const char *page, const char *open, const char *close, char ret[DIGEST_TEXT])
{
    const char *from = strstr(page, open) + strlen(open);
    return hash(from, (size_t)(strstr(from, close) - from), ret);
}

static int page_init(struct page *p, const char *text)
{
    char all[DIGEST_TEXT], script[DIGEST_TEXT], style[DIGEST_TEXT];
    p->text = text;
    p->len = strlen(text);
    int r = hash(text, p->len, all);
    if (r == 0)
        r = hash_inside(text, "<script>", "</script>", script);
    if (r == 0)
        r = hash_inside(text, "<style>", "</style>", style);
    if (r < 0)
        return r;
    (void)snprintf(p->etag, sizeof(p->etag), "\"%s\"", all);
    (void)snprintf(p->policy, sizeof(p->policy),
                   "default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; connect-src "
                   "'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors "
                   "'none'",
                   script, style);
    return 0;
}

int pages_new(struct pages **ret_pages)
{
    struct pages *p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    int r = page_init(&p->page[PAGE_CHAT], pages_chat_html);
    if (r == 0)
        r = page_init(&p->page[PAGE_DOCS], pages_docs_html);
    if (r < 0) {
        pages_free(p);
        return r;
    }
    *ret_pages = p;
    return 0;
}

void pages_free(struct pages *p)
{
    free(p);
}

/* A list of tags, each maybe weak, or *; a tag of ours has no comma. */
static bool is_known(struct MHD_Connection *mhd, const char *etag)
{
    const char *has = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, "If-None-Match");
    return has && (strcmp(has, "*") == 0 || strstr(has, etag));
}

static int send_page(struct exchange *x, struct answer *a, enum which which)
{
    const struct page *p = &x->http->pages->page[which];
    a->type = "text/html; charset=utf-8";
    a->etag = p->etag;
    a->policy = p->policy;
    if (is_known(x->mhd, p->etag))
        a->status = 304;
    else
        (void)ek_buf_add(&a->body, p->text, p->len); /* answer_send() looks at the buffer */
    return 0;
}

int pages_chat(struct exchange *x, struct answer *a)
{
    return send_page(x, a, PAGE_CHAT);
}

int pages_docs(struct exchange *x, struct answer *a)
{
    return send_page(x, a, PAGE_DOCS);
}
