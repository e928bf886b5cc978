/*
 * Asks an evenkeel-server what it would plan with a command line: runs it with --dry-run --json in
 * a process of its own, reads the one line that it prints, and ends it when it takes too long. For
 * the loop's thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

struct remedy_facts;
struct plan_ask;

typedef void (*plan_ask_fn)(void *ctx, const struct remedy_facts *facts);

/* Whether the program of this command line is one that answers. */
bool plan_ask_can(char *const *argv);
/* SIGCHLD said that some child has ended: before anybody else takes the status of this one. */
void plan_ask_look(struct plan_ask *a);
/* 0, then cb follows once; or a negative errno. argv and env are copied by the kernel at once. */
int plan_ask(sd_event *event, char *const *argv, char *const *env, uint32_t timeout_ms,
             plan_ask_fn cb, void *ctx, struct plan_ask **ret_ask);
void plan_ask_cancel(struct plan_ask *a); /* NULL is fine */
/* The line; false when it is none. */
bool plan_ask_parse(const char *text, size_t len, struct remedy_facts *ret_facts);
