/*
 * What sentence-transformers writes beside a model for embeddings: modules.json, which names the
 * steps from text to vector, and the configuration of the one that pools.
 */
#pragma once

struct ek_bundle;
struct ek_fault;

enum sentence_pooling {
    SENTENCE_NONE,  /* no such files: nothing is known */
    SENTENCE_LAST,  /* the vector is the state behind the last token */
    SENTENCE_OTHER, /* it is made in another way, which is not served */
};

/* Out of a bundle where `b` is one. 0, -EBADMSG with a fault that names the file, -ENOMEM. */
int sentence_read(struct ek_bundle *b, const char *dir, enum sentence_pooling *ret_pooling,
                  struct ek_fault *fault);
