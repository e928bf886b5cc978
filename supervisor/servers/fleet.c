/*
 * Looks up a server by its name, for the API, the pages and the loop. A fleet has a few dozen
 * servers at most, so a list is searched.
 */
#include "supervisor/servers/fleet.h"

#include <string.h>

struct server *fleet_find(const struct fleet *all, const char *name)
{
    for (uint32_t i = 0; i < all->count; i++) {
        if (strcmp(all->servers[i]->config->name, name) == 0)
            return all->servers[i];
    }
    return NULL;
}
