/*
 * Says why a server ended, from evidence: exit status, phase, what it wrote last, the cgroup's
 * count of kills. The allocator's hint in an out-of-memory line is no evidence of fragmentation;
 * its numbers are: with X requested, Y free, Z reserved but unallocated, C capacity,
 *     X > C           asks for more than there is: configuration
 *     Z + Y < X       shortage
 *     Z >= X          fragmentation
 * Pure. Remedies that need a memory of what failed are the caller's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum crash_class {
    CRASH_CLEAN_EXIT, /* asked to stop, and it did; or its group of nodes was */
    CRASH_STARTUP_OOM,
    CRASH_BURST_OOM,
    CRASH_FRAG_OOM,
    CRASH_HOST_OOM,
    CRASH_CONFIG,
    CRASH_PORT,
    CRASH_DISK,
    CRASH_HANG_KILLED,
    CRASH_LOOP, /* a thread that serves all did not come round: its own watchdog ended it, or we */
    CRASH_DEVICE,
    CRASH_COMM,
    CRASH_SIGNAL,
    CRASH_UNKNOWN,
    CRASH_COUNT
};

enum crash_phase { PHASE_STARTING, PHASE_READY, PHASE_DRAINING };

/* What the signature catalog finds in the log, see log_class.h. */
struct crash_found {
    enum crash_class cls;
    bool weak; /* it leaves a doubt: that no retry cures it is not believed at once */
    char id[48], title[96];
    char line[160]; /* of the log */
};

struct crash_evidence {
    bool signaled; /* by `status` = signal number; else exited with `status` */
    int status;
    bool unseen;   /* it was adopted: its status was not seen, and it left no word (exit.json) */
    bool has_word; /* an engine that leaves one at every end of its own */
    enum crash_phase phase;
    bool asked;           /* evenkeeld had asked it to stop */
    bool killed;          /* evenkeeld, or systemd for it, sent SIGKILL at a deadline */
    bool killed_for_hang; /* evenkeeld killed it for making no progress */
    bool killed_for_loop; /* with it: for a thread that does not come back */
    bool killed_unready;  /* evenkeeld killed it at the deadline of its start */
    bool exit0_is_failure;
    double uptime_s;    /* 0 = not known: it was not watched */
    unsigned xid;       /* that the kernel reported shortly before, 0 = none */
    bool xid_final;     /* no start cures that one */
    uint64_t oom_kills; /* growth of oom_kill in the cgroup's memory.events (oom_window.h) */
    const char *log;    /* its last output, need not end with NUL; NULL = none */
    size_t log_len;
    const struct crash_found *found; /* NULL = nothing */
};

/* Numbers of an out-of-memory line in bytes; 0 = not said. */
struct oom_numbers {
    bool found;
    bool host;  /* the line is about host memory */
    bool no_kv; /* what is left after the weights is too little for the KV cache */
    uint64_t requested, free, reserved, capacity;
};

struct crash_verdict {
    enum crash_class cls;
    bool retry;    /* a start with the same settings can succeed */
    bool group;    /* it ended because its group did: that is not held against it */
    bool vanishes; /* what kept it from starting may be gone without a word to evenkeeld */
    struct oom_numbers numbers;
    char why[320];      /* one sentence: what ended it, by which evidence */
    char signature[48]; /* the catalog's entry by which it was told, "" = none */
    const char *remedy; /* one sentence: what helps, and what does not */
};

struct crash_verdict crash_classify(const struct crash_evidence *e);
/* Finds the last out-of-memory line of PyTorch, vLLM or evenkeel-server in text. Lines that quote
 * a request (prompt echo, JSON) do not count. */
bool oom_parse(const char *text, size_t len, struct oom_numbers *ret_numbers);
const char *crash_name(enum crash_class c); /* "STARTUP_OOM" */
/* Whether what failed a start with this class may vanish by itself: a port that is taken, files of
 * a mount that is missing, a full disk, device memory that somebody else has. Flags that are wrong
 * (status 2), a plan that does not fit, and one request above what the device has at all do not.
 * numbers: of an out-of-memory line, or NULL. */
bool crash_vanishes(enum crash_class c, int status, const struct oom_numbers *numbers);
const char *crash_remedy(enum crash_class c); /* what helps against any of the class */
