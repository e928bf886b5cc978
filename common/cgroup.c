/*
 * Memory and quotas from the cgroup tree; the server, evenkeeld and evenkeelctl ask. A limit of any
 * group above holds as well, so walks for limits go up to the root. In a container the root
 * of the mount may be the process's own group and its path not exist below it; then the walk ends
 * at the root, which is right.
 */
#include "common/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNLIMITED (1ull << 60) /* version 1 says "none" by a number near 2^63 */
#define PATH_MOST 1024
#define TEXT_MOST 4096

/* The number behind the first `before` ("" = that it begins with); UINT64_MAX for "max", for what
 * is no number, or without it. */
static uint64_t number_after(const char *text, const char *before)
{
    const char *at = strstr(text, before);

    if (!at || strspn(at + strlen(before), "0123456789") == 0)
        return UINT64_MAX;
    uint64_t number = strtoull(at + strlen(before), NULL, 10);
    return number >= UNLIMITED ? UINT64_MAX : number;
}

/* What a file begins with that is open (-1: it is not there: ""), which is closed. */
static void cgroup_read_text(int fd, char ret_text[TEXT_MOST])
{
    memset(ret_text, 0, TEXT_MOST);
    if (fd < 0)
        return;
    (void)!read(fd, ret_text, TEXT_MOST - 1); /* of a failure nothing is there */
    (void)close(fd);                          /* read only */
}

static uint64_t cgroup_number_in(int fd, const char *before)
{
    char text[TEXT_MOST];

    cgroup_read_text(fd, text);
    return number_after(text, before);
}

static int open_in(const char *dir, const char *name)
{
    char path[PATH_MOST + 64];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static uint64_t cgroup_number_of(const char *dir, const char *name, const char *before)
{
    return cgroup_number_in(open_in(dir, name), before);
}

void ek_cgroup_memory(const char *dir, struct ek_cgroup_memory *ret_memory)
{
    char stat[TEXT_MOST];
    cgroup_read_text(open_in(dir, "memory.stat"), stat);
    const uint64_t idle = number_after(stat, "\ninactive_file ");
    const uint64_t active = number_after(stat, "\nactive_file ");

    *ret_memory = (struct ek_cgroup_memory){
        .most_bytes = cgroup_number_of(dir, "memory.max", ""),
        .used_bytes = cgroup_number_of(dir, "memory.current", ""),
        .anon_bytes = number_after(stat, "anon "),
        .file_bytes = (idle == UINT64_MAX ? 0 : idle) + (active == UINT64_MAX ? 0 : active),
        .oom_kills = cgroup_number_of(dir, "memory.events", "oom_kill "),
        .stalled_us = cgroup_number_of(dir, "memory.pressure", "total="),
    };
}

/* What the groups of a path allow, taken together. */
struct allowed {
    uint64_t limit_bytes, left_bytes, cores, whole_cores;
};

static void look_at_memory(const char *dir, struct allowed *a)
{
    static const struct {
        const char *most, *soft, *used;
    } names[] = {{"memory.max", "memory.high", "memory.current"},
                 {"memory.limit_in_bytes", "", "memory.usage_in_bytes"}};

    for (int i = 0; i < 2; i++) {
        uint64_t most = cgroup_number_of(dir, names[i].most, "");
        uint64_t used = cgroup_number_of(dir, names[i].used, "");
        uint64_t soft = names[i].soft[0] ? cgroup_number_of(dir, names[i].soft, "") : UINT64_MAX;
        most = soft < most ? soft : most;
        if (most == UINT64_MAX)
            continue;
        a->limit_bytes = most < a->limit_bytes ? most : a->limit_bytes;
        uint64_t rest = used == UINT64_MAX ? most : used < most ? most - used : 0;
        a->left_bytes = rest < a->left_bytes ? rest : a->left_bytes;
    }
}

static void look_at_cpu(const char *dir, struct allowed *a)
{
    /* "150000 100000", or "max 100000"; version 1 has a file for each, and -1. */
    uint64_t quota = cgroup_number_of(dir, "cpu.max", "");
    uint64_t period = cgroup_number_of(dir, "cpu.max", " ");

    if (period == UINT64_MAX) {
        quota = cgroup_number_of(dir, "cpu.cfs_quota_us", "");
        period = cgroup_number_of(dir, "cpu.cfs_period_us", "");
    }
    if (quota == UINT64_MAX || period == UINT64_MAX || period == 0)
        return;
    const uint64_t whole = quota < period ? 1 : quota / period;
    const uint64_t cores = quota / period + (quota % period > 0);
    a->whole_cores = whole < a->whole_cores ? whole : a->whole_cores;
    a->cores = cores < a->cores ? cores : a->cores;
}

typedef void (*look_fn)(const char *dir, struct allowed *a);

/* From root/path upwards. */
static void look_upwards(const char *root, char *path, look_fn look, struct allowed *a)
{
    char dir[PATH_MOST];

    for (;;) {
        int n = snprintf(dir, sizeof(dir), "%s%s", root, path);
        if (n > 0 && (size_t)n < sizeof(dir))
            look(dir, a);
        char *slash = strrchr(path, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

/* Whether `controller` is in a list as ",cpu,cpuacct". */
static bool cgroup_listed(const char *list, const char *controller)
{
    const size_t len = strlen(controller);

    for (const char *at = list; (at = strchr(at, ',')) != NULL;)
        if (strncmp(++at, controller, len) == 0 && (at[len] == ',' || at[len] == '\0'))
            return true;
    return false;
}

/* Looks at the own groups of a controller and those above them. */
static struct allowed allowed_by(const char *controller, const char *self, const char *root,
                                 look_fn look)
{
    struct allowed a = {UINT64_MAX, UINT64_MAX, UINT32_MAX, UINT32_MAX};
    char line[PATH_MOST], own[PATH_MOST];
    FILE *f = fopen(self, "re");

    (void)snprintf(own, sizeof(own), "%s/%s", root, controller);
    while (f && fgets(line, sizeof(line), f)) {
        /* "0::/path" is version 2, "4:memory:/path" and "5:cpu,memory:/path" version 1. */
        char *kind = strchr(line, ':'), *path = kind ? strchr(kind + 1, ':') : NULL;
        if (!path)
            continue;
        *kind = ',';
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (strcmp(kind, ",") == 0)
            look_upwards(root, path, look, &a);
        else if (cgroup_listed(kind, controller))
            look_upwards(own, path, look, &a);
    }
    if (f)
        (void)fclose(f);
    return a;
}

void ek_cgroup_left(const char *self, const char *root, uint64_t *ret_limit_bytes,
                    uint64_t *ret_left_bytes)
{
    const struct allowed a = allowed_by("memory", self, root, look_at_memory);

    *ret_limit_bytes = a.limit_bytes;
    *ret_left_bytes = a.left_bytes;
}

uint32_t ek_cgroup_cores(const char *self, const char *root, uint32_t *ret_whole)
{
    const struct allowed a = allowed_by("cpu", self, root, look_at_cpu);

    *ret_whole = (uint32_t)a.whole_cores;
    return (uint32_t)a.cores;
}

/* Version 2's mount point. */
static bool find_mount(char *ret_mount, size_t size)
{
    bool found = false;
    char line[1024], root[256], point[256];
    FILE *f = fopen("/proc/self/mountinfo", "re");
    if (!f)
        return false;
    while (!found && fgets(line, sizeof(line), f)) {
        if (strstr(line, " - cgroup2 ") &&
            sscanf(line, "%*s %*s %*s %255s %255s", root, point) == 2) {
            found = strlen(point) < size;
            if (found)
                memcpy(ret_mount, point, strlen(point) + 1);
        }
    }
    (void)fclose(f); /* read only */
    return found;
}

int ek_cgroup_dir(const char *self, char *ret_path, size_t size)
{
    char mount[256], line[512];
    if (!find_mount(mount, sizeof(mount)))
        return -ENOENT;
    FILE *f = fopen(self, "re");
    if (!f)
        return -errno;
    int r = -ENOENT;
    while (r < 0 && fgets(line, sizeof(line), f)) {
        if (strncmp(line, "0::/", 4) != 0)
            continue;
        line[strcspn(line, "\n")] = '\0';
        const char *rel = strcmp(line + 3, "/") == 0 ? "" : line + 3;
        int n = snprintf(ret_path, size, "%s%s", mount, rel);
        r = n > 0 && (size_t)n < size ? 0 : -ENAMETOOLONG;
    }
    (void)fclose(f); /* read only */
    return r;
}

/* Whether this is the name of a group that a server makes. */
static bool is_servers_part(const char *name)
{
    const size_t len = strlen(EK_CGROUP_ENGINE);
    return strcmp(name, EK_CGROUP_BESIDE) == 0 ||
           (strncmp(name, EK_CGROUP_ENGINE, len) == 0 && name[len] &&
            name[len + strspn(name + len, "0123456789")] == '\0');
}

void ek_cgroup_own(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash && is_servers_part(slash + 1))
        *slash = '\0';
}

int ek_cgroup_remove(const char *dir)
{
    char path[PATH_MOST];
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        int n =
            is_servers_part(e->d_name) ? snprintf(path, sizeof(path), "%s/%s", dir, e->d_name) : 0;
        if (n > 0 && (size_t)n < sizeof(path))
            (void)rmdir(path); /* else the next one fails, and says why */
    }
    if (d)
        (void)closedir(d);
    return rmdir(dir) < 0 ? -errno : 0;
}

/* The line of /proc/self/cgroup that begins with `tag` after its number gives the rest of the path.
 */
static int own_group_file(const char *tag, const char *mount, const char *file)
{
    char line[512], path[768];
    int fd = -1;
    FILE *f = fopen(EK_CGROUP_SELF, "re");
    while (f && fd < 0 && fgets(line, sizeof(line), f)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(colon, tag, strlen(tag)) != 0)
            continue;
        line[strcspn(line, "\n")] = '\0';
        int n = snprintf(path, sizeof(path), "%s%s/%s", mount, colon + strlen(tag), file);
        if (n > 0 && (size_t)n < sizeof(path))
            fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (f)
        (void)fclose(f); /* read only */
    return fd;
}

/* Where the kernel counts what it killed for memory. */
static int open_oom_counts(int dir)
{
    char mount[256];
    int fd = dir < 0 ? -1 : openat(dir, "memory.events", O_RDONLY | O_CLOEXEC);
    if (fd < 0 && find_mount(mount, sizeof(mount)))
        fd = own_group_file("::", mount, "memory.events");
    if (fd < 0) /* cgroup v1 */
        fd = own_group_file(":memory:", "/sys/fs/cgroup/memory", "memory.oom_control");
    return fd;
}

uint64_t ek_cgroup_oom_kills(int dir)
{
    uint64_t kills = cgroup_number_in(open_oom_counts(dir), "oom_kill ");
    return kills == UINT64_MAX ? 0 : kills;
}
