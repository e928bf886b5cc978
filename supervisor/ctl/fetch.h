/* One page by HTTP, bounded in time and size. */
#pragma once

struct ek_buf;

/* GET base + path into out (replaced). 0; -ECONNREFUSED or -EBADMSG (a status other than 200), with
 * one sentence in `said`; -ENOMEM. */
int fetch_page(const char *base, const char *path, struct ek_buf *out, char said[200]);
