/*
 * What constrained output costs: compiling usual schemas, and finding the mask of a token for a
 * vocabulary of 128k tokens. The vocabulary is made of the model's pieces, joined in pairs like
 * those of large models are (words with a space, digits in threes, punctuation with quotes).
 *
 * Times are the thread's own on a core, so that others on the machine do not count.
 *
 *   bench_grammar MODEL REPORT [TEXTS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/grammar/compile.h"
#include "server/grammar/grammar.h"
#include "server/text/tokenizer.h"
#include "tests/bench/report.h"

#define VOCAB      128000u
#define TIMES_MOST 400000u
#define TOKENS     400u
#define COMPILES   9u

static const struct {
    const char *name;
    enum grammar_kind kind;
    const char *text;
} forms[] = {
    {"json", GRAMMAR_JSON, ""},
    {"person", GRAMMAR_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":"
     "\"integer\",\"minimum\":0,\"maximum\":150},\"email\":{\"type\":\"string\",\"format\":"
     "\"email\"},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":10}},"
     "\"required\":[\"name\",\"age\",\"email\",\"tags\"],\"additionalProperties\":false}"},
    {"order", GRAMMAR_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\",\"format\":\"uuid\"},"
     "\"placed\":{\"type\":\"string\",\"format\":\"date-time\"},\"status\":{\"enum\":[\"new\","
     "\"paid\",\"shipped\",\"returned\"]},\"lines\":{\"type\":\"array\",\"minItems\":1,"
     "\"maxItems\":20,\"items\":{\"$ref\":\"#/$defs/line\"}},\"note\":{\"anyOf\":[{\"type\":"
     "\"string\",\"maxLength\":200},{\"type\":\"null\"}]}},\"required\":[\"id\",\"placed\","
     "\"status\",\"lines\",\"note\"],\"$defs\":{\"line\":{\"type\":\"object\",\"properties\":{"
     "\"sku\":{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-[0-9]{4,8}$\"},\"count\":{\"type\":"
     "\"integer\",\"minimum\":1,\"maximum\":999},\"price\":{\"type\":\"number\",\"minimum\":0,"
     "\"maximum\":99999.99}},\"required\":[\"sku\",\"count\",\"price\"]}}}"},
    {"tree", GRAMMAR_SCHEMA,
     "{\"$ref\":\"#/$defs/node\",\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{"
     "\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":40},\"children\":{\"type\":"
     "\"array\",\"items\":{\"$ref\":\"#/$defs/node\"},\"maxItems\":4}},\"required\":[\"name\","
     "\"children\"]}}}"},
    {"call", GRAMMAR_SCHEMA,
     "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"get_weather\"},"
     "\"arguments\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"unit\":{"
     "\"enum\":[\"c\",\"f\"]}},\"required\":[\"city\"]}},\"required\":[\"name\",\"arguments\"]},{"
     "\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"search\"},\"arguments\":{\"type\":"
     "\"object\",\"properties\":{\"query\":{\"type\":\"string\"},\"limit\":{\"type\":\"integer\","
     "\"minimum\":1,\"maximum\":50}},\"required\":[\"query\"]}},\"required\":[\"name\","
     "\"arguments\"]}]}"},
    {"regex", GRAMMAR_REGEX,
     "[A-Z][a-z]+ [A-Z][a-z]+, born \\d{4}-\\d{2}-\\d{2} in [A-Za-z ]{3,30}"},
};
#define FORMS (sizeof(forms) / sizeof(forms[0]))

struct grammar_words {
    char **at;
    uint32_t count;
};

struct bench {
    struct lexicon *lexicon;
    uint32_t *bits;
    int32_t *candidate;
    float *us;
    uint32_t times;
    uint64_t random;
};

static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* of this thread: cannot fail */
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static uint64_t next_random(struct bench *b)
{
    b->random ^= b->random << 13;
    b->random ^= b->random >> 7;
    b->random ^= b->random << 17;
    return b->random;
}

/* ---- the vocabulary ---- */

static void add_word(struct grammar_words *w, const char *first, const char *second)
{
    if (w->count >= VOCAB - 1 || strlen(first) + strlen(second) > 60)
        return;
    if (asprintf(&w->at[w->count], "%s%s", first, second) > 0)
        w->count++;
}

static void make_words(const struct tokenizer *t, struct grammar_words *w, struct bench *b)
{
    static const char *const marks[] = {"\"", "\":", "\": ", "\",", "\", ", "\"}", "},",
                                        "}]", "],",  "{\"",  "[\"", "[{",   "{}",  "[]",
                                        "(",  ")",   ";",    ".",   ", "};
    char text[16];
    size_t len;

    for (int i = 1; i < 256; i++) {
        const char byte[2] = {(char)i, '\0'};
        add_word(w, byte, "");
    }
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(text, sizeof(text), "%03d", i);
        add_word(w, text, "");
        if (i < 100)
            add_word(w, text + 1, "");
    }
    for (int i = 1; i < 40; i++) {
        (void)snprintf(text, sizeof(text), "\n");
        char blanks[64];
        (void)snprintf(blanks, sizeof(blanks), "%*s", i, "");
        add_word(w, blanks, "");
        add_word(w, text, blanks);
    }
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
        for (size_t k = 0; k < sizeof(marks) / sizeof(marks[0]); k++)
            add_word(w, marks[i], k ? marks[k] : "");
    uint32_t own = tokenizer_count(t), from = w->count;
    for (uint32_t i = 0; i < own; i++) {
        const char *s =
            tokenizer_is_special(t, (int32_t)i) ? NULL : tokenizer_bytes(t, (int32_t)i, &len);
        if (s && len > 1)
            add_word(w, s, "");
    }
    uint32_t base = w->count;
    while (w->count < VOCAB - 1) {
        const char *one = w->at[from + next_random(b) % (base - from)];
        const char *two = w->at[from + next_random(b) % (base - from)];
        add_word(w, next_random(b) % 3 ? one : " ", two[0] == ' ' ? two + 1 : two);
    }
}

static const char *word_bytes(void *ctx, int32_t token, size_t *ret_len)
{
    const struct grammar_words *w = ctx;
    if ((uint32_t)token >= w->count)
        return NULL;
    *ret_len = strlen(w->at[token]);
    return w->at[token];
}

/* ---- texts ---- */

static int closing(const struct lexicon *l, int32_t token, bool quotes)
{
    if (lexicon_is_end(l, token))
        return 3;
    char c = l->bytes[l->at[token]];
    return c == '}' || c == ']' ? 2 - quotes : c == '"' ? 1 + quotes : 0;
}

static int32_t pick(struct bench *b, bool late)
{
    uint32_t count = 0;
    int best = 0;
    bool quotes = next_random(b) % 2;

    for (uint32_t i = 0; i < b->lexicon->words; i++)
        for (uint32_t w = b->bits[i]; w != 0; w &= w - 1) {
            int32_t token = (int32_t)(i * 32 + (uint32_t)__builtin_ctz(w));
            int rank = late ? closing(b->lexicon, token, quotes) : 0;
            if (rank < best)
                continue;
            count = rank > best ? 0 : count;
            best = rank;
            b->candidate[count++] = token;
        }
    return count ? b->candidate[next_random(b) % count] : -1;
}

static void draw(struct bench *b, struct grammar *g)
{
    struct matcher m;
    int32_t token[TOKENS];

    matcher_init(&m, g);
    for (uint32_t n = 0; n < TOKENS; n++) {
        double from = now_us();
        bool fits = matcher_follow(&m, token, sizeof(*token), n);
        (void)matcher_mask(&m, false, MATCHER_MANY, b->bits);
        if (b->times < TIMES_MOST)
            b->us[b->times++] = (float)(now_us() - from);
        token[n] = fits ? pick(b, n > 60 && next_random(b) % 2) : -1;
        if (token[n] < 0 || lexicon_is_end(b->lexicon, token[n]))
            return;
    }
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static double part(float *us, uint32_t n, double share)
{
    return n ? (double)us[(uint32_t)((double)(n - 1) * share)] : 0;
}

/* One form: compiled some times, then texts of it drawn. False when it cannot be. */
static bool run_form(struct bench *b, size_t form, uint32_t texts, float *all_ms, uint32_t *all)
{
    float ms[COMPILES];
    struct grammar *g = NULL;
    uint32_t from = b->times;
    double warm = 0;

    for (uint32_t i = 0; i < COMPILES; i++) {
        struct ek_fault f = {0};
        double begin = now_us();
        grammar_unref(g);
        g = NULL;
        if (grammar_compile(forms[form].kind, forms[form].text, strlen(forms[form].text),
                            b->lexicon, NULL, &g, &f) < 0) {
            (void)fprintf(stderr, "%s: %s\n", forms[form].name, f.msg);
            return false;
        }
        double made = now_us();
        grammar_warm(g, NULL);
        warm = now_us() - made;
        ms[i] = (float)((now_us() - begin) / 1e3);
        all_ms[(*all)++] = ms[i];
    }
    qsort(ms, COMPILES, sizeof(ms[0]), compare);
    for (uint32_t i = 0; i < texts; i++)
        draw(b, g);
    uint32_t n = b->times - from;
    qsort(b->us + from, n, sizeof(*b->us), compare);
    (void)printf(
        "  %-8s %9.2f ms (%6.2f of it the first masks) %7u tokens %8.2f us %8.2f us %9.1f us\n",
        forms[form].name, (double)ms[COMPILES / 2], warm / 1e3, n, part(b->us + from, n, 0.5),
        part(b->us + from, n, 0.99), part(b->us + from, n, 1.0));
    grammar_unref(g);
    return true;
}

static int run(struct bench *b, const char *path, uint32_t texts)
{
    struct report r;
    float ms[FORMS * COMPILES];
    uint32_t compiled = 0;

    (void)printf("  %-8s %42s %14s %11s %11s %12s\n", "form", "compile, median", "", "mask median",
                 "p99", "worst");
    for (size_t i = 0; i < FORMS; i++)
        if (!run_form(b, i, texts, ms, &compiled))
            return 1;
    qsort(b->us, b->times, sizeof(*b->us), compare);
    qsort(ms, compiled, sizeof(ms[0]), compare);
    double median = part(b->us, b->times, 0.5), p99 = part(b->us, b->times, 0.99);
    double compile = part(ms, compiled, 0.5), worst = part(ms, compiled, 1);
    (void)printf("  %u tokens of %u: mask %.2f us median (goal 50), %.2f us p99; compile %.2f ms "
                 "median (goal 20), %.2f ms worst\n",
                 b->times, VOCAB, median, p99, compile, worst);
    if (report_open(&r, "bench-grammar", path) < 0)
        return 1;
    report_cell(&r, &(struct report_cell){"mask.median", median, "us", "50", median <= 50});
    report_cell(&r, &(struct report_cell){"mask.p99", p99, "us", NULL, 0});
    report_cell(&r, &(struct report_cell){"compile.median", compile, "ms", "20", compile <= 20});
    report_cell(&r, &(struct report_cell){"compile.worst", worst, "ms", NULL, 0});
    return report_close(&r) < 0;
}

int main(int argc, char **argv)
{
    struct tokenizer *tok = NULL;
    struct bench b = {.random = 88172645463325252ull};
    struct grammar_words w = {calloc(VOCAB, sizeof(char *)), 0};
    struct ek_fault f = {0};
    const int32_t end = (int32_t)VOCAB - 1;

    if (argc < 3 || !w.at || tokenizer_load(argv[1], &tok, &f) < 0) {
        (void)fprintf(stderr, "usage: bench_grammar MODEL REPORT [TEXTS] %s\n", f.msg);
        return 2;
    }
    make_words(tok, &w, &b);
    double begin = now_us();
    if (lexicon_new(VOCAB, word_bytes, &w, &end, 1, &b.lexicon) < 0)
        return 1;
    (void)printf("Constrained output: %u tokens, a trie of %u nodes made in %.0f ms\n", VOCAB,
                 b.lexicon->nodes, (now_us() - begin) / 1e3);
    b.bits = calloc(b.lexicon->words, sizeof(*b.bits));
    b.candidate = calloc(VOCAB, sizeof(*b.candidate));
    b.us = calloc(TIMES_MOST, sizeof(*b.us));
    long texts = argc > 3 ? strtol(argv[3], NULL, 10) : 40;
    int code = b.bits && b.candidate && b.us ? run(&b, argv[2], (uint32_t)texts) : 1;
    for (uint32_t i = 0; i < w.count; i++)
        free(w.at[i]);
    free(w.at);
    free(b.bits);
    free(b.candidate);
    free(b.us);
    lexicon_free(b.lexicon);
    tokenizer_free(tok);
    return code;
}
