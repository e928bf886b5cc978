/* The option tables and what options.c and options_yaml.c share; nobody else includes this. */
#pragma once

#include "supervisor/options.h"

extern const struct ek_opt daemon_table[]; /* into struct config */
extern const struct ek_opt server_table[]; /* into struct server_config */
size_t daemon_rows(void);

/* A new server with the defaults; `*ret_server` is valid until the next one is added. */
int config_add_server(struct config *c, const char *name, struct server_config **ret_server,
                      struct ek_fault *fault);
/* Checks fields against each other and builds argv. */
int server_config_finish(const struct config *c, struct server_config *s, struct ek_fault *fault);
void server_config_done(struct server_config *s);
