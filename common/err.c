/*
 * Texts for failures: the sentence of a fault, which readers of options, models and requests fill
 * and their callers print or send, and a constant text for each code. A sentence that is too long
 * is cut, since a fault must never fail itself.
 */
#include "common/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ek_fault_write(struct ek_fault *f, const char *field, const char *fmt, ...)
{
    if (!f)
        return;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(f->msg, sizeof(f->msg), fmt, ap); /* a longer sentence is cut */
    va_end(ap);
    (void)snprintf(f->field, sizeof(f->field), "%s", field ? field : "");
}

bool ek_error_is_shortage(int code)
{
    const int error = code < 0 ? -code : code;

    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

const char *ek_strerror(int code)
{
    switch (code) {
    case EK_EDEVMEM: return "device out of memory";
    case EK_EDEVICE: return "device fault";
    case EK_ECOMM: return "collective or peer failure";
    case EK_ESTALE: return "generation number is out of date";
    default: /* an errno value */ return strerror(code < 0 ? -code : code);
    }
}
