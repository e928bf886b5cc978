/*
 * A number for the kernel's boot, read once by loop.c and kept in state.json: monotonic times and
 * pids from another boot are recognised by it and not used.
 */
#include "supervisor/io/boot.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/fnv.h"

uint64_t boot_id(void)
{
    char text[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text)) : -1;
    if (fd >= 0)
        close(fd);
    /* it is kept as a number of JSON, which has a sign */
    return n > 0 ? ek_fnv(EK_FNV_BEGIN, text, (size_t)n) >> 1 : 0;
}
