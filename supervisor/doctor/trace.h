/*
 * Which process of a log failed first, and the last exception that it wrote: the decisive line. A
 * log of several processes holds one cause and many consequences, each with its own traceback;
 * the cause is where it began. Pure, fixed memory; fed with the lines that hold an exception.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_PROCESSES 16
#define TRACE_TEXT      480
#define TRACE_NONE      UINT32_MAX
#define TRACE_FRAME     120

/* Where a traceback leads: "vllm/executor/ray_utils.py:setup", or "". */
struct trace_where {
    char own[TRACE_FRAME];     /* the deepest frame of an engine's own code */
    char inner[TRACE_FRAME];   /* the deepest frame */
    char package[TRACE_FRAME]; /* the deepest frame of an installed package */
};

/* The traceback that a process is writing. */
struct trace_frames {
    uint64_t key;
    bool used;
    struct trace_where where;
};

struct trace_process {
    uint64_t key; /* what names it in a line's prefix, hashed */
    uint64_t first_line, last_line;
    uint32_t signature; /* of the last line, TRACE_NONE: no entry knows it */
    uint64_t echo_line; /* the last that only followed from another process or task */
    bool chained;       /* the next is raised from it ("raise ... from e") */
    bool plain;         /* no exception but a line that says "error: ", or one that was caught */
    char text[TRACE_TEXT];
    struct trace_where where;
};

struct doctor_trace {
    struct trace_process process[TRACE_PROCESSES]; /* in the order of their first exception */
    uint32_t count;
    uint64_t ignored_until; /* "Exception ignored in": what follows is no failure */
    struct trace_frames frames[TRACE_PROCESSES]; /* ranks write theirs line by line in turn */
    uint32_t frames_next;                        /* which of them gives way to the next process */
    uint64_t loud_line; /* the first line that complains without an exception, 0: none */
    char loud[TRACE_TEXT];
    bool loud_weak;       /* ... and it only warns, or follows from a cause */
    uint32_t frame_left;  /* in so many of the next lines a traceback may tell what was raised */
    uint32_t follow_left; /* so many of the next lines go on with what a process has said, */
    uint32_t follows;     /* ... this one of them */
};

/* A line that says how something failed (doctor_level_raises()); signature: the weightiest entry
 * that it matches, or TRACE_NONE. */
void doctor_trace_note(struct doctor_trace *t, uint64_t at, const char *line, size_t len,
                       uint32_t signature);
/* The exception of an entry that the line, which no entry knows, is raised from; NULL: none.
 * ret_outer: what the line says, with the frames above it. The caller may take `chained` back. */
struct trace_process *doctor_trace_from(struct doctor_trace *t, uint64_t at, const char *line,
                                        size_t len, struct trace_process *ret_outer);
/* "Caused by:": what follows goes on with what was noted last. */
void doctor_trace_causes(struct doctor_trace *t, const char *line, size_t len);
/* Whether the next line goes on with what was noted: a chain of causes, or a message that begins on
 * a line of its own. */
bool doctor_trace_open(const struct doctor_trace *t);
/* Whether a line names a class that a traceback above it has raised, whatever it is called. */
bool doctor_trace_raised(const struct doctor_trace *t, const char *line, size_t len);
/* That next line, with the weightiest entry that it matches, or TRACE_NONE. */
void doctor_trace_follow(struct doctor_trace *t, uint64_t at, const char *line, size_t len,
                         uint32_t signature);
/* A line of a traceback that names a file. */
void doctor_trace_frame(struct doctor_trace *t, const char *line, size_t len);
/* A line that may complain without an exception ("ERROR ...", "... failed: ..."); weak: a
 * warning, or what follows from a cause; it gives way to the first that is not. */
void doctor_trace_loud(struct doctor_trace *t, uint64_t at, const char *line, size_t len,
                       bool weak);
/* "The above exception was the direct cause of the following exception": what comes wraps it. */
void doctor_trace_wraps(struct doctor_trace *t, const char *line, size_t len);
/* The server serves: lines without an exception have not kept it from that. */
void doctor_trace_forget_plain(struct doctor_trace *t);
/* The process that failed first, NULL when none did. */
const struct trace_process *doctor_trace_first(const struct doctor_trace *t);
/* Copies as much of a text as fits, no half characters. */
void doctor_trace_copy(const char *text, size_t len, char *out, size_t size);
