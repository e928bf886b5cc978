/*
 * Names in the fields Host and Origin (hostname.h). Called for each request by the server's guard
 * and by evenkeeld's page.
 */
#include "common/hostname.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>

/* Bytes of the host, its port aside. */
static size_t host_len(const char *host)
{
    return host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
}

/* Whether the n bytes at host are `name` or end with "." and it. */
static bool is_below(const char *host, size_t n, const char *name)
{
    size_t w = strlen(name);
    return n >= w && strncasecmp(host + n - w, name, w) == 0 && (n == w || host[n - w - 1] == '.');
}

bool ek_host_listed(const char *host, const char *const *list, size_t count)
{
    size_t n = host_len(host);
    for (size_t i = 0; i < count; i++) {
        const char *want = list[i];
        size_t w = strlen(want);
        if (strcmp(want, "*") == 0)
            return true;
        if (want[0] == '*' && want[1] == '.' && n > w - 1 &&
            strncasecmp(host + n - (w - 1), want + 1, w - 1) == 0)
            return true;
        if (n == w && strncasecmp(host, want, n) == 0)
            return true;
    }
    return false;
}

bool ek_host_is_literal(const char *host)
{
    char text[INET6_ADDRSTRLEN];
    struct in6_addr v6;
    struct in_addr v4;
    bool bracketed = host[0] == '[';
    size_t n = host_len(host);
    if (n > strlen(host)) /* no ']' */
        return false;
    if (is_below(host, n, "localhost"))
        return true;
    const char *at = host + bracketed;
    n -= bracketed ? 2 : 0;
    if (n >= sizeof(text))
        return false;
    memcpy(text, at, n);
    text[n] = '\0';
    return bracketed ? inet_pton(AF_INET6, text, &v6) == 1 : inet_pton(AF_INET, text, &v4) == 1;
}

bool ek_origin_is_literal(const char *origin)
{
    const char *host = strstr(origin, "://");
    return host && ek_host_is_literal(host + 3);
}

bool ek_address_is_loopback(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, address, sizeof(in));
        return (ntohl(in.sin_addr.s_addr) >> 24) == 127;
    }
    if (address->ss_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, address, sizeof(in6));
        bool mapped = IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr);
        return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) || (mapped && in6.sin6_addr.s6_addr[12] == 127);
    }
    return false;
}
