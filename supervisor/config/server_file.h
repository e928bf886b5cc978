/* What the YAML file says that a server reads by --config: flags without dashes, '_' for '-' or
 * not, as evenkeel-server and vLLM take it. On the command line they win. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct dialect;
struct remedy_settings;

#define SERVER_FILE_VALUE 80

/* The values of these flags ("--port"), "" for what the file does not say or says as no plain text
 * of that length. False when argv names no file, or it cannot be read: the server will say why. */
bool server_file_read(char *const *argv, const char *const *flags, size_t count,
                      char (*ret_values)[SERVER_FILE_VALUE]);
/* The limits of memory there; zeros without a file. */
void server_file_settings(const struct dialect *d, char *const *argv,
                          struct remedy_settings *ret_settings);
