/* Landlock, see sandbox.h; seccomp is in sandbox_calls.c. The numbers of later kernels are spelled
 * out: the headers of the system that builds may be older than the kernel that runs. */
#include "common/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FS_FILE     (1ull << 0 | 1ull << 1 | 1ull << 2 | 1ull << 14 | 1ull << 15)
#define FS_READ     (1ull << 2 | 1ull << 3)             /* file, directory */
#define FS_WRITE    (1ull << 1 | 1ull << 14)            /* write, truncate */
#define FS_CREATE   (1ull << 5 | 1ull << 8 | 1ull << 9) /* remove, make a file, make a socket */
#define FS_IOCTL    (1ull << 15)
#define NET_CONNECT (1ull << 1)
#define SCOPE_KILL  (1ull << 1)

/* struct landlock_ruleset_attr of version 6; earlier kernels take its beginning. */
struct ruleset {
    uint64_t fs, net, scoped;
};

struct ek_sandbox {
    int fd;
    uint64_t fs;
};

int ek_sandbox_dumpable(bool on)
{
    return prctl(PR_SET_DUMPABLE, on ? 1 : 0, 0, 0, 0) < 0 ? -errno : 0;
}

int ek_sandbox_version(void)
{
    long v = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    return v > 0 ? (int)v : 0;
}

/* What a version can forbid in the file system: 13 rights at first, then refer, truncate, ioctl. */
static uint64_t fs_rights(int version)
{
    int bits = version >= 5 ? 16 : version >= 3 ? 15 : version >= 2 ? 14 : 13;
    return (1ull << bits) - 1;
}

int ek_sandbox_new(bool no_connect, struct ek_sandbox **ret_sandbox)
{
    int version = ek_sandbox_version();
    if (version == 0)
        return -EOPNOTSUPP;
    struct ek_sandbox *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->fs = fs_rights(version);
    struct ruleset rules = {.fs = s->fs,
                            .net = no_connect && version >= 4 ? NET_CONNECT : 0,
                            .scoped = version >= 6 ? SCOPE_KILL : 0};
    size_t size = version >= 6   ? sizeof(rules)
                  : version >= 4 ? offsetof(struct ruleset, scoped)
                                 : offsetof(struct ruleset, net);
    s->fd = (int)syscall(SYS_landlock_create_ruleset, &rules, size, 0);
    if (s->fd < 0) {
        int r = -errno;
        free(s);
        return r;
    }
    *ret_sandbox = s;
    return 0;
}

void ek_sandbox_free(struct ek_sandbox *s)
{
    if (s)
        (void)close(s->fd);
    free(s);
}

int ek_sandbox_allow(struct ek_sandbox *s, const char *path, unsigned may)
{
    struct stat st;
    struct landlock_path_beneath_attr rule = {
        .allowed_access = (may & EK_MAY_READ ? FS_READ : 0) | (may & EK_MAY_WRITE ? FS_WRITE : 0) |
                          (may & EK_MAY_CREATE ? FS_CREATE : 0) |
                          (may & EK_MAY_DEVICE ? FS_IOCTL : 0)};
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR || errno == EACCES ? 0 : -errno;
    int r = fstat(fd, &st) < 0 ? -errno : 0;
    rule.parent_fd = fd;
    rule.allowed_access &= s->fs & (S_ISDIR(st.st_mode) ? UINT64_MAX : FS_FILE);
    if (r == 0 && rule.allowed_access != 0 &&
        syscall(SYS_landlock_add_rule, s->fd, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) < 0)
        r = -errno;
    (void)close(fd);
    return r;
}

int ek_sandbox_enter(const struct ek_sandbox *s)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        syscall(SYS_landlock_restrict_self, s->fd, 0) < 0)
        return -errno;
    return 0;
}

int ek_sandbox_alone(void)
{
    const struct ruleset rules = {.scoped = SCOPE_KILL};
    if (ek_sandbox_version() < 6 || prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
        return -EOPNOTSUPP;
    int fd = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof(rules), 0);
    if (fd < 0)
        return -errno;
    int r = syscall(SYS_landlock_restrict_self, fd, 0) < 0 ? -errno : 0;
    (void)close(fd);
    return r;
}
