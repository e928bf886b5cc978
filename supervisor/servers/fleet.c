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
