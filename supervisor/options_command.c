#include "supervisor/options_command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "supervisor/dialect.h"
#include "supervisor/options.h"

#define PORT_DEFAULT 8000
#define HOST_DEFAULT "127.0.0.1"

/* The value of `--flag VALUE` or `--flag=VALUE`, the last one; NULL if there is none. */
static const char *value_of(const struct ek_strings *command, const char *flag)
{
    const char *found = NULL;
    size_t len = strlen(flag);
    for (size_t i = 0; i < command->count; i++) {
        const char *word = command->at[i];
        if (strncmp(word, flag, len) != 0)
            continue;
        if (word[len] == '=')
            found = word + len + 1;
        else if (word[len] == '\0' && i + 1 < command->count)
            found = command->at[i + 1];
    }
    return found;
}

static int take_port(struct server_config *s, const char *text, struct ek_fault *fault)
{
    size_t digits = strspn(text, "0123456789");
    unsigned long port = digits > 0 && digits <= 5 ? strtoul(text, NULL, 10) : 65536;
    if (text[digits] || port > 65535)
        return ek_fault_set(fault, "command", "server '%s': --port %.40s in command: no port",
                            s->name, text);
    if (s->port != PORT_DEFAULT && s->port != port)
        return ek_fault_set(fault, "port",
                            "server '%s': port is %u and command says --port %lu; leave one out",
                            s->name, (unsigned)s->port, port);
    s->port = port;
    return 0;
}

static int take_host(struct server_config *s, const char *text, struct ek_fault *fault)
{
    if (s->host && strcmp(s->host, text) == 0)
        return 0;
    if (s->host && strcmp(s->host, HOST_DEFAULT) != 0)
        return ek_fault_set(
            fault, "host",
            "server '%s': host is %.60s and command says --host %.60s; leave one out", s->name,
            s->host, text);
    char *copy = strdup(text);
    if (!copy)
        return -ENOMEM;
    free(s->host);
    s->host = copy;
    return 0;
}

int command_address(struct server_config *s, struct ek_fault *fault)
{
    const char *port = value_of(&s->command, "--port"), *host = value_of(&s->command, "--host");
    int r = port ? take_port(s, port, fault) : 0;
    /* Another engine binds its own socket, perhaps to all addresses: `host` is where it is reached.
     */
    return r == 0 && host && s->dialect->control_socket ? take_host(s, host, fault) : r;
}
