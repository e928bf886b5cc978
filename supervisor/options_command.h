/* What a server's own command says about where it listens. */
#pragma once

struct ek_fault;
struct server_config;

/* A --port or --host in `command` is what the server does: where the key of that name has its
 * default it takes the command's value (the host only where evenkeeld binds the socket); another
 * one is a contradiction, -EBADMSG with fault. Or -ENOMEM. */
int command_address(struct server_config *s, struct ek_fault *fault);
