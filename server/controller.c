/* Whose evenkeeld may use the control socket (controller.h). */
#include "server/controller.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/fdpass.h"

#define OVERFLOW 65534 /* the kernel's default */

uid_t controller_seen(uid_t uid, const char *map, uid_t overflow)
{
    unsigned long inside, outside, count;
    for (const char *line = map; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (sscanf(line, "%lu %lu %lu", &inside, &outside, &count) == 3 && uid >= outside &&
            uid - outside < count)
            return (uid_t)(inside + (uid - outside));
    }
    return overflow;
}

static void controller_read_text(const char *path, char *ret, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, ret, size - 1);
    if (fd >= 0)
        (void)close(fd); /* read only */
    ret[n > 0 ? n : 0] = '\0';
}

uid_t controller_uid(void)
{
    const char *text = getenv(EK_CONTROL_UID);
    char map[4096], overflow[16], *end = NULL;
    if (!text || !*text)
        return (uid_t)-1;
    errno = 0;
    unsigned long uid = strtoul(text, &end, 10);
    if (errno != 0 || *end || uid >= (uid_t)-1 || uid == geteuid())
        return (uid_t)-1;
    controller_read_text("/proc/self/uid_map", map, sizeof(map));
    controller_read_text("/proc/sys/kernel/overflowuid", overflow, sizeof(overflow));
    unsigned long over = strtoul(overflow, NULL, 10);
    return controller_seen((uid_t)uid, map, over > 0 && over < (uid_t)-1 ? (uid_t)over : OVERFLOW);
}
