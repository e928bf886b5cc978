/*
 * The file's form, see signatures.yaml itself. Read with libyaml into a document, then taken over
 * key by key; an unknown key, a missing language or an expression that cannot be read is a fault
 * with its line.
 */
#include "supervisor/doctor/catalog_yaml.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "common/err.h"
#include "supervisor/doctor/expr.h"

#define LIST_MOST 512u
#define RANK_MOST 100

struct catalog_walk {
    struct catalog_inside *c;
    yaml_document_t doc;
    const char *what;
    struct ek_fault *fault;
    bool seen[DOCTOR_SIGNATURES_MOST]; /* entries of this file */
};

/* A fault gets its place. */
static int at_node(const struct catalog_walk *w, const yaml_node_t *n, int r)
{
    if (r == -EBADMSG && w->fault && w->fault->at == 0) {
        char msg[sizeof(w->fault->msg)];
        memcpy(msg, w->fault->msg, sizeof(msg));
        w->fault->at = n ? n->start_mark.line + 1 : 0;
        (void)snprintf(w->fault->msg, sizeof(w->fault->msg), "%.100s line %llu: %.330s", w->what,
                       (unsigned long long)w->fault->at, msg);
    }
    return r;
}

static const char *scalar(const yaml_node_t *n)
{
    return n && n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : NULL;
}

static yaml_node_t *catalog_get(struct catalog_walk *w, const yaml_node_t *map, const char *key)
{
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const char *k = scalar(yaml_document_get_node(&w->doc, p->key));
        if (k && strcmp(k, key) == 0)
            return yaml_document_get_node(&w->doc, p->value);
    }
    return NULL;
}

/* Every key is one of `known` (words with a blank around each). */
static int check_keys(struct catalog_walk *w, const yaml_node_t *map, const char *known)
{
    if (!map || map->type != YAML_MAPPING_NODE)
        return at_node(w, map, ek_fault_set(w->fault, "", "expected {key: value, ...}"));
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        yaml_node_t *n = yaml_document_get_node(&w->doc, p->key);
        const char *k = scalar(n);
        char word[40];
        (void)snprintf(word, sizeof(word), " %.36s ", k ? k : "?");
        if (!k || strlen(k) > 30 || !strstr(known, word))
            return at_node(w, n, ek_fault_set(w->fault, "", "unknown key '%.40s'", k ? k : "?"));
    }
    return 0;
}

static int catalog_copy(struct catalog_walk *w, const yaml_node_t *n, const char **ret_text)
{
    const char *s = scalar(n);
    if (!s)
        return at_node(w, n, ek_fault_set(w->fault, "", "expected a text"));
    *ret_text = ek_arena_copy(&w->c->arena, s, strlen(s));
    return *ret_text ? 0 : -ENOMEM;
}

/* An optional text. */
static int copy_key(struct catalog_walk *w, const yaml_node_t *map, const char *key,
                    const char **ret_text)
{
    const yaml_node_t *n = catalog_get(w, map, key);
    return n ? catalog_copy(w, n, ret_text) : 0;
}

static int need_key(struct catalog_walk *w, const yaml_node_t *map, const char *key,
                    const char **ret_text)
{
    const yaml_node_t *n = catalog_get(w, map, key);
    if (!n)
        return at_node(w, map, ek_fault_set(w->fault, key, "'%s' is missing", key));
    return catalog_copy(w, n, ret_text);
}

/* Both languages from a mapping that holds them; what has no translation is told in English. */
static int languages(struct catalog_walk *w, const yaml_node_t *map, struct doctor_text *t)
{
    int r = need_key(w, map, "en", &t->in[LANG_EN]);
    t->in[LANG_ZH] = t->in[LANG_EN];
    return r < 0 ? r : copy_key(w, map, "zh", &t->in[LANG_ZH]);
}

static int bilingual(struct catalog_walk *w, const yaml_node_t *map, const char *key,
                     struct doctor_text *t)
{
    const yaml_node_t *n = catalog_get(w, map, key);
    if (!n)
        return at_node(w, map, ek_fault_set(w->fault, key, "'%s' is missing", key));
    if (n->type == YAML_SCALAR_NODE) {
        int e = catalog_copy(w, n, &t->in[LANG_EN]);
        t->in[LANG_ZH] = t->in[LANG_EN];
        return e;
    }
    int r = check_keys(w, n, " en zh ");
    return r < 0 ? r : languages(w, n, t);
}

/* An optional whole number from 1 to most. */
static int number_key(struct catalog_walk *w, const yaml_node_t *map, const char *key,
                      uint32_t most, uint32_t *ret_value)
{
    const yaml_node_t *n = catalog_get(w, map, key);
    const char *s = scalar(n);
    uint32_t v = 0;
    if (!n)
        return 0;
    for (; s && *s >= '0' && *s <= '9' && v <= most; s++)
        v = v * 10 + (uint32_t)(*s - '0');
    if (!s || *s || v == 0 || v > most)
        return at_node(w, n,
                       ek_fault_set(w->fault, key, "'%s' is a number from 1 to %u", key, most));
    *ret_value = v;
    return 0;
}

static int check_expr(struct catalog_walk *w, const yaml_node_t *map, const char *text)
{
    double v;
    /* Without any value: only the spelling counts. */
    if (!text || *text == '=' || doctor_eval(text, NULL, NULL, &v) != -EBADMSG)
        return 0;
    return at_node(w, map, ek_fault_set(w->fault, "value", "'%.100s' cannot be computed", text));
}

static size_t length(const yaml_node_t *list)
{
    return (size_t)(list->data.sequence.items.top - list->data.sequence.items.start);
}

static yaml_node_t *item(struct catalog_walk *w, const yaml_node_t *list, size_t i)
{
    return yaml_document_get_node(&w->doc, list->data.sequence.items.start[i]);
}

/* The list under the key, NULL if there is none. */
static int list_key(struct catalog_walk *w, const yaml_node_t *map, const char *key,
                    const yaml_node_t **ret_list)
{
    *ret_list = catalog_get(w, map, key);
    if (*ret_list && ((*ret_list)->type != YAML_SEQUENCE_NODE || length(*ret_list) > LIST_MOST))
        return at_node(w, *ret_list,
                       ek_fault_set(w->fault, key, "'%s' is a list of at most %u", key, LIST_MOST));
    return 0;
}

static int read_remedy(struct catalog_walk *w, const yaml_node_t *n, struct doctor_remedy *m)
{
    if (n->type == YAML_SCALAR_NODE) { /* words alone */
        int e = catalog_copy(w, n, &m->text.in[LANG_EN]);
        m->text.in[LANG_ZH] = m->text.in[LANG_EN];
        return e;
    }
    int r = check_keys(w, n, " flag value when en zh rate from ");
    if (r == 0)
        r = copy_key(w, n, "flag", &m->flag);
    for (uint32_t f = 0; m->flag && f < w->c->flag_count && !m->known; f++)
        m->known = strcmp(w->c->flag[f].flag, m->flag) == 0 ? &w->c->flag[f] : NULL;
    if (r == 0)
        r = copy_key(w, n, "value", &m->value);
    if (r == 0)
        r = copy_key(w, n, "when", &m->when);
    if (r == 0)
        r = copy_key(w, n, "from", &m->from);
    if (r == 0)
        r = number_key(w, n, "rate", 100, &m->rate);
    if (r == 0)
        r = languages(w, n, &m->text);
    if (r == 0)
        r = check_expr(w, n, m->value);
    return r == 0 ? check_expr(w, n, m->when) : r;
}

static int read_remedies(struct catalog_walk *w, const yaml_node_t *map, const char *key,
                         const struct doctor_remedy **ret_list, uint32_t *ret_count)
{
    const yaml_node_t *list;
    int r = list_key(w, map, key, &list);
    if (r < 0 || !list)
        return r;
    struct doctor_remedy *at = ek_arena_array(&w->c->arena, length(list), sizeof(*at));
    if (!at)
        return -ENOMEM;
    for (size_t i = 0; i < length(list) && r == 0; i++)
        r = read_remedy(w, item(w, list, i), &at[i]);
    *ret_list = at;
    *ret_count = (uint32_t)length(list);
    return r;
}

static int read_sources(struct catalog_walk *w, const yaml_node_t *map,
                        const char *const **ret_sources, uint32_t *ret_count)
{
    const yaml_node_t *list;
    int r = list_key(w, map, "sources", &list);
    if (r < 0 || !list)
        return r < 0 ? r
                     : at_node(w, map, ek_fault_set(w->fault, "sources", "sources are missing"));
    const char **at = ek_arena_array(&w->c->arena, length(list), sizeof(*at));
    if (!at)
        return -ENOMEM;
    for (size_t i = 0; i < length(list) && r == 0; i++)
        r = catalog_copy(w, item(w, list, i), &at[i]);
    *ret_sources = at;
    *ret_count = (uint32_t)length(list);
    return r;
}

static int read_examples(struct catalog_walk *w, const yaml_node_t *map, struct doctor_signature *s)
{
    const yaml_node_t *list;
    int r = list_key(w, map, "examples", &list);
    if (r < 0 || !list)
        return r;
    struct doctor_example *at = ek_arena_array(&w->c->arena, length(list), sizeof(*at));
    if (!at)
        return -ENOMEM;
    for (size_t i = 0; i < length(list) && r == 0; i++) {
        const yaml_node_t *n = item(w, list, i);
        r = check_keys(w, n, " version log ");
        if (r == 0)
            r = need_key(w, n, "version", &at[i].version);
        if (r == 0)
            r = need_key(w, n, "log", &at[i].log);
    }
    s->examples = at;
    s->example_count = (uint32_t)length(list);
    return r;
}

static bool is_true(struct catalog_walk *w, const yaml_node_t *map, const char *key)
{
    const char *text = scalar(catalog_get(w, map, key));
    return text && strcmp(text, "true") == 0;
}

static int read_patterns(struct catalog_walk *w, const yaml_node_t *map, const char *key,
                         struct doctor_pattern p)
{
    const yaml_node_t *list;
    int r = list_key(w, map, key, &list);
    for (size_t i = 0; r == 0 && list && i < length(list); i++) {
        r = catalog_copy(w, item(w, list, i), &p.text);
        if (r == 0)
            r = at_node(w, item(w, list, i), catalog_add_pattern(w->c, &p, w->fault));
    }
    return r;
}

static int find_class(struct catalog_walk *w, const yaml_node_t *map, const char *name,
                      enum doctor_class *ret_class)
{
    for (int c = 0; name && c < DOCTOR_CLASSES; c++) {
        if (strcmp(doctor_class_name((enum doctor_class)c), name) == 0) {
            *ret_class = (enum doctor_class)c;
            return 0;
        }
    }
    return at_node(w, map,
                   ek_fault_set(w->fault, "class", "there is no class '%.40s'", name ? name : ""));
}

static int read_class(struct catalog_walk *w, const yaml_node_t *map, enum doctor_class *ret_class)
{
    return find_class(w, map, scalar(catalog_get(w, map, "class")), ret_class);
}

/* The place of an id: its own if it is there, else a new one. Twice in one file is a mistake: the
 * second would hide the first. */
static int catalog_place(struct catalog_walk *w, const yaml_node_t *map, const char *id,
                         uint32_t *ret_at)
{
    uint32_t i = 0, count = w->c->shown.signature_count;
    while (i < count && strcmp(w->c->signature[i].id, id) != 0)
        i++;
    if (i == DOCTOR_SIGNATURES_MOST)
        return at_node(
            w, map,
            ek_fault_set(w->fault, "id", "more than %u signatures", DOCTOR_SIGNATURES_MOST));
    if (w->seen[i])
        return at_node(w, map, ek_fault_set(w->fault, "id", "'%.60s' is there twice", id));
    w->seen[i] = true;
    if (i < count)
        catalog_drop_patterns(w->c, i);
    *ret_at = i;
    return 0;
}

static int read_signature(struct catalog_walk *w, const yaml_node_t *map)
{
    struct doctor_signature s = {.rank = 50, .engines = "any", .versions = "all"};
    uint32_t at = 0;
    int r = check_keys(
        w, map,
        " id class rank engines versions re quoted more title cause do dont sources examples "
        "ladder times clears general final ");
    if (r == 0)
        r = need_key(w, map, "id", &s.id);
    if (r == 0)
        r = read_class(w, map, &s.cls);
    if (r == 0)
        r = number_key(w, map, "rank", RANK_MOST, &s.rank);
    if (r == 0)
        r = number_key(w, map, "times", RANK_MOST, &s.times);
    if (r == 0)
        r = copy_key(w, map, "engines", &s.engines);
    if (r == 0)
        r = copy_key(w, map, "versions", &s.versions);
    if (r == 0)
        r = bilingual(w, map, "title", &s.title);
    if (r == 0)
        r = bilingual(w, map, "cause", &s.cause);
    if (r == 0)
        r = read_remedies(w, map, "do", &s.remedies, &s.remedy_count);
    if (r == 0)
        r = read_remedies(w, map, "dont", &s.dead_ends, &s.dead_end_count);
    if (r == 0)
        r = read_sources(w, map, &s.sources, &s.source_count);
    if (r == 0)
        r = read_examples(w, map, &s);
    s.ladder = is_true(w, map, "ladder");
    s.general = is_true(w, map, "general");
    s.final = is_true(w, map, "final");
    if (r == 0)
        r = catalog_place(w, map, s.id, &at);
    if (r < 0)
        return r;
    w->c->signature[at] = s;
    if (at == w->c->shown.signature_count)
        w->c->shown.signature_count++;
    struct doctor_pattern p = {.kind = PATTERN_FAILURE, .signature = at};
    p.quoted = is_true(w, map, "quoted");
    r = read_patterns(w, map, "re", p);
    p.kind = PATTERN_MORE;
    if (r == 0)
        r = read_patterns(w, map, "more", p);
    p.kind = PATTERN_CLEAR;
    return r == 0 ? read_patterns(w, map, "clears", p) : r;
}

/* "0.11" -> 1100; without the key 0. */
static int version_key(struct catalog_walk *w, const yaml_node_t *map, const char *key,
                       double *ret_version)
{
    const char *text = scalar(catalog_get(w, map, key));
    *ret_version = text ? doctor_version(text, strlen(text)) : 0;
    if (text && !(*ret_version > 0))
        return at_node(w, map, ek_fault_set(w->fault, key, "'%s' is a version like 0.11", key));
    return 0;
}

static int read_flag(struct catalog_walk *w, const yaml_node_t *map)
{
    struct doctor_flag f = {0};
    if (w->c->flag_count == DOCTOR_FLAGS_MOST)
        return at_node(w, map,
                       ek_fault_set(w->fault, "flags", "more than %u flags", DOCTOR_FLAGS_MOST));
    int r = check_keys(w, map, " flag engine from until instead sglang llamacpp ");
    if (r == 0)
        r = need_key(w, map, "flag", &f.flag);
    if (r == 0)
        r = need_key(w, map, "engine", &f.engine);
    if (r == 0)
        r = version_key(w, map, "from", &f.from);
    if (r == 0)
        r = version_key(w, map, "until", &f.until);
    if (r == 0)
        r = copy_key(w, map, "instead", &f.instead);
    if (r == 0)
        r = copy_key(w, map, "sglang", &f.sglang);
    if (r == 0)
        r = copy_key(w, map, "llamacpp", &f.llamacpp);
    if (r == 0)
        w->c->flag[w->c->flag_count++] = f;
    return r;
}

static int read_hint(struct catalog_walk *w, const yaml_node_t *map)
{
    struct doctor_hint h = {.cls = DOCTOR_CLASSES};
    const yaml_node_t *list;
    int r = check_keys(w, map, " class names re ");
    if (r == 0)
        r = read_class(w, map, &h.cls);
    if (r == 0)
        r = copy_key(w, map, "names", &h.names);
    if (r == 0)
        r = list_key(w, map, "re", &list);
    for (size_t i = 0; r == 0 && list && i < length(list); i++) {
        const char *text = NULL;
        r = catalog_copy(w, item(w, list, i), &text);
        if (r == 0)
            r = at_node(w, item(w, list, i), catalog_add_hint(w->c, h, text, w->fault));
    }
    return r;
}

/* The classes of a help, as bits. */
static int read_classes(struct catalog_walk *w, const yaml_node_t *map, uint32_t *ret_classes)
{
    const yaml_node_t *list;
    int r = list_key(w, map, "class", &list);
    if (r == 0 && !list)
        r = at_node(w, map, ek_fault_set(w->fault, "class", "'class' is missing"));
    for (size_t i = 0; r == 0 && i < length(list); i++) {
        enum doctor_class cls = DOCTOR_CLASSES;
        r = find_class(w, map, scalar(item(w, list, i)), &cls);
        *ret_classes |= r == 0 ? 1u << cls : 0;
    }
    return r;
}

static int read_help(struct catalog_walk *w, const yaml_node_t *map)
{
    struct doctor_help h = {0};
    const char *text = NULL;
    int r = check_keys(w, map, " what class re do sources ");
    if (r == 0)
        r = need_key(w, map, "what", &h.what);
    if (r == 0)
        r = read_classes(w, map, &h.classes);
    if (r == 0)
        r = need_key(w, map, "re", &text);
    if (r == 0)
        r = read_remedies(w, map, "do", &h.remedies, &h.remedy_count);
    if (r == 0)
        r = read_sources(w, map, &h.sources, &h.source_count);
    return r == 0 ? at_node(w, map, catalog_add_help(w->c, h, text, w->fault)) : r;
}

/* {CLASS: [command, command, command], ...}; ANY stands for those that are not there. */
static int read_asks(struct catalog_walk *w, const yaml_node_t *map)
{
    if (map->type != YAML_MAPPING_NODE)
        return at_node(w, map, ek_fault_set(w->fault, "asks", "'asks' is {CLASS: [command, ...]}"));
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const char *name = scalar(yaml_document_get_node(&w->doc, p->key));
        const yaml_node_t *list = yaml_document_get_node(&w->doc, p->value);
        enum doctor_class cls = DOCTOR_CLASSES;
        int r = name && strcmp(name, "ANY") == 0 ? 0 : find_class(w, map, name, &cls);
        if (r == 0 && (list->type != YAML_SEQUENCE_NODE || length(list) != DOCTOR_ASKS))
            r = at_node(
                w, list,
                ek_fault_set(w->fault, "asks", "'%.40s' is %d commands", name, DOCTOR_ASKS));
        for (size_t i = 0; r == 0 && i < DOCTOR_ASKS; i++)
            r = catalog_copy(w, item(w, list, i), &w->c->ask[cls][i]);
        if (r < 0)
            return r;
    }
    return 0;
}

/* The list under `key`, one by one. */
static int catalog_each(struct catalog_walk *w, const yaml_node_t *root, const char *key,
                        int (*read)(struct catalog_walk *w, const yaml_node_t *map))
{
    const yaml_node_t *list = catalog_get(w, root, key);
    int r = 0;
    if (list && list->type != YAML_SEQUENCE_NODE)
        return at_node(w, list, ek_fault_set(w->fault, key, "'%s' is a list", key));
    for (size_t i = 0; r == 0 && list && i < length(list); i++)
        r = read(w, item(w, list, i));
    return r;
}

static int read_list(struct catalog_walk *w, const yaml_node_t *root)
{
    static const struct {
        const char *key;
        struct doctor_pattern as;
    } lists[] = {{"starts", {.kind = PATTERN_START}},
                 {"warms", {.kind = PATTERN_WARM}},
                 {"readies", {.kind = PATTERN_READY}},
                 {"works", {.kind = PATTERN_WORKS}},
                 {"stops", {.kind = PATTERN_STOP}},
                 {"early", {.kind = PATTERN_EARLY}},
                 {"late", {.kind = PATTERN_LATE}},
                 {"facts", {.kind = PATTERN_FACT}},
                 {"quoted_facts", {.kind = PATTERN_FACT, .quoted = true}}};
    const yaml_node_t *asks = NULL;
    int r =
        check_keys(w, root,
                   " starts warms readies works stops early late facts quoted_facts flags hints "
                   "helps asks signatures ");
    for (size_t i = 0; r == 0 && i < sizeof(lists) / sizeof(lists[0]); i++)
        r = read_patterns(w, root, lists[i].key, lists[i].as);
    if (r == 0)
        r = catalog_each(w, root, "flags", read_flag);
    if (r == 0)
        r = catalog_each(w, root, "hints", read_hint);
    if (r == 0)
        r = catalog_each(w, root, "helps", read_help);
    if (r == 0 && (asks = catalog_get(w, root, "asks")))
        r = read_asks(w, asks);
    return r == 0 ? catalog_each(w, root, "signatures", read_signature) : r;
}

int catalog_read(struct catalog_inside *c, const char *what, const char *text, size_t len,
                 struct ek_fault *fault)
{
    yaml_parser_t parser;
    struct catalog_walk w = {.c = c, .what = what, .fault = fault};
    if (fault)
        fault->at = 0;
    if (len > DOCTOR_FILE_MOST)
        return ek_fault_set(fault, "", "%.100s: larger than %u bytes", what, DOCTOR_FILE_MOST);
    if (!yaml_parser_initialize(&parser))
        return -ENOMEM;
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    int r = 0;
    if (!yaml_parser_load(&parser, &w.doc)) {
        r = parser.error == YAML_MEMORY_ERROR
                ? -ENOMEM
                : ek_fault_set(fault, "", "%.100s line %zu: %.200s", what,
                               parser.problem_mark.line + 1, parser.problem ? parser.problem : "?");
        yaml_parser_delete(&parser);
        return r;
    }
    const yaml_node_t *root = yaml_document_get_root_node(&w.doc);
    if (root)
        r = read_list(&w, root);
    yaml_document_delete(&w.doc);
    yaml_parser_delete(&parser);
    return r;
}
