/*
 * Lists the machine's processes from /proc/PID/stat and picks those that belong to one root. Passes
 * repeat until none adds a process, since a child may come before its parent in the list. figures.c
 * sums the memory of a tree, strays.c reads single rows.
 */
#include "supervisor/io/process_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_ROWS 256u

/* "pid (name) state parent group session ...", where a name may hold anything. */
const char *process_stat_read(pid_t pid, char text[PROCESS_STAT_BYTES])
{
    char file[64];

    (void)snprintf(file, sizeof(file), "/proc/%d/stat", (int)pid);
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    ssize_t n = read(fd, text, PROCESS_STAT_BYTES - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *end = strrchr(text, ')');
    return end && end[1] == ' ' && end[2] != '\0' ? end + 2 : NULL;
}

const char *process_stat_field(const char *state, int field)
{
    for (int at = 3; state && at < field; at++)
        state = strchr(state + 1, ' ');
    return state;
}

bool process_row_read(pid_t pid, struct process_row *ret_row)
{
    char text[PROCESS_STAT_BYTES];
    int parent = 0, session = 0;
    char state = 0;
    const char *at = process_stat_read(pid, text);
    if (!at || sscanf(at, "%c %d %*d %d", &state, &parent, &session) != 3)
        return false;
    *ret_row =
        (struct process_row){.pid = pid, .parent = parent, .session = session, .state = state};
    return true;
}

static int by_pid(const void *a, const void *b)
{
    pid_t x = ((const struct process_row *)a)->pid, y = ((const struct process_row *)b)->pid;
    return x < y ? -1 : x > y;
}

static int add_row(struct process_list *l, size_t *room, const struct process_row *row)
{
    if (l->count == *room) {
        size_t more = *room ? 2 * *room : FIRST_ROWS;
        struct process_row *at = realloc(l->at, more * sizeof(*at));
        if (!at)
            return -ENOMEM;
        l->at = at;
        *room = more;
    }
    l->at[l->count++] = *row;
    return 0;
}

int process_list_read(struct process_list *ret_list)
{
    struct process_list l = {0};
    struct process_row row;
    size_t room = 0;
    int r = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *e; r == 0 && proc && (e = readdir(proc));) {
        char *rest;
        long pid = strtol(e->d_name, &rest, 10);
        if (pid > 0 && !*rest && process_row_read((pid_t)pid, &row))
            r = add_row(&l, &room, &row);
    }
    if (proc)
        (void)closedir(proc); /* read only */
    if (r < 0)
        process_list_done(&l);
    else if (l.count > 0)
        qsort(l.at, l.count, sizeof(*l.at), by_pid);
    *ret_list = l;
    return r;
}

void process_list_done(struct process_list *l)
{
    free(l->at);
    *l = (struct process_list){0};
}

/* Whether its parent was picked, it is a child of the root, or in the root's session. */
static bool belongs(const struct process_list *l, const bool *picked, size_t i, pid_t root)
{
    const struct process_row *row = &l->at[i];
    const struct process_row key = {.pid = row->parent};
    if (row->pid == root || row->parent == root || row->session == root)
        return true;
    const struct process_row *parent = bsearch(&key, l->at, l->count, sizeof(key), by_pid);
    return parent && picked[parent - l->at];
}

/* Children mostly have the greater number, so that two rounds are the rule. */
static uint32_t pick_all(const struct process_list *l, pid_t root, bool *picked)
{
    uint32_t count = 0;
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < l->count; i++) {
            if (picked[i] || !belongs(l, picked, i, root))
                continue;
            picked[i] = more = true;
            count++;
        }
    }
    return count;
}

int process_tree_pick(const struct process_list *l, pid_t root, struct process_tree *ret_tree)
{
    int r = -ENOMEM;
    struct process_tree t = {.root = root};
    bool *picked = NULL;
    const struct process_row key = {.pid = root};
    if (root <= 1 || !l->count || !bsearch(&key, l->at, l->count, sizeof(key), by_pid)) {
        *ret_tree = t;
        return 0;
    }
    picked = calloc(l->count, sizeof(*picked));
    if (!picked)
        goto out;
    t.at = calloc(pick_all(l, root, picked), sizeof(*t.at));
    if (!t.at)
        goto out;
    for (size_t i = 0; i < l->count; i++) {
        if (picked[i] && l->at[i].pid != root)
            t.at[t.count++] = l->at[i].pid;
    }
    r = 0;
out:
    free(picked);
    *ret_tree = t;
    return r;
}

bool process_tree_has(const struct process_tree *t, pid_t pid)
{
    bool found = pid > 0 && pid == t->root;
    for (uint32_t i = 0; !found && i < t->count; i++)
        found = t->at[i] == pid;
    return found;
}

void process_tree_done(struct process_tree *t)
{
    free(t->at);
    *t = (struct process_tree){0};
}
