/*
 * Checks addresses when evenkeeld reads its configuration, at start and at a reload: options.c for
 * its own keys, options_server.c for those of each server. A server's --port and --host may stand
 * in its command or in the file of its --config too, so these are read to find contradictions.
 */
#include "supervisor/config/options_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/options.h"
#include "supervisor/config/options.h"
#include "supervisor/config/server_file.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/peers.h"

#define HOST_DEFAULT "127.0.0.1"

int address_check(const char *host, const char *field, const char *whose, struct ek_fault *fault)
{
    struct in6_addr v6;
    struct in_addr v4;
    if (!host || !*host || strcmp(host, "localhost") == 0 || inet_pton(AF_INET, host, &v4) == 1 ||
        inet_pton(AF_INET6, host, &v6) == 1)
        return 0;
    return ek_fault_set(fault, field,
                        "%s '%.80s'%s%s is no address; write one such as 127.0.0.1, 0.0.0.0 or "
                        "::1, or localhost",
                        field, host, whose ? " of server " : "", whose ? whose : "");
}

/* "ADDRESS:PORT" or "[V6]:PORT", with nothing behind it but perhaps `tail`. */
static int split_address(const char *text, const char *tail, char **ret_host, uint64_t *ret_port)
{
    const char *colon = strrchr(text, ':');
    size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
    unsigned long port = digits > 0 && digits <= 5 ? strtoul(colon + 1, NULL, 10) : 0;
    size_t len = colon ? (size_t)(colon - text) : 0;
    if (port == 0 || port > 65535 || len == 0 ||
        (colon[1 + digits] != '\0' && strcmp(colon + 1 + digits, tail) != 0))
        return -EBADMSG;
    if (len >= 2 && text[0] == '[' && text[len - 1] == ']') {
        text++;
        len -= 2;
    }
    char *host = strndup(text, len);
    if (!host)
        return -ENOMEM;
    free(*ret_host);
    *ret_host = host;
    *ret_port = port;
    return 0;
}

int address_attach(struct server_config *s, struct ek_fault *fault)
{
    static const char scheme[] = "http://";
    if (s->model || s->command.count > 0 || s->args.count > 0)
        return ek_fault_set(fault, "attach",
                            "server '%s': attach is for a server that somebody else runs; leave "
                            "out model, command and args",
                            s->name);
    int r = -EBADMSG;
    if (strncmp(s->attach, scheme, sizeof(scheme) - 1) == 0)
        r = split_address(s->attach + sizeof(scheme) - 1, "/", &s->host, &s->port);
    return r != -EBADMSG ? r
                         : ek_fault_set(fault, "attach",
                                        "server '%s': attach '%.80s': write http://ADDRESS:PORT",
                                        s->name, s->attach);
}

int address_edge(struct server_config *s, struct ek_fault *fault)
{
    uint64_t port = 0;
    int r = s->edge ? split_address(s->edge, "", &s->edge_host, &port) : 0;
    s->edge_port = (unsigned)port;
    if (r == -EBADMSG)
        return ek_fault_set(fault, "edge", "server '%s': edge '%.80s': write ADDRESS:PORT", s->name,
                            s->edge);
    return r < 0 ? r : address_check(s->edge_host, "edge", s->name, fault);
}

/* "HOST:PORT", "[V6]:PORT", "PORT" or "off". */
int address_listen(struct config *c, struct ek_fault *fault)
{
    if (strcmp(c->listen, "off") == 0) {
        c->listen_off = true;
        return 0;
    }
    const char *colon = strrchr(c->listen, ':'), *port = colon ? colon + 1 : c->listen;
    size_t digits = strspn(port, "0123456789");
    unsigned long value = digits > 0 && digits <= 5 ? strtoul(port, NULL, 10) : 65536;
    if (digits == 0 || port[digits] || value > 65535)
        return ek_fault_set(fault, "listen",
                            "listen '%.80s': write HOST:PORT with a port from 0 to "
                            "65535, or off",
                            c->listen);
    c->listen_port = (unsigned)value;
    const char *host = c->listen;
    size_t len = colon ? (size_t)(colon - c->listen) : 0;
    if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
        host++;
        len -= 2;
    }
    c->listen_host = len > 0 ? strndup(host, len) : strdup("127.0.0.1");
    return c->listen_host ? address_check(c->listen_host, "listen", NULL, fault) : -ENOMEM;
}

int address_peers(const struct config *c, struct ek_fault *fault)
{
    static const char scheme[] = "http://";
    if (c->restart_peers.count > PEERS_MOST)
        return ek_fault_set(fault, "restart_peers", "restart_peers: %zu of them, at most %d",
                            c->restart_peers.count, PEERS_MOST);
    for (size_t i = 0; i < c->restart_peers.count; i++) {
        const char *url = c->restart_peers.at[i];
        char *host = NULL;
        uint64_t port;
        int r = strncmp(url, scheme, sizeof(scheme) - 1) != 0
                    ? -EBADMSG
                    : split_address(url + sizeof(scheme) - 1, "/", &host, &port);
        if (r == 0)
            r = address_check(host, "restart_peers", NULL, fault);
        else if (r == -EBADMSG)
            r = ek_fault_set(fault, "restart_peers",
                             "restart_peers '%.80s': write http://ADDRESS:PORT", url);
        free(host);
        if (r < 0)
            return r;
    }
    return 0;
}

/* list: which words say so, `command` or `args`. */
static int take_port(struct server_config *s, const char *list, const char *text,
                     struct ek_fault *fault)
{
    size_t digits = strspn(text, "0123456789");
    unsigned long port = digits > 0 && digits <= 5 ? strtoul(text, NULL, 10) : 65536;
    if (text[digits] || port > 65535)
        return ek_fault_set(fault, list, "server '%s': --port %.40s in %s: no port", s->name, text,
                            list);
    if (s->port != PORT_DEFAULT && s->port != port)
        return ek_fault_set(fault, "port",
                            "server '%s': port is %u and %s says --port %lu; leave one out",
                            s->name, (unsigned)s->port, list, port);
    s->port = port;
    return 0;
}

static int take_host(struct server_config *s, const char *list, const char *text,
                     struct ek_fault *fault)
{
    if (s->host && strcmp(s->host, text) == 0)
        return 0;
    if (s->host && strcmp(s->host, HOST_DEFAULT) != 0)
        return ek_fault_set(fault, "host",
                            "server '%s': host is %.60s and %s says --host %.60s; leave one out",
                            s->name, s->host, list, text);
    char *copy = strdup(text);
    if (!copy)
        return -ENOMEM;
    free(s->host);
    s->host = copy;
    return 0;
}

int address_command(struct server_config *s, struct ek_fault *fault)
{
    static const char *const flags[] = {"--port", "--host"};
    const struct ek_strings *c = &s->command, *a = &s->args;
    char in_file[2][SERVER_FILE_VALUE];
    const char *said[2], *list[2];
    /* Of `command` alone: where evenkeeld writes the command line it gives both flags itself, and
     * they win over a file. */
    (void)server_file_read(ek_opt_last(c->at, c->count, "--config"), flags, 2, in_file);
    for (int i = 0; i < 2; i++) {
        said[i] =
            ek_opt_last(a->at, a->count, flags[i]); /* the later one, which the server takes */
        list[i] = said[i] ? "args" : "command";
        if (!said[i])
            said[i] = ek_opt_last(c->at, c->count, flags[i]);
        if (!said[i] && in_file[i][0])
            said[i] = in_file[i];
    }
    int r = said[0] ? take_port(s, list[0], said[0], fault) : 0;
    /* Another engine binds its own socket, perhaps to all addresses: `host` is where it is reached.
     */
    return r == 0 && said[1] && s->dialect->control_socket ? take_host(s, list[1], said[1], fault)
                                                           : r;
}
