/* What the YAML file says that a server reads by --config: flags without dashes, '_' for '-' or
 * not, as evenkeel-server and vLLM take it. On the command line they win. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct dialect;
struct remedy_settings;
struct yaml_node_s;

#define SERVER_FILE_VALUE 80
#define SERVER_FILE_MOST  (1u << 20) /* bytes */

/* The values of these flags ("--port"), "" for what the file does not say or says as no plain text
 * of that length. False when there is no file (`path` NULL), or it cannot be read: the server will
 * say why. */
bool server_file_read(const char *path, const char *const *flags, size_t count,
                      char (*ret_values)[SERVER_FILE_VALUE]);
/* Whether the file says this flag, with this value (NULL: with any): as one text or in a list. A
 * null or an empty list says nothing. */
bool server_file_has(const char *path, const char *flag, const char *value);
/* The limits of memory in the file that argv's --config names; zeros without a file. */
void server_file_settings(const struct dialect *d, char *const *argv,
                          struct remedy_settings *ret_settings);
/* A YAML node's text; NULL for no node, what is no scalar, or a text with a NUL in it. */
const char *yaml_text(const struct yaml_node_s *n);
