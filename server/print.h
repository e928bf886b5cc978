/*
 * What evenkeel-server prints and ends: help, version, references and, with --dry-run, the plan;
 * the same plan as lines of the log. Main thread.
 */
#pragma once

struct options;
struct stack;

/* Options that print something and end: the exit code, or -1 when there is none of them. */
int print_and_end(const struct options *o);
/* Makes the plan, writes it to stdout and frees what it made; the exit code. */
int print_plan(struct stack *t);
/* The plan's table, line by line. Out of memory: no lines. */
void print_plan_to_log(const struct stack *t);
