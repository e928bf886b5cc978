/* See path.h. A directory or an address from outside ends with a slash or does not. */
#include "common/path.h"

#include <string.h>

size_t ek_path_length(const char *path)
{
    size_t n = strlen(path);

    while (n > 0 && path[n - 1] == '/')
        n--;
    return n;
}

const char *ek_path_name(const char *path, size_t *ret_bytes)
{
    const size_t end = ek_path_length(path);
    size_t at = end;

    while (at > 0 && path[at - 1] != '/')
        at--;
    *ret_bytes = end - at;
    return path + at;
}
