/* Loads the ranks of one device beside each other; called by ranks.c once their plans are made. */
#include "kernels/ranks_inside.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "common/err.h"

struct loading {
    struct ranks *s;
    const struct ek_weight_files *files;
    ek_progress_fn progress;
    void *ctx;
    pthread_mutex_t lock; /* of what follows, and the caller's function */
    uint64_t done[EK_MOST_RANKS], total[EK_MOST_RANKS];
};

struct loader {
    struct loading *all;
    uint32_t rank;
    pthread_t thread;
    bool started;
    int result;
    struct ek_fault fault;
};

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    const struct loader *l = ctx;
    struct loading *a = l->all;
    uint64_t all_done = 0, all_total = 0;

    pthread_mutex_lock(&a->lock);
    a->done[l->rank] = done;
    a->total[l->rank] = total;
    for (uint32_t i = 0; i < a->s->count; i++) {
        all_done += a->done[i];
        all_total += a->total[i] > 0 ? a->total[i] : total; /* of those that have not begun */
    }
    a->progress(a->ctx, all_done, all_total);
    pthread_mutex_unlock(&a->lock);
}

static void *load_rank(void *arg)
{
    struct loader *l = arg;
    struct ranks *s = l->all->s;
    struct rank *rank = &s->rank[l->rank];

    l->result = s->each->load(rank->device, &rank->plan, l->all->files,
                              l->all->progress ? on_progress : NULL, l, &l->fault);
    if (l->result < 0)
        s->each->group_abort(s->group); /* no rank waits for it */
    return NULL;
}

static bool ranks_load_follows(const struct loader *l, const struct loader *from)
{
    return l->result == EK_ECOMM && (from->result != EK_ECOMM || !l->fault.msg[0]);
}

/* The failure that the others followed from: not that they were left alone. One with words
 * comes before one without. */
static int first_failure(const struct loader *loader, uint32_t count, struct ek_fault *fault)
{
    const struct loader *first = NULL;

    for (uint32_t i = 0; i < count; i++)
        if (loader[i].result < 0 && (!first || ranks_load_follows(first, &loader[i])))
            first = &loader[i];
    if (first && fault && first->fault.msg[0])
        *fault = first->fault;
    return first ? first->result : 0;
}

static int load_all(struct loading *a, struct ek_fault *fault)
{
    struct loader *loader = calloc(a->s->count, sizeof(*loader));

    if (!loader)
        return -ENOMEM;
    for (uint32_t i = 0; i < a->s->count; i++) {
        loader[i].all = a;
        loader[i].rank = i;
        int r = -pthread_create(&loader[i].thread, NULL, load_rank, &loader[i]);
        loader[i].started = r == 0;
        if (r == 0)
            continue;
        loader[i].result = r;
        a->s->each->group_abort(a->s->group);
    }
    for (uint32_t i = 0; i < a->s->count; i++)
        if (loader[i].started)
            (void)pthread_join(loader[i].thread, NULL);
    int r = first_failure(loader, a->s->count, fault);
    free(loader);
    return r;
}

int ranks_load_all(struct ranks *s, const struct ek_weight_files *files, ek_progress_fn progress,
                   void *ctx, struct ek_fault *fault)
{
    struct loading a = {.s = s, .files = files, .progress = progress, .ctx = ctx};

    pthread_mutex_init(&a.lock, NULL);
    int r = load_all(&a, fault);
    pthread_mutex_destroy(&a.lock);
    return r;
}
