/*
 * The process that starts engines (--engine-process), see kernels/apart.h. It is forked by main()
 * while there is one thread, because no program that has threads can go on after fork(); after that
 * the server starts nothing any more, so that its sandbox need not let it. It does what the server
 * tells it over a socket, says how engines ended, and ends with the server; an engine ends with it.
 */
#pragma once

#include <sys/types.h>

#include "kernels/apart.h"

struct options;

struct launcher {
    struct ek_apart apart;
    pid_t pid;
};

/* Before the process has a second thread or opens anything that an engine should not have: of the
 * descriptors it keeps the first three. 0 or a negative errno. */
int launcher_begin(struct launcher *l, const struct options *o);
