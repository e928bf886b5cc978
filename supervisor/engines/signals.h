/* The series that decisions use; where an engine has them is its dialect's matter (dialect.h). */
#pragma once

enum signal_id {
    SIG_KV_USAGE, /* fraction 0..1, pinned by live requests */
    SIG_RUNNING,
    SIG_WAITING,
    SIG_WAITING_CAPACITY,
    SIG_PREEMPTIONS,   /* counter */
    SIG_RECOMPUTED,    /* counter, tokens */
    SIG_PROMPT_TOKENS, /* counter */
    SIG_GEN_TOKENS,    /* counter */
    SIG_STEPS,         /* counter */
    SIG_STEP_AGE_S,
    SIG_QUEUE_OLDEST_S,
    SIG_MAX_GAP_S,      /* largest inter-token gap of late */
    SIG_PREFIX_QUERIES, /* counter, tokens */
    SIG_PREFIX_HITS,    /* counter, tokens */
    SIG_BLOCKS_TOTAL,
    SIG_BLOCKS_CACHED,
    SIG_POOL_RESERVED, /* bytes outside the KV pool */
    SIG_POOL_USED,
    SIG_POOL_USED_HIGH, /* the most since the process began */
    SIG_LIMIT_SEQS,     /* live limit and its ceiling */
    SIG_LIMIT_TOKENS,
    SIG_LIMIT_DEADLINE_S, /* 0 = none */
    SIG_LIMIT_RESERVE,    /* watermark: share of blocks free after an admission */
    SIG_START_TIME,       /* process_start_time_seconds */
    SIG_FINISHED,         /* counter */
    SIG_ANSWERING, /* requests that the API has taken and not answered, whatever the engine says */
    SIG_READING_AGE_S, /* how long the body or form is being read that has taken longest */
    SIG_OPEN,          /* 1 = others reach its address and it asks for no key */
    SIG_CPU_S,         /* counter: processor time */
    SIG_BUSY_S,        /* counter: time that the device computed */
    SIG_HELD_LIMIT,    /* requests that wait, at what keeps the first of them out; else 0 */
    SIG_HELD_TOKENS,
    SIG_HELD_PREEMPTED,
    SIG_HELD_PAUSED,
    SIG_HELD_BLOCKS,
    SIG_HELD_GROWTH,
    SIG_HELD_COPIES,
    SIG_HELD_NEEDED, /* blocks: see evenkeel_admission_blocks */
    SIG_HELD_AVAILABLE,
    SIG_HELD_EXPECTED,
    SIG_HELD_FIT,        /* requests */
    SIG_ENGINE_STARTING, /* 1 = no engine's process, one is being loaded; missing: there is never */
    SIG_ENGINE_RELEASED, /* one of its own; 1 = none, an operator asked for that */
    SIG_ENGINE_RESTARTS, /* counter: all times that it was replaced */
    SIG_ENGINE_PAUSE,    /* counter: seconds without one */
    SIG_ENGINE_PLANNED,  /* counter: times that it was started again on purpose */
    SIG_STEP_TOKENS,     /* of prompts in a step, at most: the limit or less, by what steps cost */
    SIG_COUNT
};

/* Counters that only people's tools read (the doctor, evenkeelctl). */
enum figure_id { FIG_STOPPED, FIG_LENGTH, FIG_ERRORS, FIG_REFUSED, FIG_COUNT };

/* Histograms; decisions use the first two. */
enum hist_id { HIST_TTFT, HIST_ITL, HIST_QUEUE, HIST_PROMPT, HIST_OUTPUT, HIST_COUNT };

const char *signal_name(enum signal_id i); /* "kv_usage" */
