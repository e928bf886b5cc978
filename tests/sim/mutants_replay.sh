#!/bin/sh
# shellcheck disable=SC2086  # flags, objects and names of tests are words
# Proves the worth of the tests of engines that end and are replaced, and of the load that is run
# again: plants one bug at a time and demands that one of its tests notices. Each line of the table:
# file @ text to find @ text instead @ its tests: of tests/unit, sim, or after e2e: names in
# tests/e2e/test_engine_process.py, test_warm_restart.py and test_traces.py.
# usage: B=build/release ARCHIVES="..." LIBS="..." mutants_replay.sh   (make replay-mutants)
set -eu
cd "$(dirname "$0")/../.."
cc=${CC:-gcc} only=${ONLY:-}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
flags="-std=gnu17 -O1 -D_GNU_SOURCE -DEK_VERSION=\"$(cat VERSION)\" -w -I."
wrap="-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=strndup"
all="-Wl,--start-group $ARCHIVES -Wl,--end-group $LIBS -lcmocka"

built() { # unit test $2 with the object $1, which takes the place of the archives'
    $cc -o "$tmp/test" "$1" "$B/tests/unit/$2.c.o" "$B/tests/unit/alloc.c.o" \
        "$B/tests/sim/null_backend.c.o" $all $wrap
}
noticed() { # by what, for the object $1 and the tests after it; fails when nothing did
    object=$1
    shift
    for t in "$@"; do
        case $t in
        e2e:*)
            mkdir -p "$tmp/release"
            $cc -rdynamic -o "$tmp/release/evenkeel-server" "$B/server/main.c.o" "$object" $all
            B=$tmp/release timeout 300 build/venv/bin/python -m pytest -q -x -p no:cacheprovider \
                tests/e2e/test_engine_process.py tests/e2e/test_warm_restart.py tests/e2e/test_traces.py -k "${t#e2e:}" \
                >"$tmp/log" 2>&1 || { echo "$t"; return 0; }
            ;;
        sim)
            $cc -o "$tmp/test" "$object" "$B/tests/sim/sim_engine.c.o" "$B/tests/sim/null_backend.c.o" $all
            timeout 300 "$tmp/test" 400 800 >"$tmp/log" 2>&1 || { echo "$t"; return 0; }
            ;;
        *)
            built "$object" "$t"
            timeout 120 "$tmp/test" >"$tmp/log" 2>&1 || { echo "$t"; return 0; }
            ;;
        esac
    done
    return 1
}

echo 'int mutants_nothing;' >"$tmp/nothing.c"
$cc $flags -c "$tmp/nothing.c" -o "$tmp/nothing.o"
for t in sim server/test_launcher kernels/test_apart_layout law/test_postmortem bench/test_rerun engine/test_revive engine/test_keep; do
    if by=$(noticed "$tmp/nothing.o" $t); then cat "$tmp/log"; echo "FAIL: no bug planted, but $by fails"; exit 1; fi
done
caught=0 missed=0 n=0
while IFS='@' read -r file find instead tests; do
    [ -n "$file" ] || continue
    case $file in *"$only"*) ;; *) continue ;; esac
    n=$((n + 1))
    FIND=$find INSTEAD=$instead awk 'BEGIN { f = ENVIRON["FIND"]; r = ENVIRON["INSTEAD"] }
        !done && (i = index($0, f)) { $0 = substr($0, 1, i - 1) r substr($0, i + length(f)); done = 1 }
        { print } END { exit !done }' "$file" >"$tmp/mutant.c" ||
        { echo "STALE: $file: $find"; missed=$((missed + 1)); continue; }
    $cc $flags -c "$tmp/mutant.c" -o "$tmp/mutant.o"
    if by=$(noticed "$tmp/mutant.o" $tests); then
        caught=$((caught + 1))
        echo "  $by: $file: $find"
    else
        echo "MISSED: $file: $find -> $instead"
        missed=$((missed + 1))
    fi
done <<'TABLE'
server/launcher.c@a.code = pid < 0 ? -EAGAIN : cut ? -EBADMSG : -ETIMEDOUT;@a.code = 0;@server/test_launcher
server/launcher.c@a.code = fd < 0 ? fd : ek_apart_map(fd, &m);@a.code = ek_apart_map(fd, &m);@server/test_launcher
server/launcher.c@(msg.msg_flags & MSG_CTRUNC) != 0 ? -EMFILE : -EPROTO@-EPROTO@server/test_launcher
server/launcher.c@if (p[1].revents)@if (false)@server/test_launcher
server/launcher.c@ek_apart_failed(l->memory, r, &fault);@(void)0;@server/test_launcher
server/launcher.c@(void)close_range((unsigned)(OWN_FD + n), ~0u, 0);@(void)0;@server/test_launcher
server/launcher.c@#define SCORE_MORE 200@#define SCORE_MORE 0@server/test_launcher
server/launcher.c@        restore_score(score, before);@        (void)0;@server/test_launcher
server/launcher.c@            (void)close(fd);@            (void)0;@server/test_launcher
server/launcher.c@        (void)close(l->memory_fd);@        (void)0;@server/test_launcher
server/launcher.c@    ek_apart_unmap(l->memory);@    (void)0;@server/test_launcher
server/launcher.c@r = named_same(ret_dir, order->stamp, fault);@(void)order;@e2e:another_model
server/launcher.c@const bool sent = info->si_code <= 0@const bool sent = false@e2e:outlives
server/launcher.c@ && info->si_pid != getpid();@;@e2e:test_poison
server/launcher.c@    watch_ends(l->memory);@    (void)0;@e2e:outlives
server/launcher.c@(void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);@(void)0;@e2e:ends_with_its_server
server/launcher.c@    (void)kill(l->engine, SIGKILL);@    (void)0;@e2e:test_a_hang
server/launcher.c@bool stopped = waitid@bool stopped = false && waitid@e2e:test_a_hang
kernels/apart_follow.c@head->abi == EK_BACKEND_ABI &&@true &&@server/test_launcher
kernels/apart_follow.c@memcmp(head->build, build, sizeof(build)) == 0 &&@true &&@kernels/test_apart_layout
kernels/apart_follow.c@ && head->bytes >= sizeof(*head);@;@server/test_launcher
kernels/apart_follow.c@end != (uint64_t)st.st_size ||@false ||@server/test_launcher
kernels/apart_follow.c@ || head.bytes > end)@)@server/test_launcher
kernels/apart_follow.c@f->b->kv_host(f->d, at); /* until@0; /* until@e2e:outlives
kernels/apart_follow.c@        land(f, slot, r); /* what@        (void)0; /* what@e2e:test_poison
kernels/apart_follow.c@f->flying[i] = f->flying[i + 1];@(void)0;@e2e:small_pool
kernels/apart_lead.c@m->host_bytes > 0 && (l->open@false && (l->open@e2e:outlives
kernels/apart_lead.c@        r = open_kv(l, &l->m->kv, &p);@        r = 0;@e2e:test_idle
kernels/apart_lead.c@ret_end->fault = !sent && !was_killed(status);@ret_end->fault = false;@e2e:test_poison
kernels/apart_lead.c@l->m->kv.blocks = blocks; /* so@(void)0; /* so@e2e:limits_move
kernels/apart_lead.c@        if (has_ended(l) || (spent >= PIECE_US@        if ((spent >= PIECE_US@e2e:texts_go_on
server/engine/lost.c@e->in_flight = true;@(void)0;@engine/test_revive
server/engine/lost.c@e->replayed = true;@(void)0;@engine/test_revive
server/engine/lost.c@e->req->replays++;@(void)0;@e2e:is_replaced
server/engine/lost.c@e->lost = s->slots.at[e->slot].settled;@e->lost = 0;@engine/test_revive
server/engine/lost.c@s->suspects += !e->suspect;@(void)0;@engine/test_revive
server/engine/lost.c@e->failed_alone = e->suspect;@(void)0;@engine/test_revive
server/engine/lost.c@e->fault = fault;@(void)0;@engine/test_revive
server/engine/lost.c@(e->failed_alone || e->fault == fault)@e->failed_alone@engine/test_revive
server/engine/lost.c@(e->failed_alone || e->fault == fault)@true@engine/test_revive
server/engine/lost.c@fault != 0 && e->in_flight && e->suspect@fault != 0 && e->in_flight@sim
server/engine/lost.c@t->poisons % SCHED_POISONS == 0@true@e2e:test_poison
server/engine/lost.c@if (all->running_count > 0)@if (false)@engine/test_revive
server/engine/lost.c@        host_kept(s, now_us);@        (void)now_us;@sim
server/engine/lost.c@        blocks_forget_all(&s->blocks);@        (void)0;@engine/test_keep
server/engine/sched_host.c@    host_cancel(s, s->flights.next_step, now_us); /* its@    (void)now_us; /* its@sim
server/engine/revive.c@return before < most ||@return true ||@engine/test_revive
server/engine/revive.c@e->revived_us[(before - most) % ENGINE_REVIVALS_MOST] >@0 >@engine/test_revive
server/engine/revive.c@return cause == ENGINE_LOST_ENDED || cause == ENGINE_LOST_HANG;@return true;@engine/test_keep
server/engine/revive.c@return cause == ENGINE_LOST_ENDED || cause == ENGINE_LOST_HANG;@return false;@engine/test_keep
server/engine/revive.c@ENGINE_DEVICE_RELEASED, e->order == ENGINE_RESTART);@ENGINE_DEVICE_RELEASED, false);@engine/test_keep
server/engine/revive.c@ENGINE_DEVICE_RELEASED, e->order == ENGINE_RESTART);@ENGINE_DEVICE_RELEASED, true);@e2e:outlives
server/engine/revive.c@        if (cause_of(&end, r) == ENGINE_LOST_OOM)@        if (false)@engine/test_keep
server/engine/revive.c@if (end->fault && end->unsure)@if (false)@engine/test_revive
server/engine/revive.c@sched_found(e->sched, fault_of(e, &end, code), ek_now_us());@sched_found(e->sched, 0, ek_now_us());@engine/test_revive
server/engine/revive.c@!engine_away_long(e, ek_now_us())@true@engine/test_revive
server/engine/revive.c@count_loss(e, &end, r);@(void)0;@engine/test_revive
server/engine/judge.c@    if (memory)@    if (false)@engine/test_keep
supervisor/law/postmortem_workload.c@#define POINT_STEPS 3u@#define POINT_STEPS 1u@law/test_postmortem
supervisor/law/postmortem_workload.c@r->steps[i].error == 0 && r->steps[i].rows > 0@r->steps[i].rows > 0@law/test_postmortem
supervisor/law/postmortem_workload.c@r->steps[i].error == 0 && r->steps[i].rows > 0@r->steps[i].error == 0@law/test_postmortem
supervisor/law/postmortem_workload.c@return count - to < POINT_STEPS ? count : to;@return to;@law/test_postmortem
supervisor/law/postmortem_workload.c@ || at[to].rows == at[to - 1].rows)@)@law/test_postmortem
supervisor/law/postmortem_workload.c@double weight = to - from,@double weight = 1,@law/test_postmortem
supervisor/law/postmortem_workload.c@    if (l.base_us < 0)@    if (false)@law/test_postmortem
supervisor/law/postmortem_workload.c@spread > 0 && n * xy - x * y > 0@spread > 0@law/test_postmortem
supervisor/law/postmortem_workload.c@took[at] += t->step_us;@took[at] = t->step_us;@law/test_postmortem
supervisor/law/postmortem_workload.c@if (at >= POSTMORTEM_PACE || t->error != 0)@if (at >= POSTMORTEM_PACE)@law/test_postmortem
supervisor/law/postmortem_workload.c@        if (t->at_us < first_us) {@        if (false) {@law/test_postmortem
supervisor/law/postmortem_workload.c@waiting = t->waiting > waiting ? t->waiting : waiting;@waiting = t->waiting;@law/test_postmortem
supervisor/law/postmortem_workload.c@last->limit_blocks < last->blocks_total;@false;@law/test_postmortem
supervisor/law/postmortem_workload.c@older += a->came_count@older -= a->came_count@law/test_postmortem
server/bench/rerun.c@q->at_s = q[-1].at_s; /*@(void)0; /*@bench/test_rerun
server/bench/rerun.c@        l->unfinished++;@        (void)0;@bench/test_rerun
server/bench/rerun.c@r == 0 && answers > ANSWERS_MOST@false@bench/test_rerun
server/bench/rerun.c@.lasts_s = l->lasted_s,@.lasts_s = 0,@bench/test_rerun
server/bench/rerun.c@change->seqs ? change->seqs : l->limits.seqs@l->limits.seqs@bench/test_rerun
server/bench/rerun.c@change->tokens ? change->tokens : l->limits.tokens@l->limits.tokens@bench/test_rerun
server/bench/rerun.c@change->blocks ? change->blocks : l->limits.blocks@l->limits.blocks@bench/test_rerun
server/bench/rerun.c@    l->lasted_s /= 1e6;@    (void)0;@bench/test_rerun
server/bench/rerun.c@(cached < to->prompt ? cached : to->prompt)@to->prompt@bench/test_rerun
server/bench/rerun.c@    if (n > PACES_MOST)@    if (false)@bench/test_rerun
server/bench/rerun.c@(uint64_t)blocks * l->block_size > UINT32_MAX@false@bench/test_rerun
server/bench/rerun.c@whole > twice ? whole : twice;@whole;@bench/test_rerun
TABLE
echo "mutants: $caught of $n planted bugs caught"
[ "$missed" -eq 0 ]
