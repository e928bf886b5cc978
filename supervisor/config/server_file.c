/*
 * Reads the few values that evenkeeld has to know from a server's own file: where it listens, the
 * limits that a remedy may lower and must not raise, and what the companion's flags would replace.
 * The file is the operator's, and the server checks it; what cannot be read here is left to its
 * word.
 */
#include "supervisor/config/server_file.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "common/buf.h"
#include "common/file.h"
#include "common/options.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/law/remedy.h"

#define FILE_MOST (1u << 20)

const char *yaml_text(const yaml_node_t *n)
{
    if (!n || n->type != YAML_SCALAR_NODE ||
        strlen((const char *)n->data.scalar.value) != n->data.scalar.length)
        return NULL;
    return (const char *)n->data.scalar.value;
}

/* The last one of a key counts, as where the file is read. */
static void take_values(yaml_document_t *doc, const char *const *flags, size_t count,
                        char (*values)[SERVER_FILE_VALUE])
{
    const yaml_node_t *root = yaml_document_get_root_node(doc);
    if (!root || root->type != YAML_MAPPING_NODE)
        return;
    for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top;
         p++) {
        const char *key = yaml_text(yaml_document_get_node(doc, p->key)),
                   *value = yaml_text(yaml_document_get_node(doc, p->value));
        char flag[SERVER_FILE_VALUE];
        if (!key || !value || strlen(value) >= SERVER_FILE_VALUE ||
            snprintf(flag, sizeof(flag), "--%s", key) >= (int)sizeof(flag))
            continue;
        for (size_t i = 0; i < count; i++) {
            if (flags[i] && !strchr(flag, '=') && ek_opt_is(flag, flags[i], NULL))
                memcpy(values[i], value, strlen(value) + 1);
        }
    }
}

/* Symlinks are followed (a mounted ConfigMap is one), a FIFO at the end is not waited for. */
static int read_text(const char *path, struct ek_buf *out)
{
    char *real = path ? realpath(path, NULL) : NULL;
    int r = real ? ek_file_read_regular(real, FILE_MOST, out) : -ENOENT;
    free(real);
    return r;
}

static bool server_file_load(const char *path, yaml_document_t *ret_doc)
{
    struct ek_buf text = {0};
    yaml_parser_t parser;
    bool read = false;
    if (read_text(path, &text) == 0 && text.len > 0 && yaml_parser_initialize(&parser)) {
        yaml_parser_set_input_string(&parser, (const unsigned char *)text.data, text.len);
        read = yaml_parser_load(&parser, ret_doc);
        yaml_parser_delete(&parser);
    }
    ek_buf_done(&text);
    return read;
}

bool server_file_read(const char *path, const char *const *flags, size_t count,
                      char (*ret_values)[SERVER_FILE_VALUE])
{
    yaml_document_t doc;
    memset(ret_values, 0, count * sizeof(*ret_values));
    if (!server_file_load(path, &doc))
        return false;
    take_values(&doc, flags, count, ret_values);
    yaml_document_delete(&doc);
    return true;
}

static bool is_said(const yaml_node_t *n, const char *value)
{
    const char *text = yaml_text(n);
    if (!text || !*text || strcmp(text, "null") == 0 || strcmp(text, "~") == 0)
        return false;
    return !value || strcmp(text, value) == 0;
}

static bool node_has(yaml_document_t *doc, const yaml_node_t *n, const char *value)
{
    if (!n || n->type != YAML_SEQUENCE_NODE)
        return is_said(n, value);
    for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++) {
        if (is_said(yaml_document_get_node(doc, *i), value))
            return true;
    }
    return false;
}

bool server_file_has(const char *path, const char *flag, const char *value)
{
    yaml_document_t doc;
    bool has = false;
    if (!server_file_load(path, &doc))
        return false;
    const yaml_node_t *root = yaml_document_get_root_node(&doc);
    bool maps = root && root->type == YAML_MAPPING_NODE;
    for (yaml_node_pair_t *p = maps ? root->data.mapping.pairs.start : NULL;
         p && p < root->data.mapping.pairs.top; p++) {
        const char *key = yaml_text(yaml_document_get_node(&doc, p->key));
        char is[SERVER_FILE_VALUE];
        if (!key || strchr(key, '=') || snprintf(is, sizeof(is), "--%s", key) >= (int)sizeof(is) ||
            !ek_opt_is(is, flag, NULL))
            continue;
        has = node_has(&doc, yaml_document_get_node(&doc, p->value), value); /* the last counts */
    }
    yaml_document_delete(&doc);
    return has;
}

void server_file_settings(const struct dialect *d, char *const *argv,
                          struct remedy_settings *ret_settings)
{
    const char *const flags[] = {d->tokens_flag, d->seqs_flag, d->share_flag, d->swap_flag};
    enum { FLAGS = sizeof(flags) / sizeof(flags[0]) };
    char values[FLAGS][SERVER_FILE_VALUE], texts[FLAGS][2 * SERVER_FILE_VALUE];
    char *words[FLAGS + 1] = {NULL};
    size_t n = 0;
    (void)server_file_read(ek_opt_last(argv, SIZE_MAX, "--config"), flags, FLAGS, values);
    for (size_t i = 0; i < FLAGS; i++) {
        if (!values[i][0])
            continue;
        (void)snprintf(texts[n], sizeof(texts[n]), "%s=%.*s", flags[i], SERVER_FILE_VALUE - 1,
                       values[i]);
        words[n] = texts[n];
        n++;
    }
    remedy_read(d, words, &(struct remedy_settings){0}, ret_settings);
}
