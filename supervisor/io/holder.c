#include "supervisor/io/holder.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cgroup.h"
#include "common/fdpass.h"

#define LISTENING 0x0A /* the state in /proc/net/tcp */

struct socket_row {
    unsigned long inode; /* 0 = none was seen */
    unsigned uid;
};

/* The socket that listens at the port; else one whose own end it is, as of a connection that was
 * given this number by chance. */
static struct socket_row find_socket(const char *file, unsigned port)
{
    char line[512];
    struct socket_row found = {0};
    bool listens = false;
    FILE *f = fopen(file, "re");
    while (f && !listens && fgets(line, sizeof(line), f)) {
        unsigned at, state, uid;
        unsigned long inode;
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*s %x %*s %*s %*s %u %*s %lu", &at, &state, &uid,
                   &inode) != 4 ||
            at != port || inode == 0)
            continue;
        listens = state == LISTENING;
        if (listens || !found.inode)
            found = (struct socket_row){.inode = inode, .uid = uid};
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
    struct socket_row row = find_socket("/proc/net/tcp", port);
    if (!row.inode)
        row = find_socket("/proc/net/tcp6", port);
    /* Descriptors of others, and of those that are not dumpable, only root may see. */
    if (row.inode)
        (void)snprintf(who, size, "a process of user %u", row.uid);
    else
        (void)snprintf(who, size, "another process");
    DIR *dir = row.inode ? opendir("/proc") : NULL;
    for (struct dirent *d; dir && (d = readdir(dir));) {
        if (isdigit((unsigned char)d->d_name[0]) && has_socket(d->d_name, row.inode)) {
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
            v = strtoull(line + len, NULL, 10);
    }
    if (f)
        (void)fclose(f); /* read only */
    return v;
}

uint64_t holder_memory_bytes(void)
{
    char own[256];
    uint64_t left = number_in("/proc/meminfo", "MemAvailable:") * 1024;
    if (ek_cgroup_dir(EK_CGROUP_SELF, own, sizeof(own)) < 0)
        return left;
    uint64_t most = ek_cgroup_number(own, "memory.max", "");
    uint64_t used = ek_cgroup_number(own, "memory.current", "");
    uint64_t files = ek_cgroup_files(own);
    used = used == UINT64_MAX || used < files ? 0 : used - files;
    if (most != UINT64_MAX && most > 0 && (left == 0 || (most > used ? most - used : 0) < left))
        left = most > used ? most - used : 0;
    return left;
}
