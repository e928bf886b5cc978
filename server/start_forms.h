/*
 * The forms of products of this server (kernels/product_forms.h): read from the file of an earlier
 * start or measured, kept, and told to the backend, which hands them to its devices.
 */
#pragma once

struct ek_fault;
struct stack;

/* The model is known and nothing is loaded: fills s->forms and s->open.forms, and says in a line of
 * the log what they are. A file that cannot be read or written is a warning. Negative: cannot
 * start. */
int forms_prepare(struct stack *s, struct ek_fault *fault);
