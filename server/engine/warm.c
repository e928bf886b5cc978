/*
 * Makes and takes in the list of cached blocks, for keep.c: before the device goes and after it has
 * come.
 *
 * Out: both tiers are one row of handles, device ids first. For each block in order of worth its
 * chain is followed back to a block that is listed or that begins a chain, then listed forwards; a
 * chain with a gap is left out. In: blocks are taken in order of the list and named again; the
 * first that does not fit on the device sends itself and all later ones to the host tier. They are
 * given back in reverse order, so that the least worthy is evicted first.
 */
#include "server/engine/warm.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/engine/sched.h"

/* A block of either tier: device ids, then host ids. */
struct lister {
    const struct sched *s;
    bool owned;
    struct warm_room room;
    uint32_t *place; /* [device and host blocks] in the list, WARM_NONE = not yet */
    uint32_t *chain; /* [table_most] */
    struct warm_list l;
};

static bool is_host(const struct lister *w, uint32_t handle)
{
    return handle >= w->s->blocks.total;
}

static uint32_t id_of(const struct lister *w, uint32_t handle)
{
    return is_host(w, handle) ? handle - w->s->blocks.total : handle;
}

static const struct prefix *names_of(const struct lister *w, uint32_t handle)
{
    return is_host(w, handle) ? &w->s->host.names : &w->s->prefix;
}

static const struct block *block_of(const struct lister *w, uint32_t handle)
{
    return is_host(w, handle) ? &w->s->host.blocks.at[id_of(w, handle)] : &w->s->blocks.at[handle];
}

/* The block with this name, the device's before the host's; WARM_NONE when there is none. */
static uint32_t holder_of(const struct lister *w, struct prefix_name name)
{
    uint32_t id = prefix_holder(&w->s->prefix, name);

    if (id != 0)
        return id;
    id = w->s->host.on ? prefix_holder(&w->s->host.names, name) : 0;
    return id != 0 ? w->s->blocks.total + id : WARM_NONE;
}

/* Its content is there, it may be kept, and its name follows from its tokens and its owner. */
static bool warm_keeps(const struct lister *w, uint32_t handle)
{
    const struct prefix *p = names_of(w, handle);
    const struct block *b = block_of(w, handle);
    uint32_t id = id_of(w, handle);

    if (!b->named || (b->salt != 0 && !w->owned))
        return false;
    if (is_host(w, handle) && w->s->host.moves[id].out_step >= w->s->flights.next_step)
        return false; /* by a step that was not made */
    struct prefix_name name =
        prefix_hash(p, p->parents[id], b->salt, p->tokens + (size_t)id * p->block_size);
    return name.lo == p->names[id].lo && name.hi == p->names[id].hi;
}

static uint32_t state_of(const struct lister *w, uint32_t handle)
{
    const struct states *s = &w->s->states;
    uint32_t at = is_host(w, handle) ? STATES_NONE : states_find(s, handle);

    return at == STATES_NONE ? WARM_NONE : s->first + at;
}

/* False when there is no room for it. */
static bool warm_append(struct lister *w, uint32_t handle, uint32_t parent)
{
    const struct prefix *p = names_of(w, handle);
    const uint32_t id = id_of(w, handle), at = w->l.count, state = state_of(w, handle);
    const uint64_t bytes = w->room.block + (state == WARM_NONE ? 0 : w->room.state);

    if (w->room.bytes < bytes)
        return false;
    w->room.bytes -= bytes;
    w->l.count++;
    w->place[handle] = at;
    w->l.block[at] = (struct warm_block){.owner = block_of(w, handle)->salt,
                                         .parent = parent,
                                         .tier = is_host(w, handle) ? EK_TIER_HOST : EK_TIER_DEVICE,
                                         .id = id,
                                         .state = state};
    memcpy(w->l.tokens + (size_t)at * p->block_size, p->tokens + (size_t)id * p->block_size,
           (size_t)p->block_size * sizeof(*p->tokens));
    return true;
}

/* Lists a block behind those before it in its chain; a broken chain is never found. */
static void list_chain(struct lister *w, uint32_t handle)
{
    uint32_t depth = 0, parent = WARM_NONE;

    for (;;) {
        struct prefix_name name = names_of(w, handle)->names[id_of(w, handle)];
        handle = holder_of(w, name); /* of twins the one on the device */
        if (w->place[handle] != WARM_NONE) {
            parent = w->place[handle];
            break;
        }
        if (depth == 0 && w->s->states.on && state_of(w, handle) == WARM_NONE)
            return; /* one behind it may have one, and lists it then */
        if (depth == w->s->slots.table_most || !warm_keeps(w, handle))
            return;
        w->chain[depth++] = handle;
        struct prefix_name before = names_of(w, handle)->parents[id_of(w, handle)];
        if (before.lo == 0 && before.hi == 0)
            break;
        handle = holder_of(w, before);
        if (handle == WARM_NONE)
            return;
    }
    while (depth > 0 && warm_append(w, w->chain[--depth], parent))
        parent = w->place[w->chain[depth]];
}

static void list_tier(struct lister *w, const struct blocks *b, uint32_t base)
{
    for (uint32_t id = 1; id < b->total; id++)
        if (b->at[id].named && b->at[id].refs > 0)
            list_chain(w, base + id);
    for (uint32_t id = b->cached.tail; id != BLOCKS_NONE; id = b->at[id].prev)
        list_chain(w, base + id);
}

int warm_list(const struct sched *s, struct warm_room room, bool owned, struct warm_list *ret_list)
{
    const uint32_t handles = s->blocks.total + (s->host.on ? s->host.blocks.total : 0);
    const uint32_t named = s->prefix.count + (s->host.on ? s->host.names.count : 0);
    const uint64_t fit = room.bytes / room.block;
    const size_t most = fit < named ? (size_t)fit : named;
    struct lister w = {.s = s, .owned = owned, .room = room};
    int r = 0;

    w.l.block_size = s->fixed.block_size;
    w.place = malloc(handles * sizeof(*w.place));
    w.chain = malloc(s->slots.table_most * sizeof(*w.chain));
    w.l.block = calloc(most + 1, sizeof(*w.l.block));
    w.l.tokens = calloc(most * s->fixed.block_size + 1, sizeof(*w.l.tokens));
    if (!w.place || !w.chain || !w.l.block || !w.l.tokens) {
        r = -ENOMEM;
        goto out;
    }
    for (uint32_t i = 0; i < handles; i++)
        w.place[i] = WARM_NONE;
    list_tier(&w, &s->blocks, 0);
    if (s->host.on)
        list_tier(&w, &s->host.blocks, s->blocks.total);
    *ret_list = w.l;
    w.l = (struct warm_list){0};
out:
    free(w.place);
    free(w.chain);
    warm_list_done(&w.l);
    return r;
}

void warm_list_done(struct warm_list *l)
{
    free(l->block);
    free(l->tokens);
    *l = (struct warm_list){0};
}

/* ---- into a cache ---- */

static uint32_t room_in(const struct blocks *b, uint32_t most)
{
    uint32_t room = b->free.count;

    return most != 0 && most < room ? most : room;
}

int warm_begin(struct sched *s, const struct warm_list *l, struct warm_into *ret_into)
{
    const struct host *h = &s->host;
    struct warm_into w = {.s = s, .l = l, .host_from = WARM_NONE};

    w.name = calloc((size_t)l->count + 1, sizeof(*w.name));
    w.id = calloc((size_t)l->count + 1, sizeof(*w.id));
    w.there = calloc((size_t)l->count + 1, sizeof(*w.there));
    w.state = calloc((size_t)l->count + 1, sizeof(*w.state));
    if (!w.name || !w.id || !w.there || !w.state) {
        free(w.name);
        free(w.id);
        free(w.state);
        free(w.there);
        return -ENOMEM;
    }
    w.device = room_in(&s->blocks, s->blocks.cached_most);
    w.host = h->on && h->cached_most > 0 ? room_in(&h->blocks, h->cached_most) : 0;
    *ret_into = w;
    return 0;
}

static struct blocks *warm_store(const struct warm_into *w, uint32_t i)
{
    return i >= w->host_from ? &w->s->host.blocks : &w->s->blocks;
}

static struct prefix_name parent_name(const struct warm_into *w, uint32_t i)
{
    uint32_t parent = w->l->block[i].parent;

    return parent == WARM_NONE ? (struct prefix_name){0, 0} : w->name[parent];
}

bool warm_place(struct warm_into *w, uint32_t i, uint64_t now_us, struct warm_place *ret_place)
{
    const struct warm_block *b = &w->l->block[i];
    const int32_t *tokens = w->l->tokens + (size_t)i * w->l->block_size;

    assert(b->parent == WARM_NONE || b->parent < i);
    w->name[i] = prefix_hash(&w->s->prefix, parent_name(w, i), b->owner, tokens);
    if (b->parent != WARM_NONE && !w->there[b->parent])
        return false;
    w->there[i] = w->device == 0 && w->s->host.on &&
                  prefix_holder(&w->s->host.names, w->name[i]) != 0; /* it outlived the device */
    if (w->there[i])
        return false;
    if (w->device == 0 && w->host_from == WARM_NONE)
        w->host_from = i; /* and all after it: what is brought from there follows what is here */
    uint32_t *room = i >= w->host_from ? &w->host : &w->device;
    if (*room == 0 || blocks_take(warm_store(w, i), now_us, &w->id[i]) < 0)
        return false;
    --*room;
    uint32_t state = STATES_NONE;
    if (b->state != WARM_NONE && w->s->states.count > 0 && i < w->host_from)
        state = states_place(&w->s->states);
    w->state[i] = state == STATES_NONE ? 0 : state + 1;
    ret_place->tier = i >= w->host_from ? EK_TIER_HOST : EK_TIER_DEVICE;
    ret_place->id = w->id[i];
    ret_place->state = state == STATES_NONE ? WARM_NONE : w->s->states.first + state;
    return true;
}

void warm_placed(struct warm_into *w, uint32_t i, bool there, uint64_t now_us)
{
    const bool host = i >= w->host_from;
    struct prefix *p = host ? &w->s->host.names : &w->s->prefix;

    if (there && prefix_add(p, w->id[i], w->name[i], parent_name(w, i),
                            w->l->tokens + (size_t)i * w->l->block_size)) {
        blocks_name(warm_store(w, i), w->id[i], w->l->block[i].owner);
        if (host)
            w->s->host.moves[w->id[i]] = (struct host_move){0};
        w->there[i] = true;
        return;
    }
    if (w->state[i] != 0)
        states_give(&w->s->states, w->state[i] - 1);
    blocks_give(warm_store(w, i), w->id[i], now_us);
    w->id[i] = w->state[i] = 0;
    *(host ? &w->host : &w->device) += 1;
}

uint32_t warm_end(struct warm_into *w, uint64_t now_us)
{
    uint32_t came = 0;

    for (uint32_t i = w->l->count; i > 0; i--) { /* the last is evicted first */
        if (w->id[i - 1] == 0)
            continue;
        if (w->state[i - 1] != 0) /* it has lost its name where all were forgotten meanwhile */
            states_keep(&w->s->states, w->state[i - 1] - 1,
                        w->s->blocks.at[w->id[i - 1]].named ? w->id[i - 1] : 0);
        if (i - 1 >= w->host_from)
            host_give(&w->s->host, w->id[i - 1], now_us);
        else
            blocks_give(&w->s->blocks, w->id[i - 1], now_us);
        came++;
    }
    admission_again(&w->s->admission);
    free(w->name);
    free(w->id);
    free(w->state);
    free(w->there);
    return came;
}
