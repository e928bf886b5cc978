/*
 * The runbook as a page: docs/runbook.md, built into the program, so that the links of alerts lead
 * somewhere without anything else. Of Markdown it knows what that file uses: headings, paragraphs,
 * blocks of commands, `code`, and links, which become their words since the other documents are not
 * served. Pure.
 */
#pragma once

struct ek_buf;

/* 0 or -ENOMEM. */
int runbook_write(const char *nonce, struct ek_buf *out);
/* Any text of that kind, for tests: what stands between the page's head and its end. */
void runbook_body(const char *text, struct ek_buf *out);
