/*
 * Entries for what stands in front of the configured servers or reads their metrics, in the form
 * that each of them takes. Pure: from evenkeeld's list of servers to text.
 */
#pragma once

#include <jansson.h>

struct ek_buf;

/* "haproxy|prometheus|envoy|vllm-router|llm-d" */
extern const char snippet_forms[];

/* `host`: where others reach this machine. 0; -EINVAL for a form that does not exist; -ENOENT when
 * no server has an address on TCP; -ENOMEM. */
int snippet_write(const char *form, const json_t *servers, const char *host, struct ek_buf *out);
