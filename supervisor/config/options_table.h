/* The option tables and what the files options*.c share; no other file includes this. */
#pragma once

#include "supervisor/config/options.h"

extern const struct ek_opt daemon_table[]; /* into struct config */
extern const struct ek_opt server_table[]; /* into struct server_config */
size_t daemon_rows(void);                  /* with the last, empty one */
size_t server_rows(void);

/* The defaults of a server, into an empty struct. 0 or -ENOMEM. */
int config_server_defaults(struct server_config *s);
/* A new server with the defaults; `*ret_server` is valid until the next one is added. */
int config_add_server(struct config *c, const char *name, struct server_config **ret_server,
                      struct ek_fault *fault);
/* Checks fields against each other and builds argv. */
int server_config_finish(const struct config *c, struct server_config *s, struct ek_fault *fault);
void server_config_done(struct server_config *s);
/* What a server's own file says about where it listens; -EBADMSG with fault. */
int config_server_yaml(struct server_config *s, const char *what, const char *text, size_t len,
                       struct ek_fault *fault);
/* The servers of servers_dir, behind those that c has already. A file of a server that c has gives
 * that one its flags. Missing directories are empty ones. */
int server_files_read(struct config *c, struct ek_fault *fault);
/* Adds a copy of a word to a list of `*n` words that NULL ends. 0 or -ENOMEM. */
int config_append(char ***list, size_t *n, const char *text);
/* Whether a list has "--flag" or "--flag=...". */
bool config_has_string(const struct ek_strings *list, const char *flag);
/* Sets an unset text to dir, or dir/name, with tail behind it. 0, -ENAMETOOLONG, -ENOMEM. */
int config_default_path(char **field, const char *dir, const char *name, const char *tail);
/* Numbers and mode of the law that lie beside the policy, into it. */
/* What the law is without a word from anybody: policy_defaults(), also in the fields that only
 * become the law's in config_policy_finish(). */
void config_law_defaults(struct server_config *s);
void config_policy_finish(struct server_config *s);
/* "name":"value" of all the law's constants and the mode, as options take them. */
void config_policy_json(const struct policy_params *p, struct ek_buf *out);
