/*
 * The pages for people: one to try a model (GET /) and one that lists the API (GET /docs). Each is
 * one file (chat.html, docs.html), built into the program, that loads nothing from elsewhere. They
 * are sent without a key, for they hold nothing of this server: what they show, their scripts ask
 * of the API as any client does, with a key where one is needed.
 *
 * The policy that goes with a page lets its own script and style run, known by their hashes, and
 * nothing else: text of a model that became markup by mistake could still do nothing.
 */
#pragma once

struct answer;
struct exchange;
struct pages;

/* Hashes what the pages consist of. -ENOMEM, or -EIO when the hash cannot be had. */
int pages_new(struct pages **ret_pages);
void pages_free(struct pages *p); /* NULL is fine */

/* Handlers of routes; the exchange's thread. 304 when If-None-Match has the page's ETag. */
int pages_chat(struct exchange *x, struct answer *a);
int pages_docs(struct exchange *x, struct answer *a);
