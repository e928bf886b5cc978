/*
 * The processes that belong to a server: its main one, what descends from it, and what is in the
 * session that it leads, which a daemon of its own keeps after its parent has ended. For want of a
 * cgroup of its own, which says it better; and for servers that somebody else runs.
 *
 * All processes of the machine are read once, into a list; trees are picked out of that. Reading
 * needs no privilege, but where /proc hides the processes of others (hidepid) they are not there.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct process_row {
    pid_t pid, parent, session;
    char state; /* 'Z': a zombie */
};

struct process_list {
    struct process_row *at; /* by pid, ascending */
    size_t count;
};

struct process_tree {
    pid_t root; /* 0 = none */
    pid_t *at;  /* the others */
    uint32_t count;
};

#define PROCESS_STAT_BYTES 1024u
/* /proc/PID/stat from its third field on, the state; in `text`. NULL: there is no such process. */
const char *process_stat_read(pid_t pid, char text[PROCESS_STAT_BYTES]);
/* A later field of it, see proc_pid_stat(5), with the blank before it; NULL: it has none. */
const char *process_stat_field(const char *state, int field);
/* False when there is no such process (any more). */
bool process_row_read(pid_t pid, struct process_row *ret_row);
/* 0 or -ENOMEM, and then an empty list; so it is without /proc. */
int process_list_read(struct process_list *ret_list);
void process_list_done(struct process_list *l);

/* Of a root that is not in the list, or init, the root alone. 0 or -ENOMEM, and then that, too.
 * Pure. */
int process_tree_pick(const struct process_list *l, pid_t root, struct process_tree *ret_tree);
bool process_tree_has(const struct process_tree *t, pid_t pid);
void process_tree_done(struct process_tree *t);
