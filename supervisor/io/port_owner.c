/*
 * Who listens at a port, by the inode that /proc/net/tcp gives and the process in whose fd folder
 * it is. servers/prestart.c and obstacle.c ask before a start, so that "address in use" comes with
 * a name; for a server that somebody else runs it yields the pid whose memory is measured
 * (memory_line.c).
 */
#include "supervisor/io/port_owner.h"

#include <arpa/inet.h>
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

#define LISTENING    0x0A /* the state in /proc/net/tcp */
#define V4_HEX       8    /* digits of an address there */
#define V6_HEX       32
#define V4_ANY       "::ffff:0.0.0.0"
#define MAPPED_BYTES 12 /* of a mapped IPv4 address, before its own four */

struct socket_row {
    unsigned long inode;
    unsigned uid;
    struct in6_addr
        address; /* of IPv4 the mapped one: a socket of IPv6 may be bound to that, too */
};

/* A port has a row for each address that is listened at, and for each socket of SO_REUSEPORT. */
struct socket_rows {
    struct socket_row *at; /* by inode */
    size_t count, room;
    bool listen;
};

static bool rows_add(struct socket_rows *rows, const struct socket_row *row)
{
    if (rows->count == rows->room) {
        size_t room = rows->room ? 2 * rows->room : 16;
        struct socket_row *more = realloc(rows->at, room * sizeof(*more));
        if (!more)
            return false;
        rows->at = more;
        rows->room = room;
    }
    rows->at[rows->count++] = *row;
    return true;
}

/* Each 32 bits are a number of this machine, whose bytes in memory are the address's. */
static bool address_from_hex(const char *hex, struct in6_addr *ret)
{
    const size_t len = strlen(hex);
    char word[V4_HEX + 1] = {0};
    if (len != V4_HEX && len != V6_HEX)
        return false;
    (void)inet_pton(AF_INET6, V4_ANY, ret);
    uint8_t *to = ret->s6_addr + (len == V4_HEX ? MAPPED_BYTES : 0);
    for (size_t i = 0; i < len; i += V4_HEX, to += sizeof(uint32_t)) {
        memcpy(word, hex + i, V4_HEX);
        const uint32_t part = (uint32_t)strtoul(word, NULL, 16);
        memcpy(to, &part, sizeof(part));
    }
    return true;
}

/* In the file those that listen come first, and connections, which may be many, after them. */
static void read_rows(const char *file, unsigned port, struct socket_rows *rows)
{
    char line[512], hex[V6_HEX + 1];
    FILE *f = fopen(file, "re");
    while (f && fgets(line, sizeof(line), f)) {
        unsigned at, state;
        struct socket_row row;
        if (sscanf(line, " %*d: %32[0-9A-Fa-f]:%x %*s %x %*s %*s %*s %u %*s %lu", hex, &at, &state,
                   &row.uid, &row.inode) != 5 ||
            !address_from_hex(hex, &row.address))
            continue;
        const bool listens = state == LISTENING;
        if (rows->listen && !listens)
            break;
        if (at != port || row.inode == 0 || (!listens && rows->count))
            continue;
        if (listens && !rows->listen)
            rows->count = 0;
        rows->listen = listens;
        if (!rows_add(rows, &row))
            break; /* without memory those so far are all */
    }
    if (f)
        (void)fclose(f); /* read only */
}

static int by_inode(const void *a, const void *b)
{
    const struct socket_row *x = a, *y = b;
    return (x->inode > y->inode) - (x->inode < y->inode);
}

/* All that listen at the port; where none does, one whose own end it is, as of a connection that
 * was given this number by chance. The caller frees rows.at. */
static struct socket_rows find_sockets(unsigned port)
{
    struct socket_rows rows = {0};
    read_rows("/proc/net/tcp", port, &rows);
    read_rows("/proc/net/tcp6", port, &rows);
    if (rows.count)
        qsort(rows.at, rows.count, sizeof(*rows.at), by_inode);
    return rows;
}

/* An address that a client names; false for a name, and for all addresses. */
static bool is_one_address(const char *host, struct in6_addr *ret)
{
    struct in_addr v4;
    if (inet_pton(AF_INET, host, &v4) != 1)
        return inet_pton(AF_INET6, host, ret) == 1 && !IN6_IS_ADDR_UNSPECIFIED(ret);
    (void)inet_pton(AF_INET6, V4_ANY, ret);
    memcpy(ret->s6_addr + MAPPED_BYTES, &v4, sizeof(v4));
    return v4.s_addr != htonl(INADDR_ANY);
}

/* How well a socket suits a connection to the address, as the kernel chooses: its very address,
 * then all of the family, then all of both; 0: the connection does not get there. */
static int fit_of(const struct socket_row *row, const struct in6_addr *to)
{
    struct in6_addr any;
    (void)inet_pton(AF_INET6, V4_ANY, &any);
    if (memcmp(&row->address, to, sizeof(*to)) == 0)
        return 3;
    if (IN6_IS_ADDR_V4MAPPED(to) && memcmp(&row->address, &any, sizeof(any)) == 0)
        return 2;
    return IN6_IS_ADDR_UNSPECIFIED(&row->address) ? 1 : 0;
}

/* Leaves those that a connection to the host gets to. False, and all are left, when that is none;
 * a host that is not one address has them all. */
static bool keep_fitting(struct socket_rows *rows, const char *host)
{
    struct in6_addr to;
    int best = 0;
    size_t kept = 0;
    if (!is_one_address(host, &to))
        return true;
    for (size_t i = 0; i < rows->count; i++) {
        const int fit = fit_of(&rows->at[i], &to);
        best = fit > best ? fit : best;
    }
    for (size_t i = 0; best > 0 && i < rows->count; i++) {
        if (fit_of(&rows->at[i], &to) == best)
            rows->at[kept++] = rows->at[i];
    }
    rows->count = best > 0 ? kept : rows->count;
    return best > 0;
}

/* The descriptor of one of them in that process; -1: it has none, or may not be looked into. */
static int fd_of_sockets(const char *pid, const struct socket_rows *rows)
{
    char path[300], to[64];
    int found = -1;
    (void)snprintf(path, sizeof(path), "/proc/%.20s/fd", pid);
    DIR *dir = rows->count ? opendir(path) : NULL;
    for (struct dirent *d; dir && found < 0 && (d = readdir(dir));) {
        struct socket_row want = {0};
        (void)snprintf(path, sizeof(path), "/proc/%.20s/fd/%.20s", pid, d->d_name);
        ssize_t n = readlink(path, to, sizeof(to) - 1);
        to[n > 0 ? n : 0] = '\0';
        if (sscanf(to, "socket:[%lu]", &want.inode) == 1 &&
            bsearch(&want, rows->at, rows->count, sizeof(want), by_inode))
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

/* Of those that have one of them, the lowest; 0: there is none, or it may not be seen. */
static pid_t who_has(const struct socket_rows *rows)
{
    pid_t least = 0;
    DIR *dir = rows->count ? opendir("/proc") : NULL;
    for (struct dirent *d; dir && (d = readdir(dir));) {
        pid_t pid = isdigit((unsigned char)d->d_name[0]) ? (pid_t)strtol(d->d_name, NULL, 10) : 0;
        if (pid > 0 && (!least || pid < least) && fd_of_sockets(d->d_name, rows) >= 0)
            least = pid;
    }
    if (dir)
        (void)closedir(dir); /* read only */
    return least;
}

static void find_port_owner(const char *host, unsigned port, char *who, size_t size)
{
    struct socket_rows rows = find_sockets(port);
    (void)keep_fitting(&rows, host); /* else any of them: the port is taken */
    const struct socket_row row = rows.count ? rows.at[0] : (struct socket_row){0};
    /* Descriptors of others, and of those that are not dumpable, only root may see. */
    pid_t pid = who_has(&rows);
    char unit[64];
    free(rows.at);
    if (pid > 0)
        name_process(pid, who, size);
    else if (port_cgroup_name(row.inode, unit, sizeof(unit)))
        (void)snprintf(who, size, "%s, as user %u", unit, row.uid);
    else if (row.inode)
        (void)snprintf(who, size, "a process of user %u", row.uid);
    else
        (void)snprintf(who, size, "another process");
}

pid_t port_owner_pid(const char *host, unsigned port)
{
    struct socket_rows rows = find_sockets(port);
    pid_t pid = rows.listen && keep_fitting(&rows, host) ? who_has(&rows) : 0;
    free(rows.at);
    return pid;
}

int port_owner_take(pid_t pid, unsigned port)
{
    struct socket_rows rows = find_sockets(port);
    char name[24];
    int r = -ENOENT;
    int process = rows.listen ? (int)syscall(SYS_pidfd_open, pid, 0u) : -1;
    if (rows.listen && process < 0)
        r = -errno;
    (void)snprintf(name, sizeof(name), "%d", (int)pid);
    int theirs = process < 0 ? -1 : fd_of_sockets(name, &rows);
    if (theirs >= 0) {
        r = (int)syscall(SYS_pidfd_getfd, process, theirs, 0u);
        r = r < 0 ? -errno : r;
    }
    if (process >= 0)
        close(process);
    free(rows.at);
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
    find_port_owner(host, port, who, size);
    return false;
}

static uint64_t port_owner_number_in(const char *file, const char *key)
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
    uint64_t left = port_owner_number_in("/proc/meminfo", "MemAvailable:") * 1024;
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
