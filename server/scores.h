/*
 * What a model's output is for, beside text: classes, scores of pairs, vectors. Its files tell, and
 * the operator: --convert, and --hf-overrides, which a command line for vLLM has. Of that is taken
 * what makes a reranker of a model that writes words: which of them stand for its classes.
 *
 *   {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["no", "yes"],
 *    "is_original_qwen3_reranker": true}
 */
#pragma once

struct ek_bundle;
struct chat;
struct ek_fault;
struct model;
struct options;
struct served;
struct tokenizer;

/* Notes it in the model, of what is in `files` where that is a bundle, before its files are closed.
 * 0, -EBADMSG with a fault, -ENOMEM. */
int scores_find(const struct options *o, struct ek_bundle *files, const struct tokenizer *tok,
                struct model *m, struct ek_fault *fault);
/* Tells the API of it, and the log. chat may be NULL. */
void scores_fill(const struct options *o, const struct model *m, const struct chat *chat,
                 struct served *served);
