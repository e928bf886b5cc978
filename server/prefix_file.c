/*
 * --prefix-file, for main.c, start.c and start_load.c: describes to the engine what a file has to
 * be of (version, model, layout of a block), and turns its report into a line of the log. With API
 * keys the salts of the blocks come from a secret, which goes into the file too, and only if
 * --prefix-file-keys allows it.
 */
#include "server/prefix_file.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/err.h"
#include "common/log.h"
#include "kernels/fingerprint.h"
#include "server/engine/warm_file.h"
#include "server/forms_file.h"
#include "server/options.h"
#include "server/stack.h"

#define GIB 1073741824.0

void prefix_file_folder(const struct options *o)
{
    char dir[PATH_MAX];
    const char *slash = o->prefix_file ? strrchr(o->prefix_file, '/') : NULL;

    if (!slash || slash == o->prefix_file)
        return;
    (void)snprintf(dir, sizeof(dir), "%.*s", (int)(slash - o->prefix_file), o->prefix_file);
    (void)mkdir(dir, 0700); /* it is there, or the next says why not */
    if (access(dir, W_OK | X_OK) < 0)
        ek_log(EK_LOG_WARNING,
               "Cached prefixes will not be kept over restarts: %s cannot be written: %s; name "
               "another folder with --prefix-file, or give its unit a StateDirectory=",
               dir, strerror(errno));
}

void prefix_file_note_model(struct stack *s)
{
    const struct ek_graph *g = &s->model->graph;

    if (s->o->prefix_file)
        s->model_sum = (ek_graph_sum(g) * 31 + ek_weight_sum(g, &s->model->files)) * 31 +
                       s->launcher.apart.stamp; /* a shard may be changed in its place */
}

static void report_warmth(void *ctx, const struct engine_warm_report *r)
{
    const struct stack *s = ctx;
    const char *file = s->o->prefix_file;

    if (r->restored && r->secret && s->o->prefix_file_keys && s->http)
        http_take_secret(s->http, r->secret);
    if (r->why)
        ek_log(EK_LOG_WARNING,
               r->restored ? "The cached prefixes in %s are not used: %s"
                           : "Cached prefixes are not kept in %s: %s",
               file, r->why);
    else if (!r->restored)
        ek_log(EK_LOG_INFO, "Left %u blocks of cached prefixes in %s (%.1f MB) in %.0f ms",
               r->blocks, file, (double)r->bytes / 1e6, (double)r->took_us / 1e3);
    else if (r->damaged > 0)
        ek_log(EK_LOG_WARNING,
               "Took %u blocks of cached prefixes from %s in %.0f ms; %u more were damaged and are "
               "left out",
               r->blocks, file, (double)r->took_us / 1e3, r->damaged);
    else
        ek_log(EK_LOG_INFO, "Took %u blocks of cached prefixes from %s (%.1f MB) in %.0f ms",
               r->blocks, file, (double)r->bytes / 1e6, (double)r->took_us / 1e3);
}

/* What decides the bytes of a block, but for the model and the block's sizes. */
static void say_layout(const struct stack *s, char ret_layout[WARM_TEXT])
{
    (void)snprintf(ret_layout, WARM_TEXT, "%s/%s %s/%s/%s %ux%u", s->backend->name, s->info.isa,
                   s->o->dtype, s->o->quantization ? s->o->quantization : "none",
                   s->o->kv_cache_dtype, s->open.ranks, s->open.stages);
    if (s->forms.used > 0) {
        const size_t at = strlen(ret_layout);
        (void)snprintf(ret_layout + at, WARM_TEXT - at, " %08x", forms_file_sum(&s->forms));
    }
}

void prefix_file_open(struct stack *s)
{
    const struct options *o = s->o;
    struct engine_keep *k = &s->engine_params.keep;

    if (!o->prefix_file)
        return;
    if (http_has_keys(s->http) && !o->prefix_file_keys) {
        ek_log(EK_LOG_INFO,
               "Cached prefixes are not kept over restarts, because API keys separate them: "
               "--prefix-file-keys keeps them too");
        warm_file_forget(o->prefix_file); /* of a time without keys, or none */
        return;
    }
    *k = (struct engine_keep){.path = o->prefix_file,
                              .most_bytes = (uint64_t)(o->prefix_file_size * GIB),
                              .owned = o->prefix_file_keys,
                              .about.model = s->model_sum,
                              .report = report_warmth};
    (void)snprintf(k->about.version, sizeof(k->about.version), "%s", EK_VERSION);
    say_layout(s, k->about.layout);
    static_assert(WARM_SECRET == AUTH_SECRET, "the file has room for it");
    if (o->prefix_file_keys)
        http_secret(s->http, k->about.secret);
}

void prefix_file_end(struct stack *s, bool keep)
{
    engine_stop(s->engine);
    if (keep)
        engine_keep(s->engine);
}
