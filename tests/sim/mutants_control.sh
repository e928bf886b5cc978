#!/bin/sh
# shellcheck disable=SC2046,SC2086,SC2089,SC2090  # lists of flags and objects are meant to be split
# Proves the worth of sim_control and the law's tests: plants one bug at a time into a copy of the
# law and demands that one of them notices. Each line of the table: file @ text to find @ text
# instead.
# usage: mutants_control.sh [RUNS]
set -eu
cd "$(dirname "$0")/../.."
runs=${1:-600}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cc=${CC:-gcc}
flags="-std=gnu17 -O1 -D_GNU_SOURCE -DEK_VERSION=\"0\""
libs="$(pkg-config --libs libsystemd yaml-0.1 jansson) -lm -lcmocka"
law="law/policy law/policy_law law/policy_params law/window law/decision law/reasons engines/sample engines/dialect"
wrap="-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=strndup"
tests="law policy shed window sample"
mkdir -p "$tmp/base"
for f in common/*.c tests/sim/sim_control.c tests/unit/alloc.c; do
    $cc $flags -I. -c "$f" -o "$tmp/base/$(basename "$f").o"
done
for t in $tests; do $cc $flags -I. -c "tests/unit/law/test_$t.c" -o "$tmp/base/test_$t.c.o"; done
for f in $law; do $cc $flags -I. -c "supervisor/$f.c" -o "$tmp/base/$(basename "$f").c.o"; done

objects() { # of directory $1: the law and common, without programs
    for o in "$1"/*.o; do
        case $o in */sim_control.c.o | */test_*.c.o | */alloc.c.o) ;; *) printf '%s ' "$o" ;; esac
    done
}
noticed() { # by what, for the objects in directory $1; fails when nothing did
    $cc -o "$1/sim" "$1/sim_control.c.o" $(objects "$1") $libs
    timeout 200 "$1/sim" "$runs" >"$1/log" 2>&1 || { echo simulation; return 0; }
    for t in $tests; do
        $cc -o "$1/$t" "$1/test_$t.c.o" "$1/alloc.c.o" $(objects "$1") $libs $wrap
        timeout 60 "$1/$t" >"$1/log" 2>&1 || { echo "test_$t"; return 0; }
    done
    return 1
}

if by=$(noticed "$tmp/base"); then echo "FAIL: no bug planted, but $by fails"; exit 1; fi
caught=0 missed=0 n=0
while IFS='@' read -r file find instead; do
    [ -n "$file" ] || continue
    n=$((n + 1))
    m=$tmp/m
    rm -rf "$m" && mkdir -p "$m"
    cp "$tmp"/base/*.o "$m"
    from=supervisor/law/$file
    [ -e "$from" ] || from=supervisor/engines/$file
    FIND=$find INSTEAD=$instead awk 'BEGIN { f = ENVIRON["FIND"]; r = ENVIRON["INSTEAD"] }
        !done && (i = index($0, f)) { $0 = substr($0, 1, i - 1) r substr($0, i + length(f)); done = 1 }
        { print } END { exit !done }' "$from" >"$m/$file" ||
        { echo "STALE: $file: $find"; missed=$((missed + 1)); continue; }
    $cc $flags -w -I. -c "$m/$file" -o "$m/$file.o"
    if by=$(noticed "$m"); then
        caught=$((caught + 1))
        echo "  $by: $file: $find"
    else
        echo "MISSED: $file: $find -> $instead"
        missed=$((missed + 1))
    fi
done <<'TABLE'
policy_law.c@to = to < p->par.seqs_min ? p->par.seqs_min : to;@(void)0;
policy_law.c@double base = fmin(limit, f->running_most);@double base = limit;
policy_law.c@if (!is_settled(p, f)) {@if (false) {
policy_law.c@(f->running <= p->cut_to || policy_since(p, p->cut_us, p->par.effect_s))@true
policy_law.c@f.pressure = f.full && f.harm;@f.pressure = f.full;
policy_law.c@f.pressure = f.full && f.harm;@f.pressure = f.harm;
policy_law.c@f.window_s >= p->par.window_s * SUSTAINED && f.usage_upper@f.usage_upper
policy_law.c@if (f->harm_rate <= HARM_KEPT * p->effect.harm_rate ||@if (
policy_law.c@if (to <= p->limit[k])@if (false)
policy_law.c@if (limit >= most || p->pinned[KNOB_SEQS]@if (limit >= most
policy_law.c@most = p->limit[KNOB_TOKENS]; /* each running@most = most; /* each running
policy_law.c@if (!(f->waiting > 0 && window_reached(f->running, limit)) ||@if (
policy_law.c@if (!policy_since(p, p->cut_us, wait_after_cut(p)))@if (false)
policy_law.c@else if (f->harm_count > 0)@else if (false)
policy_law.c@else if (after > p->par.feedforward)@else if (false)
policy_law.c@after += step * after / f->running;@(void)step;
policy_law.c@else if (f->usage_mid > release)@else if (false)
policy_law.c@uint32_t step = probe || p->par.raise_step == 0 ? 1 : p->par.raise_step;@uint32_t step = 8;
policy_law.c@bool probe = is_probing(p) ||@bool probe =
policy_law.c@ && PROBE_SHARE * limit < p->ssthresh;@;
policy_law.c@if (!policy_since(p, p->raise_us, p->par.raise_every_s)) {@if (false) {
policy_law.c@least = p->limit[KNOB_SEQS]; /* each running sequence@least = 1; /* each running sequence
policy_law.c@wait_s *= WAIT_GROWTH;@wait_s *= 1.0;
policy_law.c@f->prefill_share <= PREFILL_MOST ||@false ||
policy_law.c@bool on = is_own && p->late_us &&@bool on = is_own &&
policy_law.c@bool off = ours && p->calm_us &&@bool off = ours ||
policy_law.c@bool is_own = fabs(f->deadline_s - own_s) < 0.001@bool is_own = true
policy_law.c@(own_s > 0 && own_s <= slo_s)@false
policy_law.c@return oldest_s > p->par.ttft_slo_s * p->par.shed_share * LATE_SHARE;@return oldest_s > 0;
policy.c@    track_queue(p, s);@    if (!is_bad(p, s)) track_queue(p, s);
policy_law.c@if (!f->has_reserve || !f->stalls ||@if (!f->has_reserve ||
policy_law.c@fmin(f->reserve + p->par.reserve_step, most)@f->reserve + p->par.reserve_step
policy_law.c@f->reserve > most - RESERVE_BACK || !policy_since(p, p->cut_us, p->par.settle_s)@f->reserve > most - RESERVE_BACK
policy_law.c@if (!f->has_reserve || f->harm_count > 0 ||@if (!f->has_reserve ||
policy_law.c@fmax(f->reserve - RESERVE_BACK, own)@f->reserve - RESERVE_BACK
policy_law.c@!policy_since(p, p->reserve_us, p->par.reserve_back_s) ||@false ||
policy_law.c@f.harm_rate > p->par.preempt_rate &&@true &&
policy.c@p->reserve_us = p->now_us;@(void)0;
policy_law.c@if (p->quiet_us == 0 || !policy_since(p, p->quiet_us, p->par.drift_quiet_s)@if (p->quiet_us == 0
policy_law.c@continue; /* it binds@(void)0; /* it binds
policy.c@if (bad >= RECENT_BAD) {@if (false) {
policy.c@now_us = p->now_us; /* a clock@(void)0; /* a clock
policy.c@forget_samples(p, now_us);@(void)0;
policy.c@if (p->good_run < WARM_GOOD || up_s < p->par.warmup_s) {@if (false) {
policy.c@if (p->par.mode == MODE_ACT) {@if (p->par.mode != MODE_OBSERVE) {
policy.c@if (p->par.mode == MODE_OBSERVE || is_repeated(p, d))@if (is_repeated(p, d))
policy.c@if (freeze(p, d))@if (false)
policy.c@} else if (p->is_pending) {@} else if (false) {
policy.c@p->limit[d->knob] = d->to;@(void)0;
policy.c@if (++p->apply_failures >= FAILURES) {@if (false) {
policy.c@p->locked_us[d->knob] = p->now_us + policy_us(p->par.lock_s);@(void)0;
policy.c@p->cut_us = p->now_us ? p->now_us : 1;@(void)0;
window.c@return false;@return true;
sample.c@|= SAMPLE_RESET@|= 0
TABLE
echo "mutants: $caught of $n planted bugs caught"
[ "$missed" -eq 0 ]
