/*
 * What nodes (processes that compute one model together, each with some of the ranks) say to each
 * other, as plain data: frames of a head and a body, and what a body may hold. Pure: bytes come and
 * go in link.c. All nodes run the same program, so bodies are structs as they lie in memory; the
 * head and the card say whether that holds, and every length is checked before it is used.
 *
 * Where there is a key, who calls begins with KNOCK, gets a CHALLENGE that proves that the other
 * side has it, and gives its own PROOF, before either says who it is (proof.h). Then HELLO and
 * WELCOME; of more than two nodes, node 0 tells the others of each other (PEERS), and gets a REPLY
 * when they have met.
 *
 * Node 0 says OPEN, LOAD, KV_OPEN and RESIZE and gets a REPLY to each, STEP and SAMPLE and gets one
 * DONE for both, or a RESULT of the node that answers; PING (a PONG comes at once) and BYE at the
 * end. Any node says FAIL when it ends.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

struct ek_fault;

#define EK_FRAME_MAGIC    0x4b4e4b45u /* "EKNK" on a little-endian machine */
#define EK_FRAME_PROTOCOL 2u
#define EK_FRAME_MOST     (256u << 20) /* bytes of any body */
#define EK_NODES_MOST     EK_MOST_RANKS

enum ek_frame_kind {
    EK_FRAME_HELLO = 1, /* struct ek_node_card */
    EK_FRAME_WELCOME,   /* struct ek_welcome */
    EK_FRAME_REFUSE,    /* struct ek_node_fault */
    EK_FRAME_OPEN,      /* struct ek_meeting */
    EK_FRAME_LOAD,      /* struct ek_load_order */
    EK_FRAME_KV_OPEN,   /* struct ek_kv_params */
    EK_FRAME_RESIZE,    /* struct ek_resize_order */
    EK_FRAME_REPLY,     /* struct ek_node_fault */
    EK_FRAME_STEP,      /* struct ek_step as it is */
    EK_FRAME_SAMPLE,    /* struct ek_sample_order, then struct ek_masks if there are any */
    EK_FRAME_DONE,      /* struct ek_step_done */
    EK_FRAME_PING,      /* nothing */
    EK_FRAME_PONG,      /* nothing */
    EK_FRAME_FAIL,      /* struct ek_node_fault */
    EK_FRAME_LEAVE,     /* nothing: a node was asked to stop */
    EK_FRAME_BYE,       /* struct ek_node_fault: code is the exit code of node 0 */
    EK_FRAME_KNOCK,     /* struct ek_knock */
    EK_FRAME_CHALLENGE, /* struct ek_challenge */
    EK_FRAME_PROOF,     /* struct ek_proof */
    EK_FRAME_PEERS,     /* struct ek_peer_list */
    EK_FRAME_RESULT,    /* struct ek_result as it is */
};

struct ek_frame {
    uint32_t magic;
    uint16_t protocol, kind;
    uint64_t run;   /* drawn by node 0; 0 in HELLO before it is known */
    uint64_t bytes; /* of the body */
    uint64_t sum;   /* XXH3 of the body */
};

enum ek_link_role {
    EK_ROLE_CONTROL, /* to node 0 */
    EK_ROLE_DATA,    /* to node 0 */
    EK_ROLE_PEER,    /* data, to a node below this one that is not node 0 */
};

/* What a node is and has. Texts end within their arrays. */
struct ek_node_card {
    uint32_t abi, role;
    uint32_t node, nodes, ranks; /* ranks: of all nodes */
    uint32_t stages;             /* that they are divided into, at least 1 */
    uint32_t port;               /* where it listens for nodes above it, 0 = nowhere */
    uint32_t kept;               /* 0 */
    char program[32];            /* its version */
    char host[64];
    char backend[16], isa[32], device[64];
    char model[64];  /* its family */
    char form[96];   /* types of weights and cache, as text */
    uint64_t graph;  /* ek_graph_sum() */
    uint64_t weight; /* ek_weight_sum() */
    uint64_t memory_bytes, free_bytes;
};

struct ek_welcome {
    uint64_t run, stall_us;
    char host[64];
};

struct ek_node_fault {
    int32_t code;
    uint32_t kept; /* 0 */
    char msg[480];
    char field[64];
};

#define EK_NONCE_BYTES 32u
#define EK_MAC_BYTES   32u

struct ek_knock {
    uint8_t nonce[EK_NONCE_BYTES];
};

struct ek_challenge {
    uint8_t nonce[EK_NONCE_BYTES], proof[EK_MAC_BYTES];
};

struct ek_proof {
    uint8_t proof[EK_MAC_BYTES];
};

/* Nodes 1 and above, where they listen. */
struct ek_peer_list {
    uint32_t count, kept; /* 0 */
    struct ek_peer_at {
        uint32_t node, port;
        char addr[64], host[64];
    } at[EK_NODES_MOST];
};

struct ek_meeting {
    uint8_t bytes[EK_MEETING_BYTES];
};

struct ek_load_order {
    struct ek_step_ceiling ceiling;
    uint32_t logit_rows, block_size, max_model_len;
};

struct ek_resize_order {
    uint32_t blocks;
};

struct ek_sample_order {
    uint64_t step;
    uint32_t masked; /* 1: masks follow */
    uint32_t kept;   /* 0, or a word so that the masks lie aligned */
};

struct ek_step_done {
    uint64_t step;
    int32_t error;
    uint32_t seqs;
    uint64_t tokens; /* ek_result_sum() */
};

/* The head of a frame for a body. */
struct ek_frame ek_frame_of(enum ek_frame_kind kind, uint64_t run, const void *body, size_t bytes);
/* Whether a head is one of this protocol and its body may be taken: -EBADMSG with a fault that says
 * what came from `peer`. `run` 0: any. */
int ek_frame_check(const struct ek_frame *f, uint64_t run, const char *peer,
                   struct ek_fault *fault);
/* Whether a body fits its kind: the size, texts that end, counts in their ranges. -EBADMSG. */
int ek_frame_body_check(const struct ek_frame *f, const void *body, const char *peer,
                        struct ek_fault *fault);

/* Whether a node fits into the group of `mine`: -EBADMSG with a sentence that names both sides and
 * what to change. */
int ek_card_check(const struct ek_node_card *mine, const struct ek_node_card *theirs,
                  struct ek_fault *fault);

/* What a graph computes, as a number: the same for the same list, shapes and constants. */
uint64_t ek_graph_sum(const struct ek_graph *g);
/* Of some bytes of many of its weights: tells a model from another one of the same shape. */
uint64_t ek_weight_sum(const struct ek_graph *g, const struct ek_weight_files *files);
/* What was sampled. */
uint64_t ek_result_sum(const struct ek_result *r);
