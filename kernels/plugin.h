/* Shared objects that are loaded only where they are needed. */
#pragma once

#include <stddef.h>

/* `file`, looked for beside the program, in ../lib/evenkeel, then where the dynamic linker looks.
 * NULL with why; it stays loaded until the process ends. */
void *ek_plugin_open(const char *file, char *ret_why, size_t size);
