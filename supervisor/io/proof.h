/*
 * Runs a program with its command line and one flag more, to hear whether it would start: 0, or its
 * exit status with the sentence that it ends with. In a process of its own that is ended when it
 * takes too long. For the loop's thread.
 */
#pragma once

#include <stdint.h>
#include <systemd/sd-event.h>

struct proof;

/* status: of its exit, or a negative errno when it could not be run or heard (-ETIMEDOUT). said:
 * its own sentence, "" when it said none; gone after the call. */
typedef void (*proof_fn)(void *ctx, int status, const char *said);

/* 0, then cb follows once; or a negative errno. The words are copied by the kernel at once. */
int proof_ask(sd_event *event, char *const *argv, char *const *env, const char *flag, proof_fn cb,
              void *ctx, struct proof **ret_proof);
/* SIGCHLD said that some child has ended: before anybody else takes the status of this one. */
void proof_look(struct proof *p);
void proof_cancel(struct proof *p); /* NULL is fine */
/* The last sentence of what it wrote, without the program's name and the time before it. */
void proof_sentence(const char *text, char *ret_said, unsigned size);
