/*
 * Limits of memory from the cgroup tree. A limit of any group above holds as well, so the walk goes
 * up to the root. In a container the root of the mount may be the process's own group and its path
 * not exist below it; then the walk ends at the root, which is right.
 */
#include "kernels/cpu/cgroup.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNLIMITED (1ull << 60) /* version 1 says "none" by a number near 2^63 */
#define PATH_MOST 1024

/* The number in DIR/NAME; UINT64_MAX for "max", for what is no number, or when it is not there. */
static uint64_t read_file(const char *dir, const char *name)
{
    char path[PATH_MOST + 64], text[64] = "", *end;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "re");

    if (!f)
        return UINT64_MAX;
    if (!fgets(text, sizeof(text), f))
        text[0] = '\0';
    (void)fclose(f);
    uint64_t number = strtoull(text, &end, 10);
    return end == text || number >= UNLIMITED ? UINT64_MAX : number;
}

static void look_at(const char *dir, uint64_t *limit, uint64_t *left)
{
    static const struct {
        const char *most, *soft, *used;
    } names[] = {{"memory.max", "memory.high", "memory.current"},
                 {"memory.limit_in_bytes", "", "memory.usage_in_bytes"}};

    for (int i = 0; i < 2; i++) {
        uint64_t most = read_file(dir, names[i].most), used = read_file(dir, names[i].used);
        uint64_t soft = names[i].soft[0] ? read_file(dir, names[i].soft) : UINT64_MAX;
        most = soft < most ? soft : most;
        if (most == UINT64_MAX)
            continue;
        *limit = most < *limit ? most : *limit;
        uint64_t rest = used == UINT64_MAX ? most : used < most ? most - used : 0;
        *left = rest < *left ? rest : *left;
    }
}

/* From root/path upwards. */
static void climb(const char *root, char *path, uint64_t *limit, uint64_t *left)
{
    char dir[PATH_MOST];

    for (;;) {
        int n = snprintf(dir, sizeof(dir), "%s%s", root, path);
        if (n > 0 && (size_t)n < sizeof(dir))
            look_at(dir, limit, left);
        char *slash = strrchr(path, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

void cpu_cgroup_memory(const char *self, const char *root, uint64_t *ret_limit_bytes,
                       uint64_t *ret_left_bytes)
{
    char line[PATH_MOST], memory[PATH_MOST];
    FILE *f = fopen(self, "re");

    *ret_limit_bytes = *ret_left_bytes = UINT64_MAX;
    (void)snprintf(memory, sizeof(memory), "%s/memory", root);
    while (f && fgets(line, sizeof(line), f)) {
        /* "0::/path" is version 2, "4:memory:/path" and "5:cpu,memory:/path" version 1. */
        char *kind = strchr(line, ':'), *path = kind ? strchr(kind + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (strcmp(kind, ":") == 0)
            climb(root, path, ret_limit_bytes, ret_left_bytes);
        else if (strstr(kind, "memory"))
            climb(memory, path, ret_limit_bytes, ret_left_bytes);
    }
    if (f)
        (void)fclose(f);
}
