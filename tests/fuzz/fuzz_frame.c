/*
 * Frames from another node: a head and a body as they come. What the checks accept must be safe to
 * read as what its kind says: texts end, masks, steps and results lie within the bytes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "kernels/nodes/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads what a node would read. */
static uint64_t use(const struct ek_frame *f, const void *body)
{
    uint64_t sum = 0;

    if (f->kind == EK_FRAME_HELLO) {
        const struct ek_node_card *c = body;
        struct ek_node_card mine = *c;
        struct ek_fault fault;
        mine.node = c->node ^ 1;
        sum += (uint64_t)ek_card_check(&mine, c, &fault);
        sum += strlen(c->program) + strlen(c->host) + strlen(c->form);
    } else if (f->kind == EK_FRAME_FAIL || f->kind == EK_FRAME_REPLY) {
        const struct ek_node_fault *n = body;
        sum += strlen(n->msg) + strlen(n->field);
    } else if (f->kind == EK_FRAME_SAMPLE) {
        const struct ek_sample_order *o = body;
        const struct ek_masks *m = (const struct ek_masks *)(const void *)(o + 1);
        for (uint64_t i = 0; o->masked && i < (uint64_t)m->rows * m->words; i++)
            sum += m->bits[i];
    } else if (f->kind == EK_FRAME_PEERS) {
        const struct ek_peer_list *l = body;
        for (uint32_t i = 0; i < l->count; i++)
            sum += strlen(l->at[i].addr) + strlen(l->at[i].host) + l->at[i].port;
    } else if (f->kind == EK_FRAME_RESULT) {
        const struct ek_result *r = body;
        sum += ek_result_sum(r);
        for (uint32_t i = 0; i < r->scores; i++)
            for (uint32_t k = 0; k < ek_result_scores(r)[i].top; k++)
                sum += (uint64_t)ek_result_scores(r)[i].top_id[k];
        for (uint32_t i = 0; i < r->hiddens; i++)
            sum += r->width > 0 && ek_result_hidden(r, i)[r->width - 1] > 0;
    } else if (f->kind == EK_FRAME_STEP) {
        const struct ek_step *s = body;
        const struct ek_step_ceiling c = {
            .rows = 8, .seqs = 2, .entries = 8, .copies = 2, .words = 16, .scores = 2};
        sum += (uint64_t)ek_step_check(s, f->bytes, &c, 256, 16, 16);
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ek_frame f;
    volatile uint64_t sum = 0;

    if (size < sizeof(f))
        return 0;
    memcpy(&f, data, sizeof(f));
    if (ek_frame_check(&f, 0, "node 1", NULL) < 0 || f.bytes != size - sizeof(f))
        return 0;
    void *body = malloc(size - sizeof(f) + 1); /* its own, so that a read behind it is seen */
    if (!body)
        return 0;
    memcpy(body, data + sizeof(f), size - sizeof(f));
    /* A fuzzer does not find sums: the body is checked as if its sum were right, too. */
    sum += (uint64_t)ek_frame_body_check(&f, body, "node 1", NULL);
    struct ek_frame right = ek_frame_of((enum ek_frame_kind)f.kind, f.run, body, f.bytes);
    if (ek_frame_body_check(&right, body, "node 1", NULL) == 0)
        sum += use(&right, body);
    (void)sum;
    free(body);
    return 0;
}
