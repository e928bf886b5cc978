/*
 * Who listens at a port, by the inode that /proc/net/tcp gives and the process in whose fd folder
 * it is. servers/prestart.c and obstacle.c ask before a start, so that "address in use" comes with
 * a name; for a server that somebody else runs it yields the pid whose memory is measured
 * (memory_line.c).
 */
#include "supervisor/io/port_owner.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/cgroup.h"
#include "common/fdpass.h"
#include "supervisor/io/port_cgroup.h"

#define LISTENING 0x0A /* the state in /proc/net/tcp */

struct socket_row {
    unsigned long inode; /* 0 = none was seen */
    unsigned uid;
    bool listens;
};

/* The socket that listens at the port; else one whose own end it is, as of a connection that was
 * given this number by chance. */
static struct socket_row find_socket(const char *file, unsigned port)
{
    char line[512];
    struct socket_row found = {0};
    FILE *f = fopen(file, "re");
    while (f && !found.listens && fgets(line, sizeof(line), f)) {
        unsigned at, state, uid;
        unsigned long inode;
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*s %x %*s %*s %*s %u %*s %lu", &at, &state, &uid,
                   &inode) != 4 ||
            at != port || inode == 0)
            continue;
        bool listens = state == LISTENING;
        if (listens || !found.inode)
            found = (struct socket_row){.inode = inode, .uid = uid, .listens = listens};
    }
    if (f)
        (void)fclose(f); /* read only */
    return found;
}

/* Its descriptor in that process; -1: it has none, or may not be looked into. */
static int fd_of_socket(const char *pid, unsigned long inode)
{
    char path[300], to[64], want[40];
    int found = -1;
    (void)snprintf(path, sizeof(path), "/proc/%.20s/fd", pid);
    int len = snprintf(want, sizeof(want), "socket:[%lu]", inode);
    DIR *dir = opendir(path);
    for (struct dirent *d; dir && found < 0 && (d = readdir(dir));) {
        (void)snprintf(path, sizeof(path), "/proc/%.20s/fd/%.20s", pid, d->d_name);
        ssize_t n = readlink(path, to, sizeof(to));
        if (n == len && memcmp(to, want, (size_t)n) == 0)
            found = (int)strtol(d->d_name, NULL, 10);
    }
    if (dir)
        (void)closedir(dir); /* read only */
    return found;
}

static void name_process(pid_t pid, char *who, size_t size)
{
    char path[64], name[32] = "";
    (void)snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
    FILE *f = fopen(path, "re");
    if (f && fgets(name, sizeof(name), f))
        name[strcspn(name, "\n")] = '\0';
    if (f)
        (void)fclose(f); /* read only */
    (void)snprintf(who, size, "process %d (%s)", (int)pid, name);
}

static struct socket_row find_listening(unsigned port)
{
    struct socket_row row = find_socket("/proc/net/tcp", port);
    return row.inode ? row : find_socket("/proc/net/tcp6", port);
}

/* 0: it is free, or its owner may not be seen. */
static pid_t who_has(unsigned long inode)
{
    pid_t least = 0;
    DIR *dir = inode ? opendir("/proc") : NULL;
    for (struct dirent *d; dir && (d = readdir(dir));) {
        pid_t pid = isdigit((unsigned char)d->d_name[0]) ? (pid_t)strtol(d->d_name, NULL, 10) : 0;
        if (pid > 0 && (!least || pid < least) && fd_of_socket(d->d_name, inode) >= 0)
            least = pid;
    }
    if (dir)
        (void)closedir(dir); /* read only */
    return least;
}

static void find_port_owner(unsigned port, char *who, size_t size)
{
    struct socket_row row = find_listening(port);
    /* Descriptors of others, and of those that are not dumpable, only root may see. */
    pid_t pid = who_has(row.inode);
    char unit[64];
    if (pid > 0)
        name_process(pid, who, size);
    else if (port_cgroup_name(row.inode, unit, sizeof(unit)))
        (void)snprintf(who, size, "%s, as user %u", unit, row.uid);
    else if (row.inode)
        (void)snprintf(who, size, "a process of user %u", row.uid);
    else
        (void)snprintf(who, size, "another process");
}

pid_t port_owner_pid(unsigned port)
{
    struct socket_row row = find_listening(port);
    return row.listens ? who_has(row.inode) : 0;
}

int port_owner_take(pid_t pid, unsigned port)
{
    struct socket_row row = find_listening(port);
    char name[24];
    if (!row.listens)
        return -ENOENT;
    int process = (int)syscall(SYS_pidfd_open, pid, 0u);
    if (process < 0)
        return -errno;
    (void)snprintf(name, sizeof(name), "%d", (int)pid);
    int theirs = fd_of_socket(name, row.inode);
    int fd = theirs < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, theirs, 0u);
    int r = theirs < 0 ? -ENOENT : fd < 0 ? -errno : fd;
    close(process);
    return r;
}

pid_t port_owner_of_socket(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct ucred who = {0};
    socklen_t len = sizeof(who);
    if (strlen(path) >= sizeof(to.sun_path))
        return 0;
    (void)snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return 0;
    if (connect(fd, (const struct sockaddr *)&to, sizeof(to)) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0)
        who.pid = 0;
    close(fd);
    return who.pid;
}

bool port_owner_is_none(const char *host, unsigned port, char *who, size_t size)
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
    find_port_owner(port, who, size);
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

uint64_t port_owner_memory_bytes(void)
{
    char own[256];
    uint64_t left = number_in("/proc/meminfo", "MemAvailable:") * 1024;
    if (ek_cgroup_dir(EK_CGROUP_SELF, own, sizeof(own)) < 0)
        return left;
    struct ek_cgroup_memory m;
    ek_cgroup_memory(own, &m);
    const uint64_t most = m.most_bytes, files = m.file_bytes;
    const uint64_t used =
        m.used_bytes == UINT64_MAX || m.used_bytes < files ? 0 : m.used_bytes - files;
    if (most != UINT64_MAX && most > 0 && (left == 0 || (most > used ? most - used : 0) < left))
        left = most > used ? most - used : 0;
    return left;
}
