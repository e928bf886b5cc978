/*
 * Whether a body names a model that is served (served.h), for the table of fields and the
 * endpoints that name one in their path.
 */
#include "server/api/served.h"

#include <stdio.h>
#include <string.h>

#include "server/api/error.h"

uint32_t served_place(const struct served *s, const char *name)
{
    uint32_t i = 0;
    while (i < s->names && !(name && strcmp(name, s->name[i]) == 0))
        i++;
    return i;
}

int served_model(const struct served *s, const char *name, struct api_error *err)
{
    if (served_place(s, name) < s->names)
        return 0;
    if (!name || !name[0]) /* whichever is served */
        return 0;
    char served[400] = "";
    size_t len = 0;
    for (uint32_t i = 0; i < s->names && len < sizeof(served); i++)
        len += (size_t)snprintf(served + len, sizeof(served) - len, "%s`%.100s`", i ? ", " : "",
                                s->name[i]);
    return api_refuse(err, 404, "model",
                      "The model `%.64s` does not exist; GET /v1/models lists those that do: %s.",
                      name, served);
}

int served_model_tagged(const struct served *s, const char *name, struct api_error *err)
{
    static const char tag[] = ":latest";
    size_t len = name ? strlen(name) : 0, n = sizeof(tag) - 1;
    bool tagged = len > n && strcmp(name + len - n, tag) == 0;
    for (uint32_t i = 0; tagged && i < s->names; i++) {
        if (strlen(s->name[i]) == len - n && strncmp(name, s->name[i], len - n) == 0)
            return 0;
    }
    return served_model(s, name, err);
}
