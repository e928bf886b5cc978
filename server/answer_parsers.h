/* Which parsers read the answers: those that the options name, else those that the model shows.
 * Once, while the model is read. */
#pragma once

struct ek_fault;
struct served;
struct stack;

/* Sets the stack's parsers, harmony and marks, and logs what was chosen. -EBADMSG when the options
 * name one that the model cannot have. */
int answer_parsers_choose(struct stack *s, struct ek_fault *fault);
void answer_parsers_fill(const struct stack *s, struct served *v);
