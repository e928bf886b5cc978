/*
 * Finds the contents of added tokens in text: a byte trie, longest match first. Immutable once
 * filled. Time is the length of the text times at most the length of the longest content, which
 * comes from the model's files and not from a client.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct added_rule {
    int32_t id;
    bool lstrip, rstrip; /* takes the white space before or behind it along */
    bool single_word;    /* does not match inside a word */
};

struct added_node;

struct added {
    struct added_node *node; /* [room]; 0 is the root */
    uint32_t nodes, room;
    struct added_rule *rule; /* [rules] */
    uint32_t rules, rules_room;
    uint8_t first[256]; /* whether a content begins with this byte */
};

struct added_span {
    size_t from, to;
    int32_t id;
};

/* A content given twice keeps its first rule. len > 0. -ENOMEM. */
int added_put(struct added *a, const char *s, size_t len, const struct added_rule *rule);
void added_done(struct added *a);

/* The next token in valid UTF-8 at or after `from`, where the last one ended. */
bool added_find(const struct added *a, const char *s, size_t len, size_t from,
                struct added_span *ret_span);
