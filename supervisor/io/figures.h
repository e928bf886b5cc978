/*
 * Memory of servers, host and devices, read every minute and said in one line a server, so that the
 * journal tells how it grew when something has run out; and what the kernel said of the devices
 * (XID). For metrics, and as evidence when a server has ended. Owned by the loop.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "supervisor/io/gpus.h"
#include "supervisor/io/process_tree.h"

#define FIGURES_XID_S 60.0 /* an XID so shortly before an end is its reason */

struct child;
struct figures;

/* NAN where there is no such figure. */
struct memory_figures {
    double resident;     /* of the main process, bytes */
    double own;          /* not shared and no file: of its cgroup's processes, else of its tree */
    double others;       /* the same of its tree, but for the main process */
    double cgroup, most; /* of its cgroup, if it has one of its own; most: NAN = no limit */
    double files; /* of the cgroup: pages of files, which the kernel takes back; 0 = not known */
    double stalled_s; /* sum of the time that some task there waited for memory */
};

#define MEMORY_UNKNOWN ((struct memory_figures){NAN, NAN, NAN, NAN, NAN, 0, NAN})

struct xid {
    unsigned number;
    char device[24];
    uint64_t at_us; /* monotonic; 0 = none was seen */
};

/* called for each server's line: `say` gets the text of host and devices. */
struct figures_setup {
    sd_event *event;
    double every_s;
    const char *kernel_log; /* NULL = none */
    void (*each)(void *ctx, const struct figures *f);
    void *ctx;
};

int figures_new(const struct figures_setup *setup, struct figures **ret_figures);
void figures_free(struct figures *f);

const struct gpus *figures_gpus(const struct figures *f); /* error < 0: not known */
struct xid figures_xid(const struct figures *f);          /* the last one */
uint64_t figures_xids(const struct figures *f);           /* seen in all */

/* t: the server's processes; c: our child, whose cgroup says it better, none of a server that is
 * somebody else's. */
void figures_read(const struct child *c, const struct process_tree *t,
                  struct memory_figures *ret_figures);
/* Whether it is one of the server's processes, or in the cgroup that the server has for itself. */
bool figures_owns(const struct child *c, const struct process_tree *t, pid_t pid);
/* A line of the kernel's log; false if it is no XID. Pure. */
bool figures_parse_xid(const char *line, struct xid *ret_xid);
/* Of XIDs that a start cannot cure: the device is lost or its memory is broken. */
bool figures_is_final(unsigned xid);
