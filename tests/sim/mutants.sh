#!/bin/sh
# Proves the worth of sim_engine: plants one bug at a time into a copy of the engine and demands that
# the simulation notices. Each line of the table: file @ text to find @ text instead; a fourth column
# names the unit test that has to notice it, where the simulation has no opinion on what is best.
# usage: ARCHIVES="..." LIBS="..." mutants.sh [SEEDS] [STEPS]   (make sim-mutants: what the engine links)
# EVENKEEL_SHARE=N EVENKEEL_DAY=D: one bug in N is tried, another one each day (tests/share.h); that each
# line of the table still fits is looked at every day.
# shellcheck disable=SC2086,SC2153  # flags and archives are words; LIBS comes from make
set -eu
cd "$(dirname "$0")/../.."
seeds=${1:-1500} steps=${2:-800}
share=${EVENKEEL_SHARE:-1} day=${EVENKEEL_DAY:-0}
unset EVENKEEL_SHARE EVENKEEL_DAY # the simulations take all of their seeds
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/base" "$tmp/src"
# edits meanwhile do not disturb
find common kernels server tests/sim tests/unit/engine tests/share.h -name '*.[ch]' | tar -c -T - | tar -x -C "$tmp/src"
cp $ARCHIVES "$tmp"
cd "$tmp/src"
cc=${CC:-gcc}
echo '#define EK_VERSION "0"' >"$tmp/version.h"
flags="-std=gnu17 -O1 -D_GNU_SOURCE -include $tmp/version.h"
for f in tests/sim/null_backend.c tests/sim/sim_engine.c server/engine/*.c; do
    $cc $flags -I. -c "$f" -o "$tmp/base/$(echo "$f" | tr / _).o"
done
rm -f "$tmp/engine.a" # the objects are its copy
libs="$(for a in $ARCHIVES; do [ -e "$tmp/${a##*/}" ] && echo "$tmp/${a##*/}"; done || true) $LIBS"

for t in foresee growth pace price share yield; do
    $cc $flags -I. -c "tests/unit/engine/test_$t.c" -o "$tmp/test_$t.o"
done

build() { # the tree with one file replaced; with the simulation's or a unit test's main()
    if [ -n "${2:-}" ]; then
        mv "$1/tests_sim_sim_engine.c.o" "$1/sim_engine.main"
        $cc -o "$1/sim" "$1"/*.o "$tmp/$2.o" $libs -lcmocka
    else
        $cc -o "$1/sim" "$1"/*.o $libs
    fi
}

build "$tmp/base"
"$tmp/base/sim" "$seeds" "$steps" >"$tmp/base/log" || { cat "$tmp/base/log"; echo "FAIL: no bug planted"; exit 1; }

caught=0 missed=0 n=0 tried=0
while IFS='@' read -r file find instead unit; do
    [ -n "$file" ] || continue
    n=$((n + 1))
    m=$tmp/m
    rm -rf "$m" && mkdir -p "$m/server/engine"
    cp "$tmp"/base/*.o "$m"
    FIND=$find INSTEAD=$instead awk 'BEGIN { f = ENVIRON["FIND"]; r = ENVIRON["INSTEAD"] }
        !done && (i = index($0, f)) { $0 = substr($0, 1, i - 1) r substr($0, i + length(f)); done = 1 }
        { print } END { exit !done }' "server/engine/$file" >"$m/server/engine/$file" ||
        { echo "STALE: $file: $find"; missed=$((missed + 1)); continue; }
    [ $(((n + day) % share)) = 0 ] || continue
    tried=$((tried + 1))
    $cc $flags -w -I"$m" -I. -c "$m/server/engine/$file" -o "$m/server_engine_$file.o"
    build "$m" "$unit"
    if timeout 60 "$m/sim" "$seeds" "$steps" >"$m/log" 2>&1; then
        echo "MISSED: $file: $find -> $instead"
        missed=$((missed + 1))
    else
        caught=$((caught + 1))
    fi
done <<'TABLE'
blocks.c@list_remove(b, &b->free, id);@(void)0;
blocks.c@b->forget(b->ctx, id);@(void)0;
blocks.c@salts_remove(&b->salts, id);@(void)0;
blocks.c@held > b->salt_most@held > b->salt_most + 1
blocks.c@b->at[id].salt = salt;@(void)salt;
salts.c@x->tail = id;@(void)0;
blocks.c@if (--x->refs > 0)@if (--x->refs > 1)
blocks.c@b->at[id].named = false;@(void)0;
blocks.c@if (x->refs++ == 0) {@if (x->refs == 0) {
blocks.c@b->retired++;@(void)0;
blocks.c@if (id >= b->usable) {@if (false) {
prefix.c@in.salt = salt;@in.salt = 0;
prefix.c@in.parent = parent;@in.parent = (struct prefix_name){0, 0};
prefix.c@p->map[hole] = p->map[c];@(void)0;
slots.c@for (uint32_t i = t->blocks; i > 0; i--)@for (uint32_t i = t->blocks; i > 1; i--)
slots.c@if (s->at[slot].inflight == 0)@if (true)
results.c@e->pending -= q->sample && !q->put_off;@e->pending = 0;
plan.c@if (e->awaits_mask)@if (false)
entries.c@e->awaits_mask = false;@(void)0;
results.c@e->pending -= q->sample && !q->put_off;@e->pending -= q->sample;
results.c@bool live = e->number == q->number;@bool live = e->number != 0;
results.c@(t->named + 1) * s->fixed.block_size <= t->settled@t->named * s->fixed.block_size <= t->settled
results.c@t->tail = name;@(void)name;
results.c@if (produced >= ask->max_new_tokens) {@if (produced > ask->max_new_tokens) {
results.c@if (produced < ask->min_tokens)@if (produced <= ask->min_tokens)
results.c@e->computed = q->sure;@(void)0;
results.c@drop_samples(s, entry);@(void)0;
results.c@sizeof(r->out[0]), n - first)@sizeof(r->out[0]), 0)
results.c@if (ends_with(s, entry, token[i], now_us))@if (false)
rates.c@return reads > (double)least ? (uint64_t)reads : least;@return (uint64_t)reads;@test_share
rates.c@r->landed_took_us * rows / r->landed_rows@r->landed_took_us / 2@test_share
rates.c@takes_us - takes_us / LATE_PART@takes_us@test_share
rates.c@takes_us < LATE_LEAST_US ? 0@false ? 0@test_share
line.c@- row * l->x - context * l->c@- row * l->x@test_pace
pace.c@speed(p, most) * (1 - loss);@0;@test_pace
pace.c@if (now > down)@if (false)@test_pace
pace.c@else if (now < up)@else if (false)@test_pace
pace.c@rows = rows < most ? 2 * rows : rows / 2;@(void)0;@test_pace
line.c@FORGET * *sums[i] + add[i]@*sums[i] + add[i]@test_pace
pace.c@rows < ROWS_LEAST || took_us == 0@took_us == 0@test_pace
pace.c@return beside(p->budget ? p->budget : most, most, decodes);@return p->budget ? p->budget : most;@test_pace
line.c@t = fmin(took_us, line_longest(l, x, c));@t = took_us;@test_pace
pace.c@free < PACE_SPARE || free@free@test_pace
pace.c@free < p->knee / KNEE_PART@false@test_pace
pace.c@decodes == 0 || p->planned % PACE_EXPLORE == 0@decodes == 0@test_pace
pace.c@p->paid > PAID_MOST@false@test_pace
pace.c@fmin(knee, LINE_OUTLIER * p->knee)@knee@test_pace
pace.c@- p->line.fixed_us - p->line.context_us * (double)context@- p->line.fixed_us@test_pace
pace.c@return p->knee < most ? (uint32_t)p->knee : most;@return (uint32_t)p->knee;@test_pace
plan.c@return p->spread ? spare : rows;@return rows;
plan.c@is_held_by_others(s) ? pace_spare@true ? pace_spare
plan.c@case HELD_PAUSED:@case HELD_PAUSED: break;
plan.c@f->full = !p->spread && (@f->full = (
rates.c@else if (f->spread)@else if (false)@test_share
rates.c@if (f->prefill_rows == 0)@if (true)@test_share
results.c@q->set || (q->sample@(q->sample
results.c@q->set || (q->sample@q->set || (false
results.c@e->scored = at - 1;@(void)0;
results.c@e->scoring -= q->scores;@(void)0;
results.c@e->swapped.tokens = q->sure;@(void)0;
entries.c@s->entries.waiting_tokens -= e->req->ask.prompt_tokens;@(void)0;
entries.c@swap_drop(s, e, now_us);@(void)0;
entries.c@s->entries.admitted_count--;@(void)0;
plan.c@p->budget += e->rows;@(void)0;
entries.c@l->running_count--;@(void)0;
plan.c@if (slots_limbo(&s->slots) > 0) {@if (slots_limbo(&s->slots) > 9999) {
admit.c@(e->known - 1) / s->fixed.block_size@e->known / s->fixed.block_size
admit.c@table[n] = id;@table[n] = id > 1 ? id - 1 : id;
admit.c@blocks_ref(&s->blocks, table[i]);@(void)0;
admit.c@s->entries.running_count >= s->value[LIMIT_RUNNING_SEQS]@false
plan.c@at < e->known ? sched_token(e, at) : EK_FROM_PREVIOUS@sched_token(e, at)
plan.c@positions[i] = at;@positions[i] = i;
plan.c@bool sample = after == e->known + e->pending;@bool sample = true;
slots.c@t->set_due = true;@t->set_due = false;
plan.c@e->computed = after;@e->computed = after - 1;
plan.c@t->inflight++;@(void)0;
admit.c@while (!p->preempted && !p->lacking && admit_one(s, p))@while (!p->lacking && admit_one(s, p))
share.c@half = work_left(p) - work_left(p) / 2;@half = 1;
share.c@left < right@left > right
share.c@return within > least ? within : least;@return within;@test_share
share.c@rows_least(p, e));@0);@test_share
share.c@price_rows(&p->price, e->computed, half, most < room ? most : room);@most < room ? most : room;@test_share
price.c@.deeper = deep / row@.deeper = us[DEEP] / us[ROWS]@test_price
price.c@deep * p->longest > PRICE_LEAST * row@deep > 0@test_price
price.c@off > STOLEN * usual@false@test_price
price.c@p->usual = NORMAL * middle(off, n);@(void)middle(off, n);@test_price
price.c@fabs(off) > BOUNDED * usual@false@test_price
price.c@counts / (us * us)@counts@test_price
price.c@return size * PRICE_DEPTHS + depth;@return 0;@test_price
price.c@++ % PRICE_KEPT@++ % 8@test_price
price.c@us[of[worst]] >= 0@true@test_price
price.c@at + rows / 2.0@at@test_price
share.c@sched_refund(p, e, set_due);@(void)0;
share.c@most = most < p->budget ? most : p->budget;@(void)0;
share.c@if (!share_with(s, p, s->share.readers[i]))@if (true)
share.c@return more > 0 ? rows_within@return true ? rows_within
share.c@rows_kept(p, first, cost - p->work,@rows_kept(p, first, cost - work_left(p),
share.c@(cost <= p->work && more <= p->budget)@cost <= p->work@test_share
share.c@s->share.lent + lent > p->most / 2@false
share.c@s->share.lent += lent;@(void)0;
share.c@*lent -= more < *lent ? more : *lent;@*lent = 0;
share.c@*lent -= more < *lent ? more : *lent;@(void)more;@test_share
share.c@    borrow(s, p, entry);@    (void)borrow;@test_share
share.c@p->ending += sched_cost(p, e, whole);@(void)0;
share.c@*ret_others = p->half > 0 ? all - lead : all;@*ret_others = all;
share.c@lead > all - all / 2 ? lead@false ? lead@test_share
share.c@first = first > p->beside ? first : p->beside;@(void)0;
share.c@if (p->half > first)@if (false)
share.c@return room >= left || room >= lack;@return true;
share.c@if (p->ending == 0 && !p->recent)@if (p->ending == 0)
share.c@uint32_t all = p->ending > p->beside ? p->ending : p->beside, @uint32_t all = p->beside, 
share.c@saved && e->swapped.tokens < want ? want - e->swapped.tokens : want@0
share.c@e->rows = 1;@e->rows = 0;
plan.c@    uint32_t victim = choose_victim(s);@    uint32_t victim = 0;
plan.c@i > 0; i--) {@i + 1 > 0; i--) {
plan.c@e->rows > 0 || !sched_is_decode(e, want)@!sched_is_decode(e, want)
plan.c@    e->paid = to;@    (void)0;
plan.c@charge_tenant(&s->tenants, e, after);@(void)after;
plan.c@tenants_end(&s->tenants, e->tenant);@(void)0;
entries.c@    e->active = true;@    (void)0;
entries.c@tenants_read(&s->tenants, e->tenant, r->ask.prompt_tokens - e->paid, 0);@(void)0;
admit.c@tenants_owe(&s->tenants, e->tenant, r->ask.prompt_tokens - cached_tokens);@(void)0;
admit.c@return left != right ? left < right : x->number < y->number;@return x->number < y->number;
share.c@return left < right ? -1 : left > right;@return 0;
share.c@compare_turns(s, e, &s->entries.at[first]) < 0@false
tenants.c@x->served = x->served > least ? x->served : least;@(void)least;
tenants.c@x->served += (uint64_t)TENANT_OUTPUT * x->price;@(void)0;
tenants.c@x->served += served * x->price;@(void)0;
tenants.c@x->due -= tokens;@(void)0;
tenants.c@t->at[i].active == 0 ||@false ||
admit.c@has_room(s, e, fresh + idle, available)@has_room(s, e, fresh, available)
growth.c@return g->due > most ? most / g->due : 1;@return 1;@test_growth
growth.c@double most = g->came + sqrt(fmax(g->came, 1));@double most = g->came;@test_growth
growth.c@if (++g->unsummed == UNSUM)@if (false)@test_growth
yield.c@    *ret_lack -= limbo < *ret_lack ? limbo : *ret_lack;@    (void)limbo;@test_yield
yield.c@if (!seen && s->entries@if (false && s->entries@test_yield
yield.c@return freed < lack ? 0 : count;@return count;@test_yield
refuse.c@sched_note_stall(&s->stats, e, now_us);@(void)0;@test_foresee
foresee.c@    e->stalled = true;@    (void)0;@test_foresee
refuse.c@        if (e->admitted)@        if (false)
refuse.c@most_us / 4 * 3@most_us / 4 * 2
refuse.c@most_us / 10 * 9@most_us / 10 * 11
plan.c@s->turn = stop == SCHED_NONE ? 0 : stop;@s->turn = 0;
slots.c@s->held_adjacent -= t->adjacent;@(void)0;
sched.c@if (s->value[LIMIT_PREFIX_CACHING] == 0 && s->prefix.count + s->host.names.count > 0)@if (false)
admit.c@st->window_hits += hits@st->window_hits += 2 * hits
admit.c@if (!e->admitted && admission_paused(s))@if (false)
admit.c@s->entries.running_count == 0 || used@used
sched_host.c@(struct host_move){.out_step = s->flights.next_step}@(struct host_move){.out_step = s->flights.next_step - 1}
sched_host.c@if (filled_by(s, &s->entries.at[i], step))@if (false)
sched_host.c@blocks_forget(&h->blocks, id);@(void)0;
sched_host.c@h->copy_count = 0;@(void)0;
sched_host.c@step->copies = h->copy_count;@step->copies = h->copy_count / 2;
swap.c@blocks_ref(&h->blocks, to[i]);@(void)0;
swap.c@more > h->swap_most - h->blocks.referenced@false
swap.c@host_give(h, table[i - 1], now_us);@(void)0;
sched_host.c@if (h->blocks.cached.count > h->cached_most)@if (false)
offload.c@host_give(h, host_take(s, id, now_us), now_us);@(void)host_take(s, id, now_us);
admit.c@blocks_ref(&h->blocks, s->admission.bring[i]);@(void)0;
admit.c@if (offload_moving(s, s->admission.bring[i]))@if (false)
admit.c@in_step = s->flights.next_step;@in_step = 0;
admit.c@f.bring == 0, &name@true, &name
admit.c@f.tokens = e->swapped.tokens;@f.tokens = (f.hits + f.bring) * s->fixed.block_size;
admit.c@t->sure = f.hits * s->fixed.block_size;@t->sure = f.tokens;
sched.c@blocks_forget_all(&s->host.blocks);@(void)0;
pool.c@if (usable != s->blocks.usable)@if (false)
pool.c@if (need > wanted)@if (false)
pool.c@blocks_above(&s->blocks) == 0 &&@true &&
pool.c@s->host.copy_count == 0;@true;
pool.c@return s->pool.wanted;@return s->pool.wanted - 1;
pool.c@s->pool.device = blocks;@(void)blocks;
pool.c@above <= blocks_available(&s->blocks)@true
pool.c@prefix_move(&s->prefix, from, to);@prefix_forget(&s->prefix, from);
pool.c@blocks_move(&s->blocks, from, to);@(void)0;
slots.c@table[i] = to[table[i]];@(void)0;
pool.c@if (!done || s->blocks.at[from].refs == 0)@if (s->blocks.at[from].refs == 0)
slots.c@        s->held_adjacent += adjacent;@(void)0;
pool.c@sched_end(s, i, REQ_FIN_ERROR, code, now_us);@(void)0;
pool.c@return s->pool.migrant_count > 0 ||@return false &&
blocks.c@y->refs = x->refs;@(void)0;
blocks.c@y->named = x->named;@(void)0;
prefix.c@p->parents[to] = p->parents[from];@(void)0;
pool.c@s->pool.retry_us = 0; /* it gets the memory now, or ends */@(void)0;
results.c@sched_migrated(s, true, now_us);@sched_migrated(s, false, now_us);
lost.c@        replayed += host_drop_swapped(s, now_us);@        (void)now_us;
lost.c@sched_reset_prefix(s);@(void)0;
lost.c@e->suspect = true;@(void)0;
lost.c@if (all->running_count > 0)@if (false)
lost.c@s->suspects -= e->suspect;@(void)0;
lost.c@e->in_flight && e->suspect && (@e->in_flight && (
lost.c@e->in_flight = false;@(void)0;
states.c@remove_kept(s, at);@(void)0;
states.c@s->of_block[s->at[at].block] = 0;@(void)0;
states.c@s->of_block[from] = 0;@(void)0;
snapshots.c@t->saved = tokens;@t->saved = 0;
snapshots.c@states_copy(&s->states, s->states.first + at, e->slot);@(void)at;
snapshots.c@t->named * s->fixed.block_size != t->saved@t->named * s->fixed.block_size > t->saved
snapshots.c@states_retake(&s->states, to, s->flights.next_step - 1);@states_retake(&s->states, to, s->flights.next_step);
snapshots.c@states_copy(&s->states, e->slot, s->states.first + to);@(void)0;
snapshots.c@states_cancel(&s->states, step);@(void)step;
results.c@snapshot_cancel(s, f->id);@(void)0;
results.c@if (has_slot && s->states.on) {@if (false) {
admit.c@if (s->states.on && states_find(&s->states, id) == STATES_NONE)@if (false)
pool.c@states_move(&s->states, from, to);@(void)0;
sched.c@states_forget(&s->states, id);@(void)id;
plan.c@states_write(&s->states, step);@(void)0;
plan.c@rows = p->shared ? few : rows;@(void)few;
plan.c@for (uint32_t i = 1; i < s->tenants.count; i++)@for (uint32_t i = 1; i < 1; i++)
TABLE
echo "mutants: $caught of $tried planted bugs caught; the table has $n"
[ "$missed" -eq 0 ]
