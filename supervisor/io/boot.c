#include "supervisor/io/boot.h"

#include <fcntl.h>
#include <unistd.h>

uint64_t boot_id(void)
{
    char text[64];
    uint64_t h = 14695981039346656037ull;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text)) : -1;
    if (fd >= 0)
        close(fd);
    for (ssize_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * 1099511628211ull;
    return n > 0 ? h >> 1 : 0; /* it is kept as a number of JSON, which has a sign */
}
