/*
 * The status page: one file (page.html, built into the program) with its placeholders filled in.
 * All figures are in the HTML itself, so it can be read without JavaScript; the script only keeps
 * them fresh and draws the charts. A nonce per answer goes with a strict content security policy.
 */
#pragma once

#include <stddef.h>

struct ek_buf;
struct fleet;

/* 0 or -ENOMEM. */
int page_write(const struct fleet *all, const char *nonce, struct ek_buf *out);
/* Appends text with & < > " ' escaped. */
int page_escape(struct ek_buf *out, const char *text);
