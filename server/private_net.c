/*
 * Looks for a public address among the interfaces that MPI will use, for nodes.c, which refuses to
 * start then unless --allow-unencrypted-network is given: the traffic between nodes is plain. Lists
 * are in the form of MPI's own options, with names and IPv4 networks. When interfaces cannot be
 * listed it says that there is one.
 */
#include "server/private_net.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t v4_of(const struct sockaddr *a)
{
    struct sockaddr_in in;

    memcpy(&in, a, sizeof(in));
    return ntohl(in.sin_addr.s_addr);
}

bool private_net_has(const struct sockaddr *address)
{
    static const struct {
        uint32_t net, bits;
    } nets[] = {{0x0a000000u, 8}, {0xac100000u, 12}, {0xc0a80000u, 16},
                {0x7f000000u, 8}, {0xa9fe0000u, 16}, {0x64400000u, 10}};
    struct sockaddr_in6 six;

    if (address->sa_family == AF_INET) {
        for (size_t i = 0; i < sizeof(nets) / sizeof(nets[0]); i++)
            if ((v4_of(address) ^ nets[i].net) >> (32 - nets[i].bits) == 0)
                return true;
        return false;
    }
    if (address->sa_family != AF_INET6)
        return true; /* not of the internet */
    memcpy(&six, address, sizeof(six));
    const struct in6_addr *a = &six.sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(a) || IN6_IS_ADDR_LINKLOCAL(a) || (a->s6_addr[0] & 0xfe) == 0xfc;
}

/* One word of a list: a name, or an IPv4 network. */
static bool private_matches(const char *word, const char *name, const struct sockaddr *address)
{
    struct in_addr net;
    char text[64];
    char *slash;

    if (strcmp(word, name) == 0)
        return true;
    (void)snprintf(text, sizeof(text), "%s", word);
    slash = strchr(text, '/');
    if (!slash || address->sa_family != AF_INET)
        return false;
    *slash = '\0';
    const unsigned long bits = strtoul(slash + 1, NULL, 10);
    if (inet_pton(AF_INET, text, &net) != 1 || bits > 32)
        return false;
    return bits == 0 || (v4_of(address) ^ ntohl(net.s_addr)) >> (32 - bits) == 0;
}

bool private_net_listed(const char *list, const char *name, const struct sockaddr *address)
{
    char word[64];

    while (*list) {
        const size_t len = strcspn(list, ",");
        (void)snprintf(word, sizeof(word), "%.*s", (int)len, list);
        if (private_matches(word, name, address))
            return true;
        list += len + (list[len] == ',');
    }
    return false;
}

static bool is_used(const struct ifaddrs *i, const char *include, const char *exclude)
{
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK))
        return false;
    if (include && include[0])
        return private_net_listed(include, i->ifa_name, i->ifa_addr);
    return !exclude || !private_net_listed(exclude, i->ifa_name, i->ifa_addr);
}

bool private_net_find_public(const char *include, const char *exclude, char *ret_what, size_t size)
{
    struct ifaddrs *list = NULL;
    bool found = false;

    if (getifaddrs(&list) < 0) {
        (void)snprintf(ret_what, size, "interfaces that cannot be listed");
        return true;
    }
    for (const struct ifaddrs *i = list; i && !found; i = i->ifa_next) {
        char text[INET6_ADDRSTRLEN] = "?";
        if (!is_used(i, include, exclude) || private_net_has(i->ifa_addr))
            continue;
        found = true;
        const bool four = i->ifa_addr->sa_family == AF_INET;
        const char *at =
            (const char *)i->ifa_addr + (four ? offsetof(struct sockaddr_in, sin_addr)
                                              : offsetof(struct sockaddr_in6, sin6_addr));
        (void)inet_ntop(i->ifa_addr->sa_family, at, text, sizeof(text)); /* else "?" */
        (void)snprintf(ret_what, size, "interface %s with %s", i->ifa_name, text);
    }
    freeifaddrs(list);
    return found;
}
