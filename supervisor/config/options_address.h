/*
 * Addresses in evenkeeld's configuration: what a key or a server's own command says is checked and
 * taken apart. Each returns 0, -EBADMSG with fault, or -ENOMEM.
 */
#pragma once

#define PORT_DEFAULT 8000 /* as the tables say */

struct config;
struct ek_fault;
struct server_config;

/* A literal address or localhost: a name would be asked of a resolver, which may hold up the only
 * thread for many seconds. whose: a server's name, NULL for evenkeeld itself. */
int address_check(const char *host, const char *field, const char *whose, struct ek_fault *fault);
/* `attach`, `edge` of a server; `listen`, `restart_peers` of evenkeeld. */
int address_attach(struct server_config *s, struct ek_fault *fault);
int address_edge(struct server_config *s, struct ek_fault *fault);
int address_listen(struct config *c, struct ek_fault *fault);
int address_peers(const struct config *c, struct ek_fault *fault);
/* A --port or --host in `args` or `command` is what the server does: where the key of that name has
 * its default it takes that value (the host only where evenkeeld binds the socket); another one is
 * a contradiction. */
int address_command(struct server_config *s, struct ek_fault *fault);
