/* One page by HTTP, bounded in time and size. */
#pragma once

#include <stdint.h>

#include "common/buf.h"

/* GET base + path into out (replaced). 0; -ECONNREFUSED or -EBADMSG (a status other than 200), with
 * one sentence in `said`; -ENOMEM. */
int fetch_page(const char *base, const char *path, struct ek_buf *out, char said[200]);

#define FETCH_MOST 256

struct page_fetch {
    const char *base, *path;
    struct ek_buf body; /* the caller's */
    int error;          /* as of fetch_page() */
    char said[200];
};
/* All of them at once, none longer than timeout_ms. Errors are each item's own; -ENOMEM. */
int fetch_pages(struct page_fetch *items, uint32_t count, uint32_t timeout_ms);
