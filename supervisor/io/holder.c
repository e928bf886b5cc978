#include "supervisor/io/holder.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/fdpass.h"
#include "supervisor/io/child.h"

#define LISTENING 0x0A /* the state in /proc/net/tcp */

/* The inode of a socket that listens at the port, 0 if there is none to see. */
static unsigned long listening_inode(const char *file, unsigned port)
{
    char line[512];
    unsigned long found = 0;
    FILE *f = fopen(file, "re");
    while (f && !found && fgets(line, sizeof(line), f)) {
        unsigned at, state;
        unsigned long inode;
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*s %x %*s %*s %*s %*s %*s %lu", &at, &state,
                   &inode) == 3 &&
            at == port && state == LISTENING)
            found = inode;
    }
    if (f)
        (void)fclose(f); /* read only */
    return found;
}

static bool has_socket(const char *pid, unsigned long inode)
{
    char path[300], to[64], want[40];
    bool found = false;
    (void)snprintf(path, sizeof(path), "/proc/%.20s/fd", pid);
    int len = snprintf(want, sizeof(want), "socket:[%lu]", inode);
    DIR *dir = opendir(path);
    for (struct dirent *d; dir && !found && (d = readdir(dir));) {
        (void)snprintf(path, sizeof(path), "/proc/%.20s/fd/%.20s", pid, d->d_name);
        ssize_t n = readlink(path, to, sizeof(to));
        found = n == len && memcmp(to, want, (size_t)n) == 0;
    }
    if (dir)
        (void)closedir(dir); /* read only */
    return found;
}

static void name_process(const char *pid, char *who, size_t size)
{
    char path[64], name[32] = "";
    (void)snprintf(path, sizeof(path), "/proc/%.20s/comm", pid);
    FILE *f = fopen(path, "re");
    if (f && fgets(name, sizeof(name), f))
        name[strcspn(name, "\n")] = '\0';
    if (f)
        (void)fclose(f); /* read only */
    (void)snprintf(who, size, "process %.20s (%s)", pid, name);
}

static void find_holder(unsigned port, char *who, size_t size)
{
    unsigned long inode = listening_inode("/proc/net/tcp", port);
    if (!inode)
        inode = listening_inode("/proc/net/tcp6", port);
    (void)snprintf(who, size, "another process");
    DIR *dir = inode ? opendir("/proc") : NULL;
    for (struct dirent *d; dir && (d = readdir(dir));) {
        if (isdigit((unsigned char)d->d_name[0]) && has_socket(d->d_name, inode)) {
            name_process(d->d_name, who, size);
            break;
        }
    }
    if (dir)
        (void)closedir(dir); /* read only */
}

bool holder_port_free(const char *host, unsigned port, char *who, size_t size)
{
    if (port == 0)
        return true;
    int fd = ek_listen_tcp(*host ? host : NULL, port, 1, NULL);
    if (fd >= 0) {
        close(fd);
        return true;
    }
    if (fd != -EADDRINUSE)
        return true; /* not for us to say: the server will */
    find_holder(port, who, size);
    return false;
}

static uint64_t number_in(const char *file, const char *key)
{
    char line[256];
    uint64_t v = 0;
    size_t len = strlen(key);
    FILE *f = fopen(file, "re");
    while (f && v == 0 && fgets(line, sizeof(line), f)) {
        if (strncmp(line, key, len) == 0)
            v = strtoull(line + len, NULL, 10); /* "max" is no number: 0 */
    }
    if (f)
        (void)fclose(f); /* read only */
    return v;
}

uint64_t holder_memory_bytes(void)
{
    char own[256], path[300];
    uint64_t left = number_in("/proc/meminfo", "MemAvailable:") * 1024;
    if (child_own_cgroup(own, sizeof(own)) < 0)
        return left;
    (void)snprintf(path, sizeof(path), "%s/memory.max", own);
    uint64_t most = number_in(path, "");
    (void)snprintf(path, sizeof(path), "%s/memory.current", own);
    uint64_t used = number_in(path, "");
    if (most > 0 && (left == 0 || (most > used ? most - used : 0) < left))
        left = most > used ? most - used : 0;
    return left;
}
