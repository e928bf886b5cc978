/*
 * What happens when a mapped weight file becomes shorter while it is read: the kernel answers with
 * SIGBUS. Between sigbus_watch() and sigbus_done() the process then says which directory it was and
 * ends with EK_EXIT_CONFIG, in place of a death by signal that nobody can explain. A SIGBUS from
 * anywhere else kills as always. Any thread may be the one that reads.
 */
#pragma once

struct ek_weight_files;

/* The files stay mapped until sigbus_done(). One watch at a time. 0 or a negative errno. */
int sigbus_watch(const struct ek_weight_files *files, const char *dir);
void sigbus_done(void);
