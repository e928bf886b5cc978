/*
 * From options to something that serves, in order: backend, model, texts, plan, weights, KV pool,
 * engine. The steps run in a thread of their own, so that signals and the control socket are
 * answered meanwhile.
 */
#pragma once

#include <stdbool.h>

#include "server/stack.h"

/* Reads the model and makes the memory plan; nothing large is allocated. 0, or a failure with the
 * exit code and a sentence in the fault. */
int start_plan(struct stack *s, int *ret_exit, struct ek_fault *fault);
/* A node that follows: reads and checks the model, and meets node 0. */
int start_follower(struct stack *s, int *ret_exit, struct ek_fault *fault);
/* The plan as a table or as JSON. */
int start_write_plan(const struct stack *s, bool json, struct ek_buf *out);
/* Everything but http; accepts half-built ones. The engine stops first. */
void start_done(struct stack *s);

/* start_load.c: loads what was planned and starts the engine. */
int start_load(struct stack *s, int *ret_exit, struct ek_fault *fault);
/* Whether the model's files are what they are said to be; nothing is loaded before that is so. */
int start_verify(struct stack *s, struct ek_fault *fault);
