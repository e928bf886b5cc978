/*
 * The Jinja of chat templates: parse once, render many times.
 *
 * Source -> jinja_lex (tokens) -> jinja_parse, jinja_expr, jinja_postfix (a tree in an arena, never
 * changed after parsing) -> jinja_exec (statements), jinja_eval (expressions), which call jinja_ops
 * (operators), jinja_filters, jinja_tests, jinja_methods and jinja_globals over jinja_value. Values
 * cannot be changed once made, except the attributes of a namespace, as in the sandbox that
 * `transformers` renders with (trim_blocks, lstrip_blocks, loop controls, `generation` tags).
 *
 * A template is hostile input: steps, output, memory and depth are bounded, and nothing but the
 * given data can be reached. Left out on purpose: inheritance, include, import, recursive loops,
 * autoescaping, and everything that changes a list or dict in place.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct ek_arena;
struct ek_buf;
struct ek_fault;
struct ek_work;
struct jinja;

struct jinja_limits {
    uint64_t fuel;       /* steps: one for each node evaluated and for each KiB of text worked on */
    size_t output_bytes; /* of the rendered text */
    size_t memory_bytes; /* of everything that one rendering makes */
    uint32_t depth;      /* nested evaluations, macro calls included */
    uint32_t calls;      /* nested macro calls */
};
extern const struct jinja_limits jinja_limits;

enum { JINJA_NEST_MAX = 64, JINJA_SOURCE_MAX = 4 << 20 };

/* Gives a string of the data as the template shall see it. *s points into the data; a changed one
 * is made in the arena. 0, or a negative code that ends the rendering. */
typedef int jinja_mark_fn(void *arg, struct ek_arena *arena, const char **s, size_t *len);

struct jinja_env {
    const json_t *constants; /* object: variables of the model, not marked; may be NULL */
    const json_t *context;   /* object: variables of this rendering; they win */
    jinja_mark_fn *mark;     /* may be NULL */
    void *mark_arg;
    uint64_t now_s;                    /* for strftime_now, seconds since the epoch */
    const struct jinja_limits *limits; /* NULL: jinja_limits */
    struct ek_work *work;              /* pays for each step too; NULL = none */
};

/* -EBADMSG with "line L column C: ..." in the fault, -ENOMEM. The source is copied. */
int jinja_parse(const char *source, size_t len, struct jinja **ret_template,
                struct ek_fault *fault);
void jinja_free(struct jinja *t);

/* Appends the text to `out`; on failure `out` is as it was. Any thread, any number at once.
 * -EBADMSG as above (also for raise_exception and for a limit), -ENOMEM. */
int jinja_render(const struct jinja *t, const struct jinja_env *env, struct ek_buf *out,
                 struct ek_fault *fault);
