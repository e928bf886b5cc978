/* What the documents of the API (api.c) and its verbs (api_write.c) share. */
#pragma once

#include <stdbool.h>

struct ek_buf;
struct fleet;
struct server;

/* Splits /api/v1/servers/NAME[/VERB]; false for any other path. */
bool api_split_path(const char *path, char ret_name[40], char ret_verb[24]);
/* Appends the error for a name that no server has. Returns 404, or -ENOMEM. */
int api_no_server(const struct fleet *all, const char *name, struct ek_buf *out);
/* Appends the server's limits as an object. */
void api_put_limits(const struct server *s, struct ek_buf *out);
