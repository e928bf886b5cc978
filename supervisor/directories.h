/* run_dir and state_dir at evenkeeld's start. */
#pragma once

struct config;

/* Makes both where they are missing. -EBADMSG with a sentence in the log: it is the configuration
 * that has to change. */
int directories_open(const struct config *c);
/* Takes the locks of both and writes our process into them; the caller's descriptors, the second
 * one left alone where its disk allows none. -EBUSY: another evenkeeld has one, which the log says;
 * what was taken until then is in its descriptor all the same. */
int directories_lock(const struct config *c, int *ret_run_fd, int *ret_state_fd);
