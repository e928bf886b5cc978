/*
 * From what a client sends to a grammar at work, and the ones that were made lately kept by their
 * bytes, so that a schema used again costs nothing. Any thread; compiling happens outside the lock.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ek_fault;
struct ek_work;
struct grammar;
struct grammar_cache;
struct lexicon;

enum grammar_kind {
    GRAMMAR_JSON,   /* any JSON object; no text */
    GRAMMAR_SCHEMA, /* a JSON schema */
    GRAMMAR_REGEX,  /* a pattern for the whole text */
    GRAMMAR_CHOICE, /* a JSON array of strings */
    GRAMMAR_EBNF,   /* rules, the first of which is `root`; or Lark's, see lark.h */
    GRAMMAR_CALLS, /* calls of tools as hermes writes them: {"tools": as OpenAI has them, "name": of
                      the only one or null, "most": how many calls} */
    GRAMMAR_TAGS,  /* text with calls in it: {"tools": as above, "style": of the parser, "one": no
                      further call} */
    GRAMMAR_EITHER,    /* calls and nothing else, or a form: as GRAMMAR_TAGS, and "most": how many
                          calls, "form": {"kind": enum grammar_kind below GRAMMAR_CALLS, "text"} */
    GRAMMAR_STRUCTURE, /* a structural tag, see structure.h */
};

#define GRAMMAR_TEXT_MOST (256u << 10) /* bytes of a schema, pattern, choice or grammar */
#define GRAMMAR_KEPT      48u          /* grammars in a cache, those in use not counted */
#define GRAMMAR_ROOM      (1ull << 30) /* bytes of all that are alive */
#define GRAMMAR_SHARE     2u           /* one part in so many of both is the most of one owner */
#define GRAMMAR_CHOICES   4096u
/*
 * Units of work (common/work.h) for one form. Everything that reading and compiling does is paid
 * for, so this alone bounds it: about half a second of one core, whatever the form says, which is
 * why it needs no process of its own that could be killed. Nothing is called on the way that could
 * loop or wait: no I/O, no lock, no library but JSON's parser, which is linear and bounded in
 * depth.
 */
#define GRAMMAR_FUEL (1ull << 26)

/* What is asked for: the text, and its owner: a number below GRAMMAR_OWNERS, 0 = none. */
struct grammar_from {
    enum grammar_kind kind;
    const char *text;
    size_t len;
    uint32_t owner;
};

struct grammar_cache_stats {
    uint64_t hits, misses, made, refused;
    uint64_t compile_us, warm_us; /* sums */
    uint32_t kept;
    uint64_t bytes;
    uint64_t oldest_us; /* when the oldest of those that are being compiled began, 0 = none is */
};

/* Compiles. `fault` gets a sentence; its field is a JSON pointer for a schema. -EBADMSG (also for
 * spent fuel), -ETIMEDOUT and -ECANCELED as the meter says, -ENOMEM. */
int grammar_compile(enum grammar_kind kind, const char *text, size_t len, const struct lexicon *l,
                    struct ek_work *work, struct grammar **ret_grammar, struct ek_fault *fault);

/* 0 or -ENOMEM. The lexicon must outlive the cache and all grammars, which together take at most
 * `most_bytes`, those in use counted. */
int grammar_cache_new(const struct lexicon *l, uint64_t most_bytes,
                      struct grammar_cache **ret_cache);
void grammar_cache_free(struct grammar_cache *c); /* NULL is fine */
/* From the cache with a reference, or NULL; only what is found is counted. */
struct grammar *grammar_cache_find(struct grammar_cache *c, enum grammar_kind kind,
                                   const char *text, size_t len);
/* As grammar_compile(), or from the cache; the caller gets a reference. -EBUSY with a fault while
 * the grammars in use leave no room for it, or its owner's grammars leave none of its share.
 * No owner's may take all of the room. */
int grammar_cache_get(struct grammar_cache *c, const struct grammar_from *from,
                      struct ek_work *work, struct grammar **ret_grammar, struct ek_fault *fault);
void grammar_cache_stats(struct grammar_cache *c, struct grammar_cache_stats *ret_stats);
