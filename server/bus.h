/*
 * What happens when a mapped weight file becomes shorter while it is read: the kernel answers with
 * SIGBUS. Between bus_watch() and bus_done() the process then says which directory it was and ends
 * with EK_EXIT_CONFIG, in place of a death by signal that nobody can explain. A SIGBUS from
 * anywhere else kills as always. Any thread may be the one that reads.
 */
#pragma once

struct ek_weight_files;

/* The files stay mapped until bus_done(). One watch at a time. 0 or a negative errno. */
int bus_watch(const struct ek_weight_files *files, const char *dir);
void bus_done(void);
