/*
 * The YAML side of options: a flat mapping NAME: VALUE, sequences for lists. Called by options.c
 * for a file of options.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "common/err.h"
#include "common/options.h"

static int at_line(struct ek_fault *f, const char *what, size_t line, int r)
{
    if (r != -EBADMSG || !f)
        return r;
    char msg[sizeof(f->msg)];
    memcpy(msg, f->msg, sizeof(msg));
    f->at = line;
    (void)snprintf(f->msg, sizeof(f->msg), "%.200s line %zu: %.250s", what, line, msg);
    return r;
}

static int set_node(const struct ek_opt_source *src, yaml_document_t *doc, const char *key,
                    yaml_node_t *v, struct ek_fault *f)
{
    if (v->type == YAML_SCALAR_NODE)
        return ek_opt_set(src, key, (const char *)v->data.scalar.value, f);
    if (v->type != YAML_SEQUENCE_NODE)
        return ek_fault_set(f, key, "%.60s: a mapping is not a value; write %.60s: VALUE", key,
                            key);
    for (yaml_node_item_t *i = v->data.sequence.items.start; i < v->data.sequence.items.top; i++) {
        yaml_node_t *e = yaml_document_get_node(doc, *i);
        if (!e || e->type != YAML_SCALAR_NODE)
            return ek_fault_set(f, key, "%.60s: a list holds plain values only", key);
        int r = ek_opt_set(src, key, (const char *)e->data.scalar.value, f);
        if (r < 0)
            return r;
    }
    return 0;
}

static int set_all(const struct ek_opt_source *src, const char *what, yaml_document_t *doc,
                   struct ek_fault *f)
{
    yaml_node_t *root = yaml_document_get_root_node(doc);
    if (!root)
        return 0; /* an empty file sets nothing */
    if (root->type != YAML_MAPPING_NODE)
        return at_line(f, what, root->start_mark.line + 1,
                       ek_fault_set(f, "", "expected NAME: VALUE lines"));
    for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top;
         p++) {
        yaml_node_t *k = yaml_document_get_node(doc, p->key);
        yaml_node_t *v = yaml_document_get_node(doc, p->value);
        int r = -EBADMSG;
        if (!k || !v || k->type != YAML_SCALAR_NODE)
            (void)ek_fault_set(f, "", "a key must be a plain name");
        else
            r = set_node(src, doc, (const char *)k->data.scalar.value, v, f);
        if (r < 0)
            return at_line(f, what, k ? k->start_mark.line + 1 : 0, r);
    }
    return 0;
}

const char *ek_yaml_problem(const char *problem)
{
    if (!problem)
        return "syntax error";
    return strcmp(problem, "found character that cannot start any token") == 0
               ? "a tab, @ or ` cannot stand here: indent with blanks, put text into quotes"
               : problem;
}

int ek_opt_yaml(const struct ek_opt_source *src, const char *what, const char *text, size_t len,
                struct ek_fault *fault)
{
    yaml_parser_t parser;
    yaml_document_t doc;
    if (!yaml_parser_initialize(&parser))
        return -ENOMEM;
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    int r;
    if (!yaml_parser_load(&parser, &doc)) {
        r = parser.error == YAML_MEMORY_ERROR
                ? -ENOMEM
                : at_line(fault, what, parser.problem_mark.line + 1,
                          ek_fault_set(fault, "", "not YAML: %s", ek_yaml_problem(parser.problem)));
    } else {
        r = set_all(src, what, &doc, fault);
        yaml_document_delete(&doc);
    }
    yaml_parser_delete(&parser);
    return r;
}
