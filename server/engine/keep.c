/*
 * The engine's part in keeping cached prefixes over a planned restart: of the server, when its
 * thread has ended, and of the device alone (revive.c), which the requests that run wait for
 * anyway. Blocks go in order of worth, so what time or room cuts off is worth least.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "server/engine/engine_inside.h"
#include "server/engine/warm.h"
#include "server/engine/warm_file.h"

#define END_MOST_US (4u * EK_US_PER_S) /* the process is to end: its successor waits for it */
#define LOOK_BLOCKS 64u                /* between two looks round */

/* A list on its way between device and file. */
struct keeping {
    struct engine *e;
    uint64_t until_us;
    uint32_t count;
    ek_meanwhile_fn meanwhile;
};

static bool may_keep(const struct engine *e)
{
    return e->p.keep.path && e->backend->kv_bytes && e->sched->flights.count == 0 &&
           e->sched->value[LIMIT_PREFIX_CACHING] != 0 &&
           e->backend->kv_bytes(e->device, EK_TIER_DEVICE) > 0;
}

static struct warm_about about_of(const struct engine *e)
{
    struct warm_about about = e->p.keep.about;

    about.block_size = e->p.block_size;
    about.block_bytes = e->backend->kv_bytes(e->device, EK_TIER_DEVICE);
    if (e->sched->states.on)
        about.state_bytes = e->backend->kv_bytes(e->device, EK_TIER_STATE);
    return about;
}

static void report_kept(const struct engine_params *p, const struct engine_warm_report *r)
{
    if (p->keep.report)
        p->keep.report(p->ctx, r);
}

/* A warm_read_fn. */
static int read_kept(void *ctx, const struct warm_block *b, void *to)
{
    struct keeping *k = ctx;
    const struct engine *e = k->e;

    if (ek_now_us() >= k->until_us)
        return -ETIMEDOUT;
    if (k->meanwhile && ++k->count % LOOK_BLOCKS == 0 && k->meanwhile(k->e) != 0)
        return -ECANCELED;
    if (e->kept_void)
        return -ECANCELED;
    int r = e->backend->kv_read(e->device, b->tier, b->id, to);
    if (r == 0 && b->state != WARM_NONE)
        r = e->backend->kv_read(e->device, EK_TIER_STATE, b->state,
                                (char *)to + e->backend->kv_bytes(e->device, b->tier));
    return r;
}

static int write_kept(struct engine *e, const struct warm_place *p, const char *content)
{
    int r = e->backend->kv_write(e->device, p->tier, p->id, content);

    if (r == 0 && p->state != WARM_NONE)
        r = e->backend->kv_write(e->device, EK_TIER_STATE, p->state,
                                 content + e->backend->kv_bytes(e->device, p->tier));
    return r;
}

void engine_save(struct engine *e, uint64_t most_us, ek_meanwhile_fn meanwhile)
{
    const uint64_t from = ek_now_us();
    struct engine_warm_report report = {0};
    struct warm_list list = {0};

    if (!may_keep(e))
        return;
    e->kept_void = false;
    const struct warm_about about = about_of(e);
    const struct warm_room room = {.bytes = warm_file_room(e->p.keep.path, e->p.keep.most_bytes),
                                   .block =
                                       about.block_bytes + warm_file_row_bytes(about.block_size),
                                   .state = about.state_bytes};
    int r = room.bytes >= room.block || e->sched->prefix.count == 0 ? 0 : -ENOSPC;
    if (r == 0)
        r = warm_list(e->sched, room, e->p.keep.owned, &list);
    struct keeping k = {.e = e, .until_us = from + most_us, .meanwhile = meanwhile};
    if (r == 0 && list.count > 0)
        r = warm_file_write(e->p.keep.path, &about, &list, read_kept, &k, &report.blocks,
                            &report.bytes);
    const bool any = !e->kept_void && (r < 0 || list.count > 0);
    warm_list_done(&list);
    if (e->kept_void) {
        warm_file_forget(e->p.keep.path);
        report.blocks = 0;
    }
    e->warmth.saved += report.blocks;
    report.took_us = ek_now_us() - from;
    report.why = r < 0 ? ek_strerror(r) : NULL;
    if (any)
        report_kept(&e->p, &report);
}

/* Brings the blocks of the file into the cache. */
static int bring_kept(struct keeping *k, struct warm_file *f, struct engine_warm_report *report)
{
    struct engine *e = k->e;
    const struct warm_list *l = warm_file_list(f);
    const struct warm_about about = about_of(e);
    struct warm_into into;
    char *block = malloc(about.block_bytes + about.state_bytes);
    int r = block ? warm_begin(e->sched, l, &into) : -ENOMEM;

    if (r < 0) {
        free(block);
        return r;
    }
    for (uint32_t i = 0; r == 0 && i < l->count && ek_now_us() < k->until_us; i++) {
        struct warm_place place;
        if ((l->block[i].owner != 0 && !e->p.keep.owned) ||
            !warm_place(&into, i, ek_now_us(), &place))
            continue;
        int read = warm_file_read(f, i, block);
        r = read == 0 ? write_kept(e, &place, block) : 0;
        report->damaged += read < 0;
        warm_placed(&into, i, read == 0 && r == 0, ek_now_us());
        if (r == 0 && k->meanwhile && ++k->count % LOOK_BLOCKS == 0)
            r = k->meanwhile(e);
        if (e->kept_void) /* what came has lost its names */
            r = -ECANCELED;
    }
    report->blocks = warm_end(&into, ek_now_us());
    if (e->kept_void)
        report->blocks = 0;
    free(block);
    return r;
}

void engine_restore(struct engine *e, uint64_t most_us, ek_meanwhile_fn meanwhile)
{
    const uint64_t from = ek_now_us();
    struct engine_warm_report report = {.restored = true};
    struct keeping k = {.e = e, .until_us = from + most_us, .meanwhile = meanwhile};
    struct warm_file *f = NULL;
    struct ek_fault fault = {0};

    if (!may_keep(e))
        return;
    e->kept_void = false;
    const struct warm_about about = about_of(e);
    int r = warm_file_open(e->p.keep.path, &about, &f, &fault);
    if (r == -ENOENT)
        return;
    if (r == 0) {
        report.bytes = warm_file_bytes(f);
        r = bring_kept(&k, f, &report);
    }
    if (r == 0 && !meanwhile) { /* at the start: it is the secret from now on */
        report.secret = warm_file_secret(f);
        memcpy(e->p.keep.about.secret, report.secret, WARM_SECRET);
    }
    e->warmth.restored += report.blocks;
    e->warmth.damaged += report.damaged;
    report.took_us = ek_now_us() - from;
    report.why = r == 0 || r == -ECANCELED ? NULL : fault.msg[0] ? fault.msg : ek_strerror(r);
    report_kept(&e->p, &report);
    warm_file_close(f);
}

void engine_forget_kept(struct engine *e)
{
    e->kept_void = true;
    if (e->p.keep.path)
        warm_file_forget(e->p.keep.path);
}

void engine_keep(struct engine *e)
{
    if (!e)
        return;
    if (!e->dead && e->where == ENGINE_DEVICE_THERE)
        engine_save(e, END_MOST_US, NULL);
    pthread_mutex_lock(&e->lock);
    bool reset = e->reset_prefix; /* that the engine's thread did not live to see */
    pthread_mutex_unlock(&e->lock);
    if (reset)
        engine_forget_kept(e);
}
