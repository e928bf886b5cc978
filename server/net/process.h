/* What the kernel says about this process. Any thread; 0 when it does not say. */
#pragma once

#include <stdint.h>

uint64_t process_resident_bytes(void);
/* Of those, what is no mapped file: the heap, stacks, pools as far as they were written to. */
uint64_t process_anonymous_bytes(void);
uint32_t process_open_fds(void);
