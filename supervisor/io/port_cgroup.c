/* The control group of a listening socket, by sock_diag and the inodes of /sys/fs/cgroup
 * (port_cgroup.h). Called by port_owner.c. */
#include "supervisor/io/port_cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define LISTENING   0x0A
#define CGROUP_ID   21 /* INET_DIAG_CGROUP_ID, which headers before Linux 5.9 have not */
#define CGROUP2     0x63677270
#define DEPTH_MOST  12
#define ROUNDS_MOST 256 /* answers of some 32 KiB */

/* ---- which group ---- */

static bool port_ask(int fd, uint8_t family)
{
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 body;
    } q = {.head = {.nlmsg_len = sizeof(q),
                    .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                    .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
           .body = {.sdiag_family = family,
                    .sdiag_protocol = IPPROTO_TCP,
                    .idiag_states = 1u << LISTENING}};
    const struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    return sendto(fd, &q, sizeof(q), 0, (const struct sockaddr *)&kernel, sizeof(kernel)) ==
           (ssize_t)sizeof(q);
}

/* 0 = it has none. The macros for such messages take away a const, which clang refuses. */
static uint64_t id_in(struct nlmsghdr *h)
{
    struct inet_diag_msg *m = NLMSG_DATA(h);
    uint64_t id = 0;
    int left = (int)h->nlmsg_len - (int)NLMSG_LENGTH(sizeof(*m));
    for (struct rtattr *a = (void *)(m + 1); RTA_OK(a, left); a = RTA_NEXT(a, left)) {
        if (a->rta_type == CGROUP_ID && RTA_PAYLOAD(a) == sizeof(id))
            memcpy(&id, RTA_DATA(a), sizeof(id));
    }
    return id;
}

/* Reads one answer. True: there are more. */
static bool port_take(int fd, unsigned long inode, uint64_t *id)
{
    _Alignas(struct nlmsghdr) char text[32768];
    ssize_t got = recv(fd, text, sizeof(text), MSG_DONTWAIT);
    int left = (int)got;
    for (struct nlmsghdr *h = (void *)text; got > 0 && NLMSG_OK(h, (unsigned)left);
         h = NLMSG_NEXT(h, left)) {
        if (h->nlmsg_type == NLMSG_DONE || h->nlmsg_type == NLMSG_ERROR)
            return false;
        const struct inet_diag_msg *m = NLMSG_DATA(h);
        if (h->nlmsg_len >= NLMSG_LENGTH(sizeof(*m)) && m->idiag_inode == inode)
            *id = id_in(h);
    }
    return got > 0;
}

static uint64_t find_id(unsigned long inode)
{
    static const uint8_t families[] = {AF_INET, AF_INET6};
    uint64_t id = 0;
    for (size_t i = 0; i < sizeof(families) && id == 0; i++) {
        int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
        bool more = fd >= 0 && port_ask(fd, families[i]);
        for (int n = 0; more && n < ROUNDS_MOST; n++)
            more = port_take(fd, inode, &id);
        if (fd >= 0)
            close(fd);
    }
    return id;
}

/* ---- its name ---- */

struct socket_search {
    uint64_t id;
    unsigned seen;
    char *name;
    size_t size;
};

static void keep_name(const char *name, const struct socket_search *s)
{
    size_t n = 0;
    for (; name[n] && n + 1 < s->size; n++)
        s->name[n] = name[n] > ' ' && name[n] < 0x7f && name[n] != '%' ? name[n] : '?';
    s->name[n] = '\0';
}

/* Closes `fd`. */
static bool search_below(int fd, int depth, struct socket_search *s)
{
    struct stat st;
    bool found = false;
    DIR *dir = fdopendir(fd);
    if (!dir)
        close(fd);
    for (const struct dirent *e; dir && !found && (e = readdir(dir));) {
        if (e->d_type != DT_DIR || e->d_name[0] == '.')
            continue;
        if (++s->seen > PORT_CGROUPS_MOST)
            break;
        if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        found = st.st_ino == s->id;
        if (found)
            keep_name(e->d_name, s);
        int below =
            found || depth == DEPTH_MOST
                ? -1
                : openat(dirfd(dir), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        found = found || (below >= 0 && search_below(below, depth + 1, s));
    }
    if (dir)
        (void)closedir(dir); /* read only */
    return found;
}

bool port_cgroup_name(unsigned long inode, char *ret_name, size_t size)
{
    static const char *const roots[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    struct socket_search s = {.id = inode ? find_id(inode) : 0, .name = ret_name, .size = size};
    struct statfs fs;
    bool found = false;
    for (size_t i = 0; i < sizeof(roots) / sizeof(roots[0]) && s.id > 1 && !found; i++) {
        if (statfs(roots[i], &fs) < 0 || fs.f_type != CGROUP2)
            continue;
        int fd = open(roots[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        found = fd >= 0 && search_below(fd, 0, &s);
    }
    return found;
}
