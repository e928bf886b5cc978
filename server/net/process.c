/*
 * Numbers of this process from /proc/self (process.h). Called for the page of metrics and by
 * sizing.c.
 */
#include "server/net/process.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "Key:   123 kB" in bytes. */
static uint64_t status_bytes(const char *line, const char *key)
{
    size_t len = strlen(key);
    return strncmp(line, key, len) == 0 ? strtoull(line + len, NULL, 10) * 1024 : 0;
}

static uint64_t sum_status(const char *first, const char *second)
{
    char line[160];
    uint64_t bytes = 0;
    FILE *f = fopen("/proc/self/status", "re");
    if (!f)
        return 0;
    while (fgets(line, sizeof(line), f)) {
        bytes += status_bytes(line, first);
        if (second)
            bytes += status_bytes(line, second);
    }
    (void)fclose(f);
    return bytes;
}

uint64_t process_resident_bytes(void)
{
    return sum_status("VmRSS:", NULL);
}

uint64_t process_anonymous_bytes(void)
{
    return sum_status("RssAnon:", "RssShmem:");
}

uint32_t process_open_fds(void)
{
    uint32_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        (void)closedir(d);
    return n > 3 ? n - 3 : 0; /* ".", ".." and the directory itself */
}
