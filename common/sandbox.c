/* Landlock and seccomp, see sandbox.h. The numbers of later kernels are spelled out: the headers of
 * the system that builds may be older than the kernel that runs. */
#include "common/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- Landlock ---- */

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

/* ---- seccomp ---- */

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#define ARCH 0
#endif

#define X32_BIT 0x40000000u /* of the other numbers that x86-64 takes */

#define CALL(name) (SYS_##name)
/* Calls that a server never needs once it serves. */
static const unsigned refused[] = {
    /* programs and processes */
    CALL(execve),
    CALL(execveat),
#ifdef SYS_fork
    CALL(fork),
    CALL(vfork),
#endif
    CALL(ptrace),
    CALL(process_vm_readv),
    CALL(process_vm_writev),
    CALL(kcmp),
    438, /* pidfd_getfd */
    CALL(pidfd_send_signal),
    440, /* process_madvise */
    CALL(tkill),
    CALL(rt_sigqueueinfo),
    CALL(rt_tgsigqueueinfo),
    /* the file tree */
    CALL(mount),
    CALL(umount2),
    CALL(pivot_root),
    CALL(chroot),
    428, /* open_tree */
    429, /* move_mount */
    430, /* fsopen */
    431, /* fsconfig */
    432, /* fsmount */
    433, /* fspick */
    442, /* mount_setattr */
    CALL(name_to_handle_at),
    CALL(open_by_handle_at),
    CALL(mknodat),
    CALL(quotactl),
    CALL(swapon),
    CALL(swapoff),
    CALL(acct),
    /* namespaces, users, capabilities */
    CALL(unshare),
    CALL(setns),
    CALL(setuid),
    CALL(setgid),
    CALL(setreuid),
    CALL(setregid),
    CALL(setresuid),
    CALL(setresgid),
    CALL(setfsuid),
    CALL(setfsgid),
    CALL(setgroups),
    CALL(capset),
    CALL(personality),
    /* the kernel */
    CALL(bpf),
    CALL(perf_event_open),
    CALL(userfaultfd),
    425, /* io_uring_setup */
    426, /* io_uring_enter */
    427, /* io_uring_register */
    CALL(init_module),
    CALL(finit_module),
    CALL(delete_module),
    CALL(kexec_load),
    CALL(reboot),
    CALL(syslog),
    CALL(add_key),
    CALL(request_key),
    CALL(keyctl),
    CALL(settimeofday),
    CALL(clock_settime),
    CALL(clock_adjtime),
    CALL(adjtimex),
    CALL(sethostname),
    CALL(setdomainname),
    CALL(vhangup),
#ifdef SYS_iopl
    CALL(iopl),
    CALL(ioperm),
    CALL(modify_ldt),
#endif
};
#define REFUSED (sizeof(refused) / sizeof(refused[0]))

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF(op, value, yes, no)                                                                     \
    BPF_JUMP(BPF_JMP | (op) | BPF_K, (uint32_t)(value), (uint8_t)(yes), (uint8_t)(no))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, (uint32_t)(value))
#define ERROR(code)   RETURN(SECCOMP_RET_ERRNO | (code))
#define ALLOW         RETURN(SECCOMP_RET_ALLOW)

#define HEAD 4u
#define TAIL 31u

/* The rest depends on an argument: its low half, which is all that these calls look at. */
static size_t put_tail(struct sock_filter *f, uint32_t self)
{
    const struct sock_filter tail[TAIL] = {
        /* glibc takes clone() when there is no clone3(), whose flags lie in memory */
        IF(BPF_JEQ, 435, 0, 1),
        ERROR(ENOSYS),
        IF(BPF_JEQ, SYS_clone, 0, 4), /* threads only */
        LOAD(args[0]),
        IF(BPF_JSET, CLONE_THREAD, 0, 1),
        ALLOW,
        ERROR(EPERM),
        IF(BPF_JEQ, SYS_kill, 0, 4), /* ourselves only */
        LOAD(args[0]),
        IF(BPF_JEQ, self, 0, 1),
        ALLOW,
        ERROR(EPERM),
        IF(BPF_JEQ, SYS_tgkill, 0, 4),
        LOAD(args[0]),
        IF(BPF_JEQ, self, 0, 1),
        ALLOW,
        ERROR(EPERM),
        IF(BPF_JEQ, SYS_prlimit64, 0, 5), /* its own limits only: RLIMIT_CPU of another ends it */
        LOAD(args[0]),
        IF(BPF_JEQ, 0, 1, 0),
        IF(BPF_JEQ, self, 0, 1),
        ALLOW,
        ERROR(EPERM),
        IF(BPF_JEQ, SYS_socket, 0, 6),
        LOAD(args[0]),
        IF(BPF_JEQ, AF_UNIX, 2, 0),
        IF(BPF_JEQ, AF_INET, 1, 0),
        IF(BPF_JEQ, AF_INET6, 0, 1),
        ALLOW,
        ERROR(EAFNOSUPPORT),
        ALLOW,
    };
    for (size_t i = 0; i < TAIL; i++)
        f[i] = tail[i];
    return TAIL;
}

int ek_sandbox_filter(unsigned calls)
{
    struct sock_filter f[HEAD + 2 * REFUSED + TAIL + 6];
    size_t n = 0;

    if (ARCH == 0)
        return -EOPNOTSUPP;
    f[n++] = (struct sock_filter)LOAD(arch);
    f[n++] = (struct sock_filter)IF(BPF_JEQ, ARCH, 1, 0);
    f[n++] = (struct sock_filter)ERROR(EPERM);
    f[n++] = (struct sock_filter)LOAD(nr);
#if defined(__x86_64__)
    f[n++] = (struct sock_filter)IF(BPF_JGE, X32_BIT, 0, 1);
    f[n++] = (struct sock_filter)ERROR(ENOSYS);
#endif
    for (size_t i = 0; i < REFUSED; i++) {
        f[n++] = (struct sock_filter)IF(BPF_JEQ, refused[i], 0, 1);
        f[n++] = (struct sock_filter)ERROR(EPERM);
    }
    f[n++] = (struct sock_filter)IF(BPF_JEQ, SYS_listen, 0, 1);
    f[n++] = calls & EK_CALLS_LISTEN ? (struct sock_filter)ALLOW : (struct sock_filter)ERROR(EPERM);
    if (calls & EK_CALLS_NO_SOCKET) {
        f[n++] = (struct sock_filter)IF(BPF_JEQ, SYS_socket, 0, 1);
        f[n++] = (struct sock_filter)ERROR(EPERM);
    }
    n += put_tail(f + n, (uint32_t)getpid());

    const struct sock_fprog program = {.len = (unsigned short)n, .filter = f};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    long r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
    if (r > 0)
        return -EBUSY; /* a thread has a filter of its own */
    return r == 0 ? 0 : errno == ENOSYS || errno == EINVAL ? -EOPNOTSUPP : -errno;
}
