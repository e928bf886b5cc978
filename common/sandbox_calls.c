/* The calls that the kernel still takes, by seccomp, see sandbox.h: a list of what is allowed, one
 * of what is refused, and a filter out of either. The numbers of later kernels are spelled out: the
 * headers of the system that builds may be older than the kernel that runs. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/sandbox.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#define ARCH 0
#endif

#define X32_BIT 0x40000000u /* of the other numbers that x86-64 takes */

#define CALL(name) (SYS_##name)
/* Calls that a server never needs once it serves, for one whose driver's calls are not known. What
 * CUDA's libraries, NCCL or Open MPI (with hwloc and UCX) may take is not here: System V memory,
 * move_pages, inotify, asynchronous reads, links and owners of files. */
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
    448, /* process_mrelease */
    CALL(migrate_pages),
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
#ifdef SYS_mknod
    CALL(mknod),
#endif
    CALL(quotactl),
    443, /* quotactl_fd */
    467, /* open_tree_attr */
    CALL(fanotify_init),
    CALL(fanotify_mark),
    457, /* statmount */
    458, /* listmount */
    CALL(setxattr),
    CALL(lsetxattr),
    CALL(fsetxattr),
    463, /* setxattrat */
    CALL(removexattr),
    CALL(lremovexattr),
    CALL(fremovexattr),
    466, /* removexattrat */
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
    CALL(remap_file_pages),
    447, /* memfd_secret */
    459, /* lsm_get_self_attr */
    460, /* lsm_set_self_attr */
    461, /* lsm_list_modules */
    CALL(mq_open),
    CALL(mq_unlink),
    CALL(lookup_dcookie),
    425, /* io_uring_setup */
    426, /* io_uring_enter */
    427, /* io_uring_register */
    CALL(init_module),
    CALL(finit_module),
    CALL(delete_module),
    CALL(kexec_load),
#ifdef SYS_kexec_file_load
    CALL(kexec_file_load),
#endif
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

/* All system calls of a server without a card once it serves, and of the process that parses its
 * model: those that the tests' servers were seen to make, and those that another version of a C
 * library may make in their place. Calls that are allowed by their arguments are in put_args()
 * instead. Frequent ones come first: a kernel before 5.11 runs through the list each time. */
static const unsigned listed[] = {
    /* files, sockets, events */
    CALL(futex),
    CALL(read),
    CALL(write),
    CALL(sendmsg),
    CALL(sendto),
    CALL(recvfrom),
    CALL(recvmsg),
    CALL(epoll_pwait),
    CALL(epoll_ctl),
    CALL(ppoll),
#ifdef SYS_epoll_wait
    CALL(epoll_wait),
    CALL(poll),
#endif
    441, /* epoll_pwait2 */
    CALL(accept4),
    CALL(accept),
    CALL(close),
    CALL(readv),
    CALL(writev),
    CALL(pread64),
    CALL(pwrite64),
    CALL(preadv),
    CALL(pwritev),
    CALL(preadv2),
    CALL(pwritev2),
    CALL(lseek),
    CALL(fcntl),
    CALL(dup),
    CALL(dup3),
    CALL(pipe2),
    CALL(eventfd2),
    CALL(signalfd4),
    CALL(epoll_create1),
    CALL(pselect6),
    CALL(timerfd_create),
    CALL(timerfd_settime),
    CALL(timerfd_gettime),
    CALL(memfd_create),
    436, /* close_range */
    CALL(connect),
    CALL(bind),
    CALL(socketpair),
    CALL(shutdown),
    CALL(getsockname),
    CALL(getpeername),
    CALL(getsockopt),
    CALL(setsockopt),
    CALL(sendmmsg),
    CALL(recvmmsg),
    CALL(openat),
    437, /* openat2 */
    CALL(newfstatat),
    CALL(fstat),
    CALL(statx),
    CALL(statfs),
    CALL(fstatfs),
    CALL(faccessat),
    439, /* faccessat2 */
    CALL(readlinkat),
    CALL(getdents64),
    CALL(getcwd),
    CALL(flock),
    CALL(fsync),
    CALL(fdatasync),
    CALL(sync_file_range),
    CALL(ftruncate),
    CALL(truncate),
    CALL(fallocate),
    CALL(fadvise64),
    CALL(readahead),
    CALL(sendfile),
    CALL(splice),
    CALL(copy_file_range),
    CALL(renameat),
    CALL(renameat2),
    CALL(linkat),
    CALL(unlinkat),
    CALL(mkdirat),
    CALL(fchmod),
    CALL(fchmodat),
    452, /* fchmodat2 */
    CALL(umask),
    CALL(utimensat),
    /* memory */
    CALL(mmap),
    CALL(munmap),
    CALL(mprotect),
    CALL(mremap),
    CALL(madvise),
    CALL(brk),
    CALL(msync),
    CALL(mincore),
    CALL(mlock),
    CALL(mlock2),
    CALL(munlock),
    CALL(mlockall),
    CALL(munlockall),
    CALL(mbind),
    CALL(set_mempolicy),
    CALL(get_mempolicy),
    CALL(membarrier),
    453, /* map_shadow_stack */
    462, /* mseal */
    /* threads, the process, its children */
    CALL(exit),
    CALL(exit_group),
    CALL(set_robust_list),
    CALL(get_robust_list),
    CALL(set_tid_address),
    CALL(rseq),
    449, /* futex_waitv */
    454, /* futex_wake */
    455, /* futex_wait */
    456, /* futex_requeue */
    CALL(sched_yield),
    CALL(sched_getaffinity),
    CALL(sched_setaffinity),
    CALL(sched_getparam),
    CALL(sched_getscheduler),
    CALL(sched_setscheduler), /* threads of libzmq begin with it, and abort where they
                                 may not */
    CALL(sched_getattr),
    CALL(sched_get_priority_max),
    CALL(sched_get_priority_min),
    CALL(getcpu),
    CALL(getpriority),
    CALL(setpriority),
    CALL(getpid),
    CALL(getppid),
    CALL(gettid),
    CALL(getuid),
    CALL(geteuid),
    CALL(getgid),
    CALL(getegid),
    CALL(getresuid),
    CALL(getresgid),
    CALL(getgroups),
    CALL(getpgid),
    CALL(getsid),
    CALL(capget),
    CALL(getrlimit),
    CALL(setrlimit),
    CALL(getrusage),
    CALL(times),
    CALL(uname),
    CALL(sysinfo),
    CALL(getrandom),
    CALL(wait4),
    CALL(waitid),
    434, /* pidfd_open */
    /* signals, time */
    CALL(rt_sigaction),
    CALL(rt_sigprocmask),
    CALL(rt_sigpending),
    CALL(rt_sigtimedwait),
    CALL(rt_sigsuspend),
    CALL(rt_sigreturn),
    CALL(sigaltstack),
    CALL(restart_syscall),
    CALL(clock_gettime),
    CALL(clock_getres),
    CALL(clock_nanosleep),
    CALL(nanosleep),
    CALL(gettimeofday),
    CALL(setitimer),
    CALL(getitimer),
    CALL(timer_create),
    CALL(timer_settime),
    CALL(timer_gettime),
    CALL(timer_getoverrun),
    CALL(timer_delete),
/* names that one processor has and the other one not */
#if defined(__x86_64__)
    CALL(open),
    CALL(stat),
    CALL(lstat),
    CALL(access),
    CALL(readlink),
    CALL(getdents),
    CALL(rename),
    CALL(link),
    CALL(unlink),
    CALL(mkdir),
    CALL(rmdir),
    CALL(chmod),
    CALL(dup2),
    CALL(pipe),
    CALL(select),
    CALL(eventfd),
    CALL(epoll_create),
    CALL(getpgrp),
    CALL(time),
    CALL(alarm),
    CALL(pause),
    CALL(arch_prctl),
#endif
};
#define LISTED (sizeof(listed) / sizeof(listed[0]))

/* Open MPI was seen to call nothing beyond the list, over TCP and shared memory. These are what it,
 * hwloc or UCX may take for other networks: memory of other kinds, where it lies, whether a file
 * has changed. */
static const unsigned of_mpi[] = {
    CALL(shmget),
    CALL(shmat),
    CALL(shmdt),
    CALL(shmctl),
    CALL(move_pages),
    CALL(inotify_init1),
    CALL(inotify_add_watch),
    CALL(inotify_rm_watch),
};
#define OF_MPI (sizeof(of_mpi) / sizeof(of_mpi[0]))
#define NEWEST                                                                                     \
    470u /* of the calls that were looked through: a C library falls back from later ones */

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF(op, value, yes, no)                                                                     \
    BPF_JUMP(BPF_JMP | (op) | BPF_K, (uint32_t)(value), (uint8_t)(yes), (uint8_t)(no))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, (uint32_t)(value))
#define ERROR(code)   RETURN(SECCOMP_RET_ERRNO | (code))
#define ALLOW         RETURN(SECCOMP_RET_ALLOW)

#define HEAD 6u
#define ARGS 62u
#define LAST 10u
#define MOST (HEAD + 2 * (LISTED + OF_MPI > REFUSED ? LISTED + OF_MPI : REFUSED) + ARGS + LAST)

#define PR_SET_PTRACER_ 0x59616d61 /* Yama */
#define NEW_NAMESPACES                                                                             \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |  \
     CLONE_NEWNET)

/* What depends on an argument: its low half, which is all that these calls look at. A call
 * that reaches its end is none of them, and its number is loaded. */
static size_t put_args(struct sock_filter *f, uint32_t self)
{
    const struct sock_filter args[ARGS] = {
        /* glibc takes clone() when there is no clone3(), whose flags lie in memory */
        IF(BPF_JEQ, 435, 0, 1),
        ERROR(ENOSYS),
        IF(BPF_JEQ, SYS_clone, 0, 5), /* threads only */
        LOAD(args[0]),
        IF(BPF_JSET, NEW_NAMESPACES, 2, 0),
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
        IF(BPF_JEQ, SYS_ioctl, 0, 5), /* no words typed into the terminal that started it */
        LOAD(args[1]),
        IF(BPF_JEQ, TIOCSTI, 1, 0),
        IF(BPF_JEQ, TIOCLINUX, 0, 1),
        ERROR(EPERM),
        ALLOW,
        IF(BPF_JEQ, SYS_prctl, 0, 6), /* it stays not dumpable */
        LOAD(args[0]),
        IF(BPF_JEQ, PR_SET_DUMPABLE, 2, 0),
        IF(BPF_JEQ, PR_SET_PTRACER_, 1, 0),
        IF(BPF_JEQ, PR_SET_MM, 0, 1),
        ERROR(EPERM),
        ALLOW,
    };
    size_t n = 0;
    for (; n < ARGS && args[n].code; n++)
        f[n] = args[n];
    return n;
}

/* Pairs of a call and its answer. */
static size_t put_calls(struct sock_filter *f, const unsigned *call, size_t calls, uint32_t answer)
{
    for (size_t i = 0; i < calls; i++) {
        f[2 * i] = (struct sock_filter)IF(BPF_JEQ, call[i], 0, 1);
        f[2 * i + 1] = (struct sock_filter)RETURN(answer);
    }
    return 2 * calls;
}

int ek_sandbox_filter(unsigned calls)
{
    struct sock_filter f[MOST];
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
    f[n++] = (struct sock_filter)IF(BPF_JEQ, SYS_listen, 0, 1);
    f[n++] = calls & EK_CALLS_LISTEN ? (struct sock_filter)ALLOW : (struct sock_filter)ERROR(EPERM);
    if (calls & EK_CALLS_NO_SOCKET) {
        f[n++] = (struct sock_filter)IF(BPF_JEQ, SYS_socket, 0, 1);
        f[n++] = (struct sock_filter)ERROR(EPERM);
    }
    if (calls & EK_CALLS_LISTED) {
        n += put_calls(f + n, listed, LISTED, SECCOMP_RET_ALLOW);
        if (calls & EK_CALLS_MPI)
            n += put_calls(f + n, of_mpi, OF_MPI, SECCOMP_RET_ALLOW);
        n += put_args(f + n, (uint32_t)getpid());
        f[n++] = (struct sock_filter)IF(BPF_JGT, NEWEST, 0, 1);
        f[n++] = (struct sock_filter)ERROR(ENOSYS);
        f[n++] = (struct sock_filter)ERROR(EPERM);
    } else {
        n += put_calls(f + n, refused, REFUSED, SECCOMP_RET_ERRNO | EPERM);
        n += put_args(f + n, (uint32_t)getpid());
        f[n++] = (struct sock_filter)ALLOW;
    }

    const struct sock_fprog program = {.len = (unsigned short)n, .filter = f};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    long r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
    if (r > 0)
        return -EBUSY; /* a thread has a filter of its own */
    return r == 0 ? 0 : errno == ENOSYS || errno == EINVAL ? -EOPNOTSUPP : -errno;
}
