/*
 * Checks the head of a request: its fields, its target, its length (head.h). Called by exchange.c
 * and guard.c before its body is read.
 */
#include "server/net/head.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "server/api/error.h"
#include "server/api/openai.h"
#include "server/net/bounds.h"

enum once { HOST, LENGTH, CODING, TYPE, ENCODING, EXPECT, AUTHORIZATION, API_KEY, ORIGIN };

static const char *const once[HEAD_ONCE] = {
    [HOST] = "Host",
    [LENGTH] = "Content-Length",
    [CODING] = "Transfer-Encoding",
    [TYPE] = "Content-Type",
    [ENCODING] = "Content-Encoding",
    [EXPECT] = "Expect",
    [AUTHORIZATION] = "Authorization",
    [API_KEY] = "X-Api-Key",
    [ORIGIN] = "Origin",
};

static void head_refuse(struct head *h, int status, const char *why)
{
    if (h->status == 0) {
        h->status = status;
        h->why = why;
    }
}

/* What RFC 9110 calls a token. */
static bool is_token(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (!isalnum(c) && (c == '\0' || !strchr("!#$%&'*+-.^_`|~", c)))
            return false;
    }
    return len > 0;
}

static bool is_text(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if ((c < ' ' && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

static void head_keep(struct head *h, enum once which, const char *value)
{
    switch (which) {
    case HOST: h->host = value; break;
    case LENGTH: h->length = value; break;
    case CODING: h->coding = value; break;
    case EXPECT: h->expect = value; break;
    case ENCODING:
        h->gzipped = strcasecmp(value, "gzip") == 0 || strcasecmp(value, "x-gzip") == 0;
        if (!h->gzipped && strcasecmp(value, "identity") != 0)
            head_refuse(h, 415, "A body must have Content-Encoding gzip or identity, or none.");
        break;
    case TYPE:
    case AUTHORIZATION:
    case API_KEY:
    case ORIGIN: break;
    }
}

void head_field(struct head *h, const char *name, size_t name_len, const char *value,
                size_t value_len)
{
    h->fields++;
    h->bytes += name_len + value_len + 4; /* ": " and the line's end */
    if (!is_token(name, name_len))
        head_refuse(h, 400, "A header has a name that is no token.");
    if (!is_text(value, value_len))
        head_refuse(h, 400, "A header has a control character in its value.");
    for (unsigned i = 0; i < HEAD_ONCE; i++) {
        if (strlen(once[i]) != name_len || strncasecmp(once[i], name, name_len) != 0)
            continue;
        if (h->seen & 1u << i)
            head_refuse(h, 400, "A header that may come once came twice.");
        h->seen |= 1u << i;
        head_keep(h, (enum once)i, value);
    }
}

/* Length of the scheme of a URL, "http://" or "https://", or 0. */
static size_t scheme_len(const char *t)
{
    return strncasecmp(t, "http://", 7) == 0 ? 7 : strncasecmp(t, "https://", 8) == 0 ? 8 : 0;
}

const char *head_path(const char *target)
{
    size_t n = scheme_len(target);
    const char *path = n ? strchr(target + n, '/') : target;
    return path ? path : "/";
}

/* RFC 9112, 3.2.2: a server takes whole URLs, and reads their authority instead of Host. */
static void read_authority(struct head *h, const char *t)
{
    size_t scheme = scheme_len(t), n = strcspn(t + scheme, "/?");
    h->absolute = scheme > 0;
    if (!h->absolute)
        head_refuse(h, 400, "The target must be a path that begins with /, or a URL.");
    else if (n == 0 || n >= sizeof(h->authority) || t[scheme + n] == '?')
        head_refuse(h, 400, "The target is a URL without a host or without a path.");
    else
        memcpy(h->authority, t + scheme, n); /* the rest of it is zero */
}

void head_target(struct head *h, const char *t)
{
    size_t n = strlen(t);
    h->target = true;
    if (n > BOUND_URI_BYTES)
        head_refuse(h, 414, "The target is longer than 4096 bytes.");
    if (t[0] != '/')
        read_authority(h, t);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)t[i];
        if (c <= ' ' || c >= 0x7f || c == '#' || c == '\\')
            head_refuse(h, 400, "The target has a character that must be escaped.");
    }
}

/* A name, an IPv4 address or an IPv6 address in brackets, then maybe a port. */
static bool is_host(const char *s)
{
    size_t n = s[0] == '[' ? strspn(s + 1, "0123456789abcdefABCDEF:.") + 1
                           : strspn(s, "0123456789abcdefghijklmnopqrstuvwxyz"
                                       "ABCDEFGHIJKLMNOPQRSTUVWXYZ-._~");
    if (s[0] == '[' && (n < 3 || s[n++] != ']'))
        return false;
    if (s[n] == '\0')
        return true;
    size_t digits = strspn(s + n + 1, "0123456789");
    return s[n] == ':' && n > 0 && digits > 0 && digits <= 5 && s[n + 1 + digits] == '\0';
}

static void check_host(struct head *h, bool http11)
{
    if (!h->host && http11)
        head_refuse(h, 400, "HTTP/1.1 needs a Host header.");
    if (h->host && h->host[0] && !is_host(h->host))
        head_refuse(h, 400, "The Host header is no host.");
    if (h->absolute && !is_host(h->authority))
        head_refuse(h, 400, "The target's authority is no host.");
    if (h->absolute)
        h->host = h->authority;
}

/* How long the body is must be said once and in one way. */
static void check_length(struct head *h, bool http11)
{
    if (h->length && h->coding)
        head_refuse(h, 400, "Content-Length and Transfer-Encoding exclude each other.");
    if (h->coding && (!http11 || strcasecmp(h->coding, "chunked") != 0))
        head_refuse(h, 400, "The only Transfer-Encoding is chunked, in HTTP/1.1.");
    if (!h->length)
        return;
    size_t n = strspn(h->length, "0123456789");
    if (n == 0 || n > 18 || h->length[n] != '\0') {
        head_refuse(h, 400, "Content-Length is not a number of bytes.");
        return;
    }
    for (const char *c = h->length; *c; c++)
        h->body_bytes = h->body_bytes * 10 + (uint64_t)(*c - '0');
}

int head_check(struct head *h, struct api_error *err)
{
    bool http11 = strcmp(h->version, "HTTP/1.1") == 0;
    if (!http11 && strcmp(h->version, "HTTP/1.0") != 0)
        head_refuse(h, 505, "The only versions are HTTP/1.1 and HTTP/1.0.");
    if (strlen(h->method) > BOUND_METHOD_BYTES || !is_token(h->method, strlen(h->method)))
        head_refuse(h, 400, "The method is no method.");
    if (!h->target)
        head_refuse(h, 400, "There is no target.");
    if (h->fields > BOUND_HEADERS)
        head_refuse(h, 431, "There are more than 100 headers.");
    if (h->bytes > BOUND_HEADER_BYTES)
        head_refuse(h, 431, "The headers are larger than 16384 bytes.");
    check_host(h, http11);
    check_length(h, http11);
    if (h->expect && strcasecmp(h->expect, "100-continue") != 0)
        head_refuse(h, 417, "The only expectation is 100-continue.");
    return h->status ? api_refuse(err, h->status, "", "%s", h->why) : 0;
}
