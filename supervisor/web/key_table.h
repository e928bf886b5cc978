/*
 * What each API key has of a server, as JSON and as a table of the page. Everybody who reaches
 * evenkeeld's address reads both, so keys have numbers there; their names are for those who may use
 * its Unix socket, as the server itself tells them to no client without a key.
 */
#pragma once

#include <stdbool.h>

struct ek_buf;
struct fleet;
struct server;

/* Members of an object: "keys":[...],"keys_why":"..." or null. */
void key_table_json(const struct server *s, bool names, struct ek_buf *out);
/* GET /api/v1/servers/NAME/keys, with names: the caller has checked the user that asks. The status
 * with out filled, -ENOMEM, or 0: the path is another one. */
int key_table_read(const struct fleet *all, const char *path, struct ek_buf *out);
/* Hidden where there are not two keys. */
void key_table_page(const struct server *s, struct ek_buf *out);
