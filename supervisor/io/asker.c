/*
 * Names who sent a command, from the credentials of the Unix socket; web/status.c writes it into
 * the history. The login user is in /proc, so that "root" by way of sudo still says which person it
 * was.
 */
#include "supervisor/io/asker.h"

#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NO_LOGIN 4294967295ul

static void user_name(uid_t uid, char *ret_name, size_t size)
{
    struct passwd entry, *found = NULL;
    char text[1024];
    FILE *f = fopen("/etc/passwd", "re");
    (void)snprintf(ret_name, size, "user %u", (unsigned)uid);
    while (f && fgetpwent_r(f, &entry, text, sizeof(text), &found) == 0) {
        if (entry.pw_uid != uid)
            continue;
        (void)snprintf(ret_name, size, "%.31s", entry.pw_name);
        break;
    }
    if (f)
        (void)fclose(f); /* only read */
}

/* The user that logged in, before su or sudo, as the audit system keeps it. */
static unsigned long login_of(pid_t pid)
{
    char path[48], text[24] = {0};
    (void)snprintf(path, sizeof(path), "/proc/%d/loginuid", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NO_LOGIN;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    return n > 0 && text[0] >= '0' && text[0] <= '9' ? strtoul(text, NULL, 10) : NO_LOGIN;
}

void asker_name(const struct ucred *who, char *ret_text, size_t size)
{
    char name[40], login[40];
    unsigned long from = login_of(who->pid);
    user_name(who->uid, name, sizeof(name));
    if (from == NO_LOGIN || from == who->uid) {
        (void)snprintf(ret_text, size, "%s", name);
        return;
    }
    user_name((uid_t)from, login, sizeof(login));
    (void)snprintf(ret_text, size, "%s as %s", login, name);
}
