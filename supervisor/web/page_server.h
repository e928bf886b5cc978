/*
 * The parts of the status page that show servers: one section each, and above them a table of all
 * when there are several. What the script of page.html keeps fresh carries data-k.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ek_buf;
struct server;

void page_overview(struct ek_buf *out, struct server *const *servers, uint32_t count);
/* open: all of it; else its figures are behind a summary. */
void page_server(struct ek_buf *out, const struct server *s, bool open);
