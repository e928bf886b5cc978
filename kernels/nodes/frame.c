#include "kernels/nodes/frame.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "common/err.h"

#define SAMPLED_WEIGHTS 512u /* whose bytes go into ek_weight_sum() */
#define SAMPLED_BYTES   256u /* of each, from the middle of its first part */

/* ---- frames ---- */

struct ek_frame ek_frame_of(enum ek_frame_kind kind, uint64_t run, const void *body, size_t bytes)
{
    return (struct ek_frame){.magic = EK_FRAME_MAGIC,
                             .protocol = EK_FRAME_PROTOCOL,
                             .kind = (uint16_t)kind,
                             .run = run,
                             .bytes = bytes,
                             .sum = XXH3_64bits(bytes > 0 ? body : "", bytes)};
}

/* The smallest and the largest body of a kind; false: there is no such kind. */
static bool body_range(uint16_t kind, uint64_t *ret_least, uint64_t *ret_most)
{
    uint64_t least = 0, most = 0;

    switch ((enum ek_frame_kind)kind) {
    case EK_FRAME_HELLO: least = sizeof(struct ek_node_card); break;
    case EK_FRAME_WELCOME: least = sizeof(struct ek_welcome); break;
    case EK_FRAME_REFUSE:
    case EK_FRAME_REPLY:
    case EK_FRAME_FAIL:
    case EK_FRAME_BYE: least = sizeof(struct ek_node_fault); break;
    case EK_FRAME_OPEN: least = sizeof(struct ek_meeting); break;
    case EK_FRAME_LOAD: least = sizeof(struct ek_load_order); break;
    case EK_FRAME_KV_OPEN: least = sizeof(struct ek_kv_params); break;
    case EK_FRAME_RESIZE: least = sizeof(struct ek_resize_order); break;
    case EK_FRAME_KNOCK: least = sizeof(struct ek_knock); break;
    case EK_FRAME_CHALLENGE: least = sizeof(struct ek_challenge); break;
    case EK_FRAME_PROOF: least = sizeof(struct ek_proof); break;
    case EK_FRAME_PEERS: least = sizeof(struct ek_peer_list); break;
    case EK_FRAME_DONE: least = sizeof(struct ek_step_done); break;
    case EK_FRAME_STEP:
        least = sizeof(struct ek_step);
        most = EK_FRAME_MOST;
        break;
    case EK_FRAME_SAMPLE:
        least = sizeof(struct ek_sample_order);
        most = EK_FRAME_MOST;
        break;
    case EK_FRAME_RESULT:
        least = sizeof(struct ek_result);
        most = EK_FRAME_MOST;
        break;
    case EK_FRAME_PING:
    case EK_FRAME_PONG:
    case EK_FRAME_LEAVE: break;
    default: return false; /* a number from the network */
    }
    *ret_least = least;
    *ret_most = most > 0 ? most : least;
    return true;
}

int ek_frame_check(const struct ek_frame *f, uint64_t run, const char *peer, struct ek_fault *fault)
{
    uint64_t least, most;

    if (f->magic != EK_FRAME_MAGIC)
        return ek_fault_set(fault, "master-port",
                            "%s does not speak the protocol of nodes: this port is for the other "
                            "nodes of the group alone",
                            peer);
    if (f->protocol != EK_FRAME_PROTOCOL)
        return ek_fault_set(fault, "master-port",
                            "%s speaks version %u of the protocol of nodes, this node version %u: "
                            "install the same evenkeel-server on all nodes",
                            peer, f->protocol, EK_FRAME_PROTOCOL);
    if (run != 0 && f->run != run)
        return ek_fault_set(fault, "master-port",
                            "%s belongs to another run of the group: start its node again", peer);
    if (!body_range(f->kind, &least, &most) || f->bytes < least || f->bytes > most)
        return ek_fault_set(fault, "master-port",
                            "%s sent a frame of kind %u with %llu bytes, which no node sends: "
                            "install the same evenkeel-server on all nodes",
                            peer, f->kind, (unsigned long long)f->bytes);
    return 0;
}

static bool ends(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

static bool card_whole(const struct ek_node_card *c)
{
    return ends(c->program, sizeof(c->program)) && ends(c->host, sizeof(c->host)) &&
           ends(c->backend, sizeof(c->backend)) && ends(c->isa, sizeof(c->isa)) &&
           ends(c->device, sizeof(c->device)) && ends(c->model, sizeof(c->model)) &&
           ends(c->form, sizeof(c->form)) && c->role <= EK_ROLE_PEER && c->port <= UINT16_MAX &&
           c->stages > 0;
}

static bool sample_whole(const void *body, size_t bytes)
{
    struct ek_sample_order o;
    const size_t left = bytes - sizeof(o);
    struct ek_masks head;

    memcpy(&o, body, sizeof(o));
    if (o.masked == 0)
        return left == 0;
    if (o.masked != 1 || left < sizeof(head))
        return false;
    memcpy(&head, (const char *)body + sizeof(o), sizeof(head));
    const uint64_t words = (uint64_t)head.rows * head.words;
    return words <= left / sizeof(uint32_t) && sizeof(head) + words * sizeof(uint32_t) == left;
}

static bool fault_whole(const void *body)
{
    const struct ek_node_fault *n = body;
    return ends(n->msg, sizeof(n->msg)) && ends(n->field, sizeof(n->field));
}

static bool peers_whole(const void *body)
{
    const struct ek_peer_list *l = body;
    bool whole = l->count <= EK_NODES_MOST;

    for (uint32_t i = 0; whole && i < l->count; i++) {
        const struct ek_peer_at *p = &l->at[i];
        whole = p->node < EK_NODES_MOST && p->port > 0 && p->port <= UINT16_MAX &&
                ends(p->addr, sizeof(p->addr)) && ends(p->host, sizeof(p->host));
    }
    return whole;
}

static bool body_whole(const struct ek_frame *f, const void *body)
{
    switch ((enum ek_frame_kind)f->kind) {
    case EK_FRAME_HELLO: return card_whole(body);
    case EK_FRAME_WELCOME: {
        const struct ek_welcome *w = body;
        return ends(w->host, sizeof(w->host)) && w->run != 0;
    }
    case EK_FRAME_REFUSE:
    case EK_FRAME_REPLY:
    case EK_FRAME_FAIL:
    case EK_FRAME_BYE: return fault_whole(body);
    case EK_FRAME_SAMPLE: return sample_whole(body, f->bytes);
    case EK_FRAME_STEP: {
        const struct ek_step *s = body;
        return s->bytes == f->bytes; /* what is in it: ek_step_check(), by who knows the ceilings */
    }
    case EK_FRAME_PEERS: return peers_whole(body);
    case EK_FRAME_RESULT: return ek_result_check(body, f->bytes) == 0;
    case EK_FRAME_KNOCK:
    case EK_FRAME_CHALLENGE:
    case EK_FRAME_PROOF:
    case EK_FRAME_OPEN:
    case EK_FRAME_LOAD:
    case EK_FRAME_KV_OPEN:
    case EK_FRAME_RESIZE:
    case EK_FRAME_DONE:
    case EK_FRAME_PING:
    case EK_FRAME_PONG:
    case EK_FRAME_LEAVE: return true;
    }
    return false;
}

int ek_frame_body_check(const struct ek_frame *f, const void *body, const char *peer,
                        struct ek_fault *fault)
{
    const void *at = f->bytes > 0 ? body : "";

    if (XXH3_64bits(at, f->bytes) != f->sum || !body_whole(f, at))
        return ek_fault_set(fault, "master-port",
                            "%s sent a frame of kind %u that is damaged or cut: look at the "
                            "network between the nodes",
                            peer, f->kind);
    return 0;
}

/* ---- who may join ---- */

static int differ(struct ek_fault *fault, const struct ek_node_card *mine,
                  const struct ek_node_card *theirs, const char *const what[2], const char *remedy)
{
    return ek_fault_set(fault, "node-rank", "Node %u (%s) %s, node %u (%s) %s: %s", theirs->node,
                        theirs->host, what[1], mine->node, mine->host, what[0], remedy);
}

/* Two texts that have to be the same; `verb` is "computes with". */
static int same_text(struct ek_fault *fault, const struct ek_node_card *mine,
                     const struct ek_node_card *theirs, const char *const text[2], const char *verb,
                     const char *remedy)
{
    char what[2][112];

    if (strcmp(text[0], text[1]) == 0)
        return 0;
    for (int i = 0; i < 2; i++)
        (void)snprintf(what[i], sizeof(what[i]), "%s %.80s", verb, text[i]);
    return differ(fault, mine, theirs, (const char *const[2]){what[0], what[1]}, remedy);
}

static int same_number(struct ek_fault *fault, const struct ek_node_card *mine,
                       const struct ek_node_card *theirs, const uint32_t number[2],
                       const char *option)
{
    char what[2][64];

    if (number[0] == number[1])
        return 0;
    for (int i = 0; i < 2; i++)
        (void)snprintf(what[i], sizeof(what[i]), "has %s %u", option, number[i]);
    return differ(fault, mine, theirs, (const char *const[2]){what[0], what[1]},
                  "give all nodes the same");
}

static int check_program(const struct ek_node_card *a, const struct ek_node_card *b,
                         struct ek_fault *fault)
{
    int r = same_text(fault, a, b, (const char *const[2]){a->program, b->program},
                      "is evenkeel-server", "install the same on all nodes");
    if (r == 0 && a->abi != b->abi)
        r = differ(fault, a, b, (const char *const[2]){"has other kernels", "has other kernels"},
                   "install the same evenkeel-server on all nodes");
    if (r == 0)
        r = same_number(fault, a, b, (const uint32_t[2]){a->nodes, b->nodes}, "--nnodes");
    if (r == 0)
        r = same_number(fault, a, b, (const uint32_t[2]){a->stages, b->stages},
                        "--pipeline-parallel-size");
    if (r == 0)
        r = same_number(fault, a, b,
                        (const uint32_t[2]){a->ranks / a->stages, b->ranks / b->stages},
                        "--tensor-parallel-size");
    return r;
}

static int check_model(const struct ek_node_card *a, const struct ek_node_card *b,
                       struct ek_fault *fault)
{
    int r = same_text(fault, a, b, (const char *const[2]){a->model, b->model}, "has a model",
                      "give all nodes the same model");
    if (r == 0)
        r = same_text(fault, a, b, (const char *const[2]){a->form, b->form}, "keeps it as",
                      "give all nodes the same --dtype, --quantization and --kv-cache-dtype");
    if (r == 0 && a->graph != b->graph)
        r = differ(fault, a, b,
                   (const char *const[2]){"has one of another shape", "has a model of one shape"},
                   "give all nodes the same model, with the same config.json");
    if (r == 0 && a->weight != b->weight)
        r = differ(fault, a, b,
                   (const char *const[2]){"has others of the same shape", "has its weights"},
                   "give all nodes the same model files (sha256sum -c SHA256SUMS)");
    return r;
}

int ek_card_check(const struct ek_node_card *mine, const struct ek_node_card *theirs,
                  struct ek_fault *fault)
{
    int r = check_program(mine, theirs, fault);

    if (r == 0 && (theirs->node >= mine->nodes || theirs->node == mine->node))
        r = ek_fault_set(fault, "node-rank",
                         "%s calls itself node %u, and node %u of %u is %s: give each node a "
                         "--node-rank of its own from 0 to %u",
                         theirs->host, theirs->node, mine->node, mine->nodes, mine->host,
                         mine->nodes - 1);
    if (r == 0)
        r = same_text(fault, mine, theirs, (const char *const[2]){mine->backend, theirs->backend},
                      "computes on", "give all nodes the same --device");
    if (r == 0)
        r = same_text(fault, mine, theirs, (const char *const[2]){mine->isa, theirs->isa},
                      "computes with", "give all nodes the --cpu-isa that the oldest offers");
    return r < 0 ? r : check_model(mine, theirs, fault);
}

/* ---- what a model is ---- */

static void add(uint64_t *s, const void *data, size_t bytes)
{
    *s = XXH3_64bits_withSeed(data, bytes, *s);
}

static void add_u32(uint64_t *s, uint32_t n)
{
    add(s, &n, sizeof(n));
}

static void add_float(uint64_t *s, float f)
{
    add(s, &f, sizeof(f));
}

static void add_op(uint64_t *s, const struct ek_op *op)
{
    const uint32_t head[] = {(uint32_t)op->kind, op->dst, op->src, op->weight, op->bias, op->layer};

    add(s, head, sizeof(head));
    switch (op->kind) {
    case EK_OP_EMBED:
    case EK_OP_ADD:
    case EK_OP_LOGITS: add_float(s, op->u.add.scale); break;
    case EK_OP_NORM:
        add_float(s, op->u.norm.eps);
        add_float(s, op->u.norm.offset);
        add_u32(s, op->u.norm.group);
        add_u32(s, op->u.norm.first);
        add_u32(s, op->u.norm.heads);
        break;
    case EK_OP_ROPE:
        add_u32(s, op->u.rope.first_col);
        add_u32(s, op->u.rope.heads);
        add_u32(s, op->u.rope.head_dim);
        add_u32(s, op->u.rope.rotary_dim);
        add_u32(s, op->u.rope.table);
        break;
    case EK_OP_ATTENTION:
        add_u32(s, op->u.attention.q_heads);
        add_u32(s, op->u.attention.kv_heads);
        add_u32(s, op->u.attention.head_dim);
        add_float(s, op->u.attention.scale);
        add_float(s, op->u.attention.softcap);
        add_u32(s, op->u.attention.window);
        add_float(s, op->u.attention.k_scale);
        add_float(s, op->u.attention.v_scale);
        break;
    case EK_OP_GLU: add_u32(s, (uint32_t)op->u.glu.act); break;
    case EK_OP_EXPERTS:
        add_u32(s, op->u.experts.router);
        add_u32(s, op->u.experts.count);
        add_u32(s, op->u.experts.top);
        add_u32(s, op->u.experts.normalise);
        add_u32(s, (uint32_t)op->u.experts.act);
        add_u32(s, op->u.experts.up);
        add_u32(s, op->u.experts.down);
        add_u32(s, op->u.experts.up_bias);
        add_u32(s, op->u.experts.down_bias);
        add_u32(s, op->u.experts.up_bias);
        add_u32(s, op->u.experts.down_bias);
        break;
    case EK_OP_SOFTCAP: add_float(s, op->u.softcap.cap); break;
    case EK_OP_LINEAR:
    case EK_OP_PICK:
    case EK_OP_REDUCE:
    case EK_OP_GATHER:
    case EK_OP_SEND:
    case EK_OP_RECV: break;
    }
}

static void add_weight(uint64_t *s, const struct ek_weight *w)
{
    const uint32_t shape[] = {
        (uint32_t)w->source, (uint32_t)w->dtype, w->rows,     w->cols,    w->group, w->parts,
        w->first_col,        w->quantized,       w->row_step, w->col_step};

    add(s, w->name, strnlen(w->name, sizeof(w->name)));
    add(s, shape, sizeof(shape));
}

uint64_t ek_graph_sum(const struct ek_graph *g)
{
    const uint32_t shape[] = {g->op_count, g->weight_count, g->value_count,     g->rope_count,
                              g->layers,   g->kv_heads,     g->head_dim,        g->hidden,
                              g->vocab,    g->max_position, (uint32_t)g->dtype, g->kv_i8,
                              g->kv_f8};
    uint64_t s = 0;

    add(&s, shape, sizeof(shape));
    for (uint32_t i = 0; i < g->op_count; i++)
        add_op(&s, &g->ops[i]);
    for (uint32_t i = 0; i < g->weight_count; i++)
        add_weight(&s, &g->weights[i]);
    add(&s, g->value_width, g->value_count * sizeof(*g->value_width));
    for (uint32_t i = 0; i < g->rope_count; i++) {
        const struct ek_rope *r = &g->ropes[i];
        add(&s, r->inv_freq, r->count * sizeof(*r->inv_freq));
        add_float(&s, r->factor);
        add_u32(&s, r->above);
    }
    return s;
}

uint64_t ek_weight_sum(const struct ek_graph *g, const struct ek_weight_files *files)
{
    const uint32_t taken = g->weight_count < SAMPLED_WEIGHTS ? g->weight_count : SAMPLED_WEIGHTS;
    uint64_t s = 0;

    for (uint32_t i = 0; i < taken; i++) {
        const uint32_t at = (uint32_t)((uint64_t)g->weight_count * i / taken);
        const struct ek_weight *w = &g->weights[at];
        if (w->parts == 0 || w->part[0].file >= files->count)
            continue;
        const struct ek_weight_part *p = &w->part[0];
        const struct ek_weight_file *f = &files->file[p->file];
        const uint64_t bytes =
            (uint64_t)p->rows * ek_weight_file_cols(w) * ek_dtype_bits(w->source) / 8;
        const uint64_t some = bytes < SAMPLED_BYTES ? bytes : SAMPLED_BYTES;
        const uint64_t from = p->offset_bytes + (bytes - some) / 2;
        if (from <= f->size_bytes && some <= f->size_bytes - from)
            add(&s, (const char *)f->data + from, some);
    }
    return s;
}

uint64_t ek_result_sum(const struct ek_result *r)
{
    uint64_t s = 0;

    for (uint32_t i = 0; i < r->seqs; i++) {
        const struct ek_result_seq *q = &r->seq[i];
        add_u32(&s, q->slot);
        add_u32(&s, q->tokens);
        add(&s, q->token,
            (q->tokens < EK_STEP_TOKENS ? q->tokens : EK_STEP_TOKENS) * sizeof(q->token[0]));
    }
    return s;
}
