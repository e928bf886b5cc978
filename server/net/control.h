/*
 * The control socket: live limits, drain and resume as HTTP routes (ROUTE_LOCAL), and the verbs
 * that pass descriptors before any HTTP.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct answer;
struct api_error;
struct ek_buf;
struct exchange;
struct http;

/* Reads one verb line from a fresh connection and answers it; the caller closes. */
void control_verb(struct http *h, int fd);

int control_get_limits(struct exchange *x, struct answer *a);
int control_patch_limits(struct exchange *x, struct answer *a);
int control_drain(struct exchange *x, struct answer *a);
int control_resume(struct exchange *x, struct answer *a);
int control_reset_prefix_cache(struct exchange *x, struct answer *a);
int control_trim(struct exchange *x, struct answer *a);
/* control_engine.c: the process of the engine. */
int control_engine(struct exchange *x, struct answer *a);
int control_engine_restart(struct exchange *x, struct answer *a);
int control_engine_release(struct exchange *x, struct answer *a);
int control_engine_acquire(struct exchange *x, struct answer *a);

/* The limits as JSON, from limit_table. */
struct limits;
void control_write_limits(const struct limits *l, uint64_t now_us, struct ek_buf *out);
/* A PATCH body: limit names as in limit_table, generation, expires_in_s, origin, reason. 0, or
 * -EBADMSG with err. */
struct limits_change;
int control_parse_limits(const char *bytes, size_t len, struct limits_change *ret_change,
                         struct api_error *err);
