/* The status of a process that is somebody else's child; child.c asks. */
#include "supervisor/io/exit_status.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>

#include "supervisor/io/process_tree.h"

#define TRIES        5
#define TRY_NS       2000000L
#define STATUS_FIELD 52 /* of /proc/PID/stat, see proc_pid_stat(5) */

/* struct pidfd_info as Linux 6.15 has it; the headers of Debian 12 have none. */
struct info {
    uint64_t mask, cgroup;
    uint32_t ids[11];
    int32_t exit_code;
};
#define INFO_EXIT (UINT64_C(1) << 3)
#define GET_INFO  _IOWR(0xFF, 11, struct info)
_Static_assert(sizeof(struct info) == 64, "PIDFD_INFO_SIZE_VER0");

static bool status_of_pidfd(int pidfd, int *ret_status)
{
    struct info info = {.mask = INFO_EXIT};

    if (ioctl(pidfd, GET_INFO, &info) < 0 || !(info.mask & INFO_EXIT))
        return false;
    *ret_status = info.exit_code;
    return true;
}

/* Of one that nobody has waited for yet. 0 is said to those who may not know, too. */
static bool status_of_stat(pid_t pid, int *ret_status)
{
    char text[PROCESS_STAT_BYTES];
    const char *at = process_stat_read(pid, text);

    if (!at || *at != 'Z')
        return false;
    at = process_stat_field(at, STATUS_FIELD);
    *ret_status = at ? (int)strtol(at, NULL, 10) : 0;
    return *ret_status != 0;
}

bool exit_status_of(int pidfd, pid_t pid, int *ret_status)
{
    for (int i = 0; i < TRIES; i++) {
        if (status_of_pidfd(pidfd, ret_status) || status_of_stat(pid, ret_status))
            return true;
        (void)nanosleep(&(struct timespec){.tv_nsec = TRY_NS}, NULL);
    }
    return false;
}
