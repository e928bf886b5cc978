/* Why a request was refused, as all forms of the API tell it. */
#pragma once

#include <stdint.h>

/* Why a request was refused: the OpenAI error object. */
struct api_error {
    int status;
    const char *type; /* NULL = by status */
    uint32_t retry_after_s;
    char param[64];
    char msg[512];
};
