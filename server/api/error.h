/* Why a request was refused, as all forms of the API tell it. */
#pragma once

#include <stdint.h>

struct ek_work;

/* Why a request was refused: the OpenAI error object. */
struct api_error {
    int status;
    const char *type; /* NULL = by status */
    uint32_t retry_after_s;
    char param[64];
    char msg[512];
};

/* Fills err and returns -EBADMSG. */
int api_refuse(struct api_error *err, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Fills err with a 503; -EBADMSG. */
int api_no_memory(struct api_error *err);
/* Why `work` said stop, about a field: spent fuel is a 400, the rest a 503. -EBADMSG. */
int api_refuse_work(const struct ek_work *work, const char *field, struct api_error *err);
