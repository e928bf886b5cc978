/* What a shell proposes behind `evenkeelctl`, written from the tables of commands and verbs. */
#pragma once

struct ek_buf;

/* The whole file for bash, zsh or fish. 0, -EINVAL for another shell, -ENOMEM. */
int complete_write(const char *shell, struct ek_buf *out);
