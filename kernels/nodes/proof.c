#include "kernels/nodes/proof.h"

#include <errno.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdbool.h>
#include <string.h>
#include <sys/random.h>

#include "common/err.h"
#include "kernels/nodes/link.h"

/* What a code is of. */
struct said {
    char who[16];
    uint8_t caller[EK_NONCE_BYTES], called[EK_NONCE_BYTES];
};

static int draw(uint8_t nonce[EK_NONCE_BYTES])
{
    return getrandom(nonce, EK_NONCE_BYTES, 0) == (ssize_t)EK_NONCE_BYTES ? 0 : -EIO;
}

static int code_of(const struct ek_secret *s, struct said *said, const char *who,
                   uint8_t ret_code[EK_MAC_BYTES])
{
    memset(said->who, 0, sizeof(said->who));
    memcpy(said->who, who, strnlen(who, sizeof(said->who) - 1));
    return gnutls_hmac_fast(GNUTLS_MAC_SHA256, s->key, s->bytes, said, sizeof(*said), ret_code) < 0
               ? -EIO
               : 0;
}

static bool same(const uint8_t a[EK_MAC_BYTES], const uint8_t b[EK_MAC_BYTES])
{
    return gnutls_memcmp(a, b, EK_MAC_BYTES) == 0;
}

static int refused(const struct ek_node_fault *n, struct ek_fault *fault)
{
    return ek_fault_set(fault, n->field, "%.470s", n->msg);
}

int ek_proof_call(struct ek_link *l, const struct ek_secret *s, uint64_t timeout_us,
                  struct ek_fault *fault)
{
    uint8_t want[EK_MAC_BYTES];
    struct ek_inbox in = {.most = sizeof(struct ek_node_fault)};
    struct ek_frame f;
    struct said said;
    struct ek_proof mine;

    if (!s->key)
        return 0;
    int r = draw(said.caller);
    if (r == 0)
        r = ek_link_send(l, EK_FRAME_KNOCK, said.caller, sizeof(said.caller), timeout_us);
    if (r == 0)
        r = ek_link_recv(l, &in, &f, timeout_us, fault);
    if (r == 0 && f.kind == EK_FRAME_REFUSE)
        r = refused(in.data, fault);
    else if (r == 0 && f.kind != EK_FRAME_CHALLENGE)
        r = ek_fault_set(fault, "master-port", "%s did not answer as a node does", l->peer);
    if (r == 0) {
        const struct ek_challenge *c = in.data;
        memcpy(said.called, c->nonce, sizeof(said.called));
        r = code_of(s, &said, "called", want);
        if (r == 0 && !same(want, c->proof))
            r = ek_fault_set(fault, "master-key-file",
                             "%s does not have the key in --master-key-file of this node: give all "
                             "nodes the same",
                             l->peer);
    }
    if (r == 0)
        r = code_of(s, &said, "caller", mine.proof);
    if (r == 0)
        r = ek_link_send(l, EK_FRAME_PROOF, &mine, sizeof(mine), timeout_us);
    ek_inbox_done(&in);
    return r;
}

/* The caller's number is there: ours and our code go, its code comes. */
static int challenge(struct ek_link *l, const struct ek_secret *s, struct ek_inbox *in,
                     struct ek_frame *f, uint64_t timeout_us, struct ek_fault *fault)
{
    uint8_t want[EK_MAC_BYTES];
    struct ek_challenge c;
    struct said said;

    memcpy(said.caller, in->data, sizeof(said.caller));
    int r = draw(said.called);
    if (r == 0)
        r = code_of(s, &said, "called", c.proof);
    if (r < 0)
        return r;
    memcpy(c.nonce, said.called, sizeof(c.nonce));
    r = ek_link_send(l, EK_FRAME_CHALLENGE, &c, sizeof(c), timeout_us);
    if (r == 0)
        r = ek_link_recv(l, in, f, timeout_us, fault);
    if (r == 0)
        r = code_of(s, &said, "caller", want);
    if (r == 0 &&
        (f->kind != EK_FRAME_PROOF || !same(want, ((const struct ek_proof *)in->data)->proof)))
        r = ek_fault_set(fault, "master-key-file",
                         "%s does not know the key in --master-key-file of this node: give all "
                         "nodes the same",
                         l->peer);
    return r;
}

int ek_proof_answer(struct ek_link *l, const struct ek_secret *s, struct ek_inbox *in,
                    struct ek_frame *f, uint64_t timeout_us, struct ek_fault *fault)
{
    int r = ek_link_recv(l, in, f, timeout_us, fault);

    if (r == 0 && f->kind == EK_FRAME_KNOCK && !s->key)
        return ek_fault_set(
            fault, "master-key-file",
            "%s has a --master-key-file, and the node that it called has none: give "
            "all nodes the same",
            l->peer);
    if (r == 0 && f->kind == EK_FRAME_HELLO && s->key)
        return ek_fault_set(fault, "master-key-file",
                            "%.64s has no --master-key-file, and the node that it called has one: "
                            "give all nodes the same",
                            ((const struct ek_node_card *)in->data)->host);
    if (r == 0 && f->kind == EK_FRAME_KNOCK) {
        r = challenge(l, s, in, f, timeout_us, fault);
        if (r == 0)
            r = ek_link_recv(l, in, f, timeout_us, fault);
    }
    if (r == 0 && f->kind != EK_FRAME_HELLO)
        r = ek_fault_set(fault, "master-port", "%s did not begin with who it is", l->peer);
    return r;
}
