/* The user of a request over the Unix socket, in words for the history: "root", "alice as root",
 * "user 1000". */
#pragma once

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

struct ucred;

/* Names come from /etc/passwd alone, and the user that became root from its login: nothing that
 * could hang is asked. */
void asker_name(const struct ucred *who, char *ret_text, size_t size);
