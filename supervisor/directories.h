/* run_dir and state_dir at evenkeeld's start. */
#pragma once

struct config;

/* Makes both where they are missing. -EBADMSG with a sentence in the log: it is the configuration
 * that has to change. */
int directories_open(const struct config *c);
/* Takes the lock of run_dir and writes our process into it; the caller's descriptor. -EBUSY:
 * another evenkeeld has it, which the log says. */
int directories_lock(const char *run_dir, int *ret_fd);
