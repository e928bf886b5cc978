/* Running a kernel that was compiled with shim.h, from C. One at a time, on one thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif
/* Index of a kernel and how many bytes its argument has; -1 when there is none of this name. */
int shim_find(const char *name, size_t *ret_bytes);
void shim_launch(int index, const unsigned grid[3], unsigned threads, size_t dynamic_bytes,
                 const void *args);
/* Where in a block's shared memory a descriptor of wgmma has number k of row i (of column i, where
 * it is MN-major). */
uint32_t shim_wgmma_address(uint64_t descriptor, int columns, unsigned i, unsigned k);
#if defined(__cplusplus)
}
#endif
