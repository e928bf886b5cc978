/*
 * The one route of the API that reads a disk: api.c calls it, a thread lists and reads the kept end
 * (servers/postmortem_keep.h), and the request is answered when it returns. The server's name is
 * copied, since a reload may take the server away meanwhile.
 */
#include "supervisor/web/api_postmortem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/io/aside.h"
#include "supervisor/servers/postmortem_keep.h"
#include "supervisor/servers/server.h"

struct postmortem_job {
    struct postmortem_ask ask;
    struct ek_buf out;
    int error;
    api_fn cb;
    void *ctx;
};

static void api_postmortem_drop(void *ctx)
{
    struct postmortem_job *j = ctx;
    ek_buf_done(&j->out);
    free(j);
}

static void api_postmortem_work(void *ctx)
{
    struct postmortem_job *j = ctx;
    j->error = postmortem_read(&j->ask, &j->out);
}

static void api_postmortem_done(void *ctx)
{
    struct postmortem_job *j = ctx;
    struct ek_buf failed = {0};
    if (j->error == 0) {
        j->cb(j->ctx, 200, j->out.data, j->out.len);
    } else {
        (void)api_error(&failed, 500, "end", "it cannot be read: %s", ek_strerror(j->error));
        j->cb(j->ctx, 500, failed.data ? failed.data : "", failed.len);
    }
    ek_buf_done(&failed);
    api_postmortem_drop(j);
}

int api_postmortem(const struct server *s, unsigned end, api_fn cb, void *ctx, struct ek_buf *out)
{
    struct postmortem_job *j = calloc(1, sizeof(*j));
    if (!j)
        return -ENOMEM;
    *j = (struct postmortem_job){.ask.end = end, .cb = cb, .ctx = ctx};
    (void)snprintf(j->ask.server, sizeof(j->ask.server), "%s", s->config->name);
    (void)snprintf(j->ask.dir, sizeof(j->ask.dir), "%s", s->with->config->state_dir);
    int r =
        aside_run(s->with->aside, api_postmortem_work, api_postmortem_done, api_postmortem_drop, j);
    if (r == 0)
        return 0;
    api_postmortem_drop(j);
    return r == -ENOMEM ? r
                        : api_error(out, 503, "end",
                                    "the disk is being read for %u others; try again", ASIDE_MOST);
}
