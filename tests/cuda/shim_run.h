/* Running a kernel that was compiled with shim.h, from C. One at a time, on one thread. */
#pragma once

#include <stddef.h>

#if defined(__cplusplus)
extern "C" {
#endif
/* Index of a kernel and how many bytes its argument has; -1 when there is none of this name. */
int shim_find(const char *name, size_t *ret_bytes);
void shim_launch(int index, const unsigned grid[3], unsigned threads, size_t dynamic_bytes,
                 const void *args);
#if defined(__cplusplus)
}
#endif
