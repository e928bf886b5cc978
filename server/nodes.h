/*
 * A server that is one of several nodes (kernels/nodes/cluster.h): how node 0 meets the others
 * between reading the model and planning its memory, and what the others do in place of serving.
 */
#pragma once

#include <stdbool.h>

struct ek_fault;
struct stack;

/* Every node, with the model read: the cluster, and in `open` how its ranks reach the others. */
int nodes_meet(struct stack *s, struct ek_fault *fault);
/* Not node 0, after start_follower(): loads and takes steps until node 0 ends the group. *ret_exit
 * is the exit code also when it is 0. Starter thread. */
int nodes_follow(struct stack *s, int *ret_exit, struct ek_fault *fault);
/* SIGTERM on a node that follows; any thread. False: there is nobody to follow yet. */
bool nodes_leave(struct stack *s, bool at_once);
