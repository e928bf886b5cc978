/*
 * The planner's answer as one struct: what fits, with which settings, how fast, how many and for
 * how much; and, where it does not fit, what would. Text, JSON and HTML print this struct. Pure.
 */
#pragma once

#include "supervisor/planner/fit.h"
#include "supervisor/planner/gpus.h"
#include "supervisor/planner/shape.h"
#include "supervisor/planner/speed.h"

#define PLAN_CHOICES_MOST 32

struct plan_question {
    struct plan_shape shape;
    const char *model;   /* its path, for commands; NULL = "MODEL" */
    const char *device;  /* what it is called */
    double memory_bytes; /* of one card */
    struct plan_device speed;
    bool speed_given;  /* the figures are known; else assumed where there is no card */
    double price_hour; /* of one card, 0 = not given */
    uint32_t cards;    /* in the machine */
    uint32_t stages;   /* --pipeline-parallel-size, 0 = 1 */
    uint32_t nodes;    /* --nnodes: machines like it, 0 = 1 */
    double share;
    uint32_t max_len;              /* asked for, 0 = the longest that fits */
    uint32_t seqs, tokens;         /* asked for, 0 = choose */
    uint32_t weight_bits, kv_bits; /* asked for, 0 = as the files are, 16 */
    uint32_t cards_each;           /* tensor parallel, 0 = choose */
    bool gpu;                      /* else the CPU */
    struct plan_load load;
    bool load_known;
    const struct plan_fit
        *own; /* what evenkeel-server itself says of this machine, NULL: not asked */
};

/* One way to serve it. */
struct plan_choice {
    struct plan_setup setup;
    struct plan_fit fit;
};

#define PLAN_WHAT_MOST 4u

struct plan_answer {
    struct plan_choice chosen;
    bool fits;
    uint32_t max_len, seqs, tokens; /* to set */
    enum plan_bound bound;
    struct plan_speed alone, full; /* one sequence; `seqs` of them */
    uint32_t replicas;             /* for the rate; 0 = not asked or cannot be kept */
    uint32_t cards_needed;         /* in all, in powers of two for each stage; 0 = more than 64 */
    double cost_million;           /* output tokens, at full use; 0 = no price */
    struct plan_choice choices[PLAN_CHOICES_MOST]; /* all ways with this machine */
    uint32_t choice_count;
    char why[320];     /* one sentence: why not, or what decides */
    char note[240];    /* why not as it is stored, when another form was chosen; else "" */
    bool promise_kept; /* or none was given */
    uint32_t knee;     /* so many sequences give 95 % of the output of `seqs`, sooner */
    struct plan_speed at_knee;
    char what[PLAN_WHAT_MOST][200]; /* what would fit, or keep the promise; best first */
    uint32_t what_count;
    /* What evenkeel-server says of these settings on a card; the caller asks it. */
    bool server_asked, server_fits;
    struct plan_fit server;
    char server_said[400]; /* why not */
};

/* Whether stages of so many cards can be laid out on machines with `cards_here` cards each: as many
 * ranks on each, and stages within machines or over whole ones. */
bool plan_layout_fits(uint32_t cards, uint32_t stages, uint32_t nodes, uint32_t cards_here);
void plan_advise(const struct plan_question *q, struct plan_answer *ret_answer);
