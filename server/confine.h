/*
 * What a server gives away (common/sandbox.h): from the start all files but the model's, those that
 * its options name, the system's libraries and its own two directories; once it serves, all calls
 * that it then has no use for. Called by main.c. A kernel that cannot do one of them is served on.
 */
#pragma once

#include <stdbool.h>

struct options;

struct confined {
    bool files, calls, memory; /* done */
    int landlock;              /* its version: once calls are refused it cannot be asked */
    bool off;      /* --no-sandbox, or a build with sanitizers, which trace their process */
    char why[120]; /* of what was not done, "" = nothing */
};

/* Whether there is one at all. */
bool confine_is_on(const struct options *o);
/* The child that checks the model (check.h): it can open that directory and nothing else, and has
 * no sockets. What cannot be had is left out. */
void confine_check(const struct options *o, const char *dir);
/* Memory, descriptors and environment are closed to others of the user, or open: what is forked
 * later (launcher, engine, check) has the same. */
void confine_memory(bool dumpable, struct confined *c);
/* Before the process has a second thread. */
void confine_files(const struct options *o, struct confined *c);
/* Whether an engine's process has to do that itself: a card's driver writes below the /proc of its
 * own process, which nobody can name before it is there. */
bool confine_engine_itself(const struct options *o);
/* Once it serves: all threads. */
void confine_calls(const struct options *o, struct confined *c);
/* The same in an engine's process, once its device is loaded; warns where that is not done. */
void confine_engine_calls(const struct options *o, struct confined *c);
/* One line about both. */
void confine_say(const struct confined *c);
