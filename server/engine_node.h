/*
 * Node 0 of an engine over several machines (engine_command.h): it loads its part of the model,
 * meets the other nodes, and does what the server orders over the memory that they share. Like a
 * node that follows it listens nowhere and writes no exit.json.
 */
#pragma once

struct ek_fault;
struct stack;

/* Returns only when it cannot be; *ret_exit is the exit code then. The server is told why, if there
 * is one. Starter thread. */
int engine_node_run(struct stack *s, int *ret_exit, struct ek_fault *fault);
