/*
 * A server that is one of several nodes (kernels/mpi/cluster.h): how node 0 meets the others
 * between reading the model and planning its memory, and what the others do in place of serving:
 * they listen nowhere and write no exit.json.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ek_device_info;
struct ek_fault;
struct ek_node_card;
struct stack;

/* Whether mpirun or srun started several of this program: which one this is, and how many. */
bool nodes_started(uint32_t *ret_node, uint32_t *ret_nodes);
/* What this node is, and which of it has to be the same on all; with the model read. */
void nodes_card(const struct stack *s, struct ek_node_card *ret_card);
/* What the plan may count on, of what node 0 has: each node gets what the smallest has. */
void nodes_info(const struct ek_node_card *cards, uint32_t nodes, struct ek_device_info *info);
/* Every node, with the model read: the cluster, and in `open` how its ranks reach the others.
 * -EBADMSG where what they say would cross a public network. */
int nodes_meet(struct stack *s, struct ek_fault *fault);
/* Not node 0, after start_follower(): loads and takes steps until node 0 ends the group. *ret_exit
 * is the exit code also when it is 0. Starter thread. */
int nodes_follow(struct stack *s, int *ret_exit, struct ek_fault *fault);
/* Whether another node was asked to stop since the last call, on node 0; until start_done(). */
bool nodes_asked(struct stack *s);
/* The first SIGTERM on a node that follows; any thread. False: there is no node to follow yet. */
bool nodes_leave(struct stack *s);
