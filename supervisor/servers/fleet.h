/*
 * What an evenkeeld looks after: its services, its configuration and its servers. The loop owns it
 * and changes it (a reload, an end); the pages, the API and the metrics read it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "supervisor/config/options.h"
#include "supervisor/servers/server.h"

struct fleet {
    struct services with;
    struct config *config;   /* the running one */
    struct server **servers; /* those that are configured no longer too, until they have ended */
    uint32_t count;
    uint64_t started_wall_us, reload_wall_us; /* reload: the last that succeeded */
    bool reload_ok;
};

/* NULL: it has no such server. */
struct server *fleet_find(const struct fleet *all, const char *name);
