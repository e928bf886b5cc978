/* What an evenkeel-server answers when it is asked, by --dry-run or --check-config, whether and
 * with what it would start. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct remedy_facts;

/* Whether the program of this command line is one that answers. */
bool dry_answer_can(char *const *argv);
/* It would refuse to start like this: by its flags, its files, or a plan that does not fit. */
bool dry_answer_refused(int status);
/* The last sentence of what it wrote, without the program's name and the time before it; "". */
void dry_answer_sentence(const char *text, char *ret_said, size_t size);
/* --dry-run --json: its plan, that it has none that fits, or, with {0}, that nothing is known. */
void dry_answer_plan(int status, const char *text, size_t len, struct remedy_facts *ret_facts);
