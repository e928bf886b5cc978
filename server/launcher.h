/*
 * The process that starts engines (--engine-process), see kernels/apart.h. It is forked by main()
 * while there is one thread, because no program that has threads can go on after fork(); after that
 * the server starts nothing any more, so that its sandbox need not let it. It does what the server
 * tells it over a socket, says how engines ended, and ends with the server; an engine ends with it.
 */
#pragma once

#include <sys/types.h>

#include "kernels/apart.h"
#include "server/engine_cgroup.h"

struct check;
struct options;

struct launcher {
    struct ek_apart apart;
    pid_t pid;
    uint64_t most_bytes; /* the engine's memory limit of its own; 0 = none */
};

/* The file that says how readily the kernel kills this process for memory; -1 = it cannot be had.
 * Before confine_memory(), which closes it to the process itself, too. */
int launcher_score_open(void);
/* Before the process has a second thread or opens anything that an engine should not have: of the
 * descriptors it keeps the first three. The group's are closed here. `score` is of
 * launcher_score_open(); of `check` come the model's folder and the memfd that it is read from,
 * where there are; all stay the caller's. 0 or a negative errno. */
int launcher_begin(struct launcher *l, const struct options *o, struct engine_cgroup *group,
                   int score, const struct check *check);
