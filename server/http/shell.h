/* What main.c may set about who reaches the server and how: part of struct http_params. */
#pragma once

#include <stdbool.h>

#include "server/http/auth.h"

struct http_shell {
    struct auth_source keys;
    bool require_key, protect_metrics;
};
