/* Texts in which slashes part names: paths of files, and addresses. */
#pragma once

#include <stddef.h>

/* Bytes without the slashes at its end; none are left of "/". */
size_t ek_path_length(const char *path);
/* Where the last name of it begins, slashes at its end left out, and its bytes; 0 = it has none. */
const char *ek_path_name(const char *path, size_t *ret_bytes);
