/* The table of families; a new one is a file family_<name>.c and a line in common/families.h. */
#include "server/model/family.h"

#include <string.h>

#define ROW(row, class) &family_##row,
static const struct model_family *const families[] = {EK_FAMILIES(ROW)};
#undef ROW

const struct model_family *model_family_find(const char *architecture)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strcmp(families[i]->architecture, architecture) == 0)
            return families[i];
    return NULL;
}
