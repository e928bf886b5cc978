/*
 * Finds what `evenkeelctl recover` may end: processes in cgroups of servers whose evenkeeld is
 * gone, or that it does not know. Whether a process belongs to evenkeeld is read from the name of
 * its cgroup alone, and for those in evenkeeld's own from their ancestors.
 */
#include "supervisor/ctl/stray.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/cgroup.h"

bool stray_cgroup(const char *cgroup)
{
    const char *unit = strstr(cgroup, "/evenkeel-server@");
    if (unit && strstr(unit, ".service"))
        return true;
    const char *own = strstr(cgroup, "/evenkeeld.service/");
    return own && strncmp(own + strlen("/evenkeeld.service/"), "evenkeel-", 9) == 0;
}

#define HOME "/evenkeeld.service"

void stray_home(const char *cgroup, char *home, size_t size)
{
    const char *own = strstr(cgroup, HOME "/");
    home[0] = '\0';
    if (own)
        (void)snprintf(home, size, "%.*s", (int)(own - cgroup + (long)strlen(HOME)), cgroup);
}

bool stray_is_keeper(const char *cgroup, const char *home)
{
    const char *own = strstr(cgroup, HOME);
    if (!own || stray_cgroup(cgroup))
        return false;
    const char *rest = own + strlen(HOME); /* itself, or the subgroup that it moved to */
    if (*rest && strcmp(rest, "/evenkeeld") != 0)
        return false;
    return !home[0] ||
           ((size_t)(rest - cgroup) == strlen(home) && strncmp(cgroup, home, strlen(home)) == 0);
}

/* The number that a folder of /proc is named by; 0: another folder. */
static pid_t pid_of(const char *name)
{
    pid_t pid = 0;
    for (const char *c = name; *c; c++) {
        if (*c < '0' || *c > '9' || pid >= 100000000)
            return 0;
        pid = pid * 10 + (*c - '0');
    }
    return pid;
}

pid_t stray_keeper(const char *cgroup)
{
    char home[400], is[400];
    pid_t found = 0;
    DIR *proc = opendir("/proc");
    stray_home(cgroup, home, sizeof(home));
    for (const struct dirent *e; proc && !found && (e = readdir(proc));) {
        pid_t pid = pid_of(e->d_name);
        if (pid > 1 && stray_cgroup_of(pid, is, sizeof(is)) && stray_is_keeper(is, home))
            found = pid;
    }
    if (proc)
        (void)closedir(proc);
    return found;
}

bool stray_cgroup_of(pid_t pid, char *cgroup, size_t size)
{
    char path[64], line[500];
    bool found = false;
    (void)snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(line, sizeof(line), f)) {
        found = strncmp(line, "0::", 3) == 0;
        line[strcspn(line, "\n")] = '\0';
    }
    if (f)
        (void)fclose(f); /* only read */
    if (found) {
        (void)snprintf(cgroup, size, "%s", line + 3);
        ek_cgroup_own(cgroup); /* its engine's is the server's, too */
    }
    return found;
}

uint32_t stray_scan(const pid_t *kept, uint32_t kept_count, struct stray ret_strays[STRAYS_MOST])
{
    uint32_t count = 0;
    DIR *proc = opendir("/proc");
    for (const struct dirent *e; proc && count < STRAYS_MOST && (e = readdir(proc));) {
        pid_t pid = pid_of(e->d_name);
        struct stray *s = &ret_strays[count];
        if (pid <= 1 || pid == getpid() || !stray_cgroup_of(pid, s->cgroup, sizeof(s->cgroup)) ||
            !stray_cgroup(s->cgroup))
            continue;
        bool keep = false;
        for (uint32_t i = 0; i < kept_count && !keep; i++) {
            char own[400];
            keep = kept[i] == pid ||
                   (stray_cgroup_of(kept[i], own, sizeof(own)) && strcmp(own, s->cgroup) == 0);
        }
        s->pid = pid;
        count += !keep;
    }
    if (proc)
        (void)closedir(proc);
    return count;
}

/* False: it is gone, or of another namespace. */
static bool parent_of(pid_t pid, pid_t *ret_parent, pid_t *ret_session)
{
    char path[64], text[512];
    int parent, group, session;
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    (void)fclose(f); /* only read */
    text[n] = '\0';
    const char *behind = strrchr(text, ')'); /* its name may have anything in it */
    if (!behind || sscanf(behind + 1, " %*c %d %d %d", &parent, &group, &session) != 3)
        return false;
    *ret_parent = parent;
    *ret_session = session;
    return true;
}

static bool is_one_of(pid_t pid, const pid_t *servers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (servers[i] == pid)
            return true;
    }
    return false;
}

/* A scope or the root may have anything else in it. */
static bool has_one_owner(const char *cgroup)
{
    static const char service[] = ".service";
    size_t len = strlen(cgroup), tail = sizeof(service) - 1;
    return stray_cgroup(cgroup) || (len > tail && strcmp(cgroup + len - tail, service) == 0);
}

bool stray_is_of(pid_t pid, const pid_t *servers, uint32_t count)
{
    char is[400], own[400];
    pid_t parent = pid, session = 0;
    if (is_one_of(pid, servers, count))
        return true;
    for (int i = 0; i < 64 && parent > 1 && parent_of(parent, &parent, &session); i++) {
        if (is_one_of(parent, servers, count) || is_one_of(session, servers, count))
            return true;
    }
    if (!stray_cgroup_of(pid, is, sizeof(is)) || !has_one_owner(is))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (stray_cgroup_of(servers[i], own, sizeof(own)) && strcmp(own, is) == 0)
            return true;
    }
    return false;
}
