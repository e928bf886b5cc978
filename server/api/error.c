/* Fills in why a request was refused (error.h). Called by all that read bodies. */
#include "server/api/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "common/err.h"
#include "common/work.h"

int api_refuse(struct api_error *err, int status, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    *err = (struct api_error){.status = status};
    (void)vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    (void)snprintf(err->param, sizeof(err->param), "%s", param ? param : "");
    return -EBADMSG;
}

int api_no_memory(struct api_error *err)
{
    int r = api_refuse(err, 503, "", "The server is out of memory for this request.");
    err->retry_after_s = 1;
    return r;
}

int api_refuse_work(const struct ek_work *work, const char *field, struct api_error *err)
{
    struct ek_fault fault = {0};
    int r = ek_work_refuse(work, &fault, field);
    (void)api_refuse(err, r == -EBADMSG ? 400 : 503, field, "`%s` cannot be used: %s.",
                     field[0] ? field : "body", fault.msg);
    err->retry_after_s = r == -EBADMSG ? 0 : 1;
    return -EBADMSG;
}
