#!/bin/sh
# Runs test binaries, as many at a time as there are cores (JOBS=): one line each, the whole output of
# failures, and the counts added to the file named by COUNTS ("passed failed skipped" per line). The
# file named by TIMES gets "processor-ms wall-ms name" per test. Give what takes longest first.

# one TEST: what it says is written at once, for others write beside it
one() {
    log=$1.log
    begin=$(date +%s%N)
    "$1" >"$log" 2>&1
    rc=$?
    took=$((($(date +%s%N) - begin) / 1000000))
    times >"$1.times" # in a pipe it would be the times of another shell
    cpu=$(awk 'END { for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); s += 60 * t[1] + t[2] } printf "%d", 1000 * s }' "$1.times")
    passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -1)
    failed=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -1)
    skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$log" | tail -1)
    if [ -z "$passed" ]; then # not a cmocka program: it passes or fails as a whole
        passed=$((rc == 0)) failed=$((rc != 0))
    elif [ $rc != 0 ] && [ "${failed:-0}" = 0 ]; then
        failed=1 # a sanitizer or a crash after the last test
    fi
    [ -z "${COUNTS:-}" ] || echo "$passed ${failed:-0} ${skipped:-0}" >>"$COUNTS"
    name=${1##*/tests/}
    [ -z "${TIMES:-}" ] || echo "$cpu $took $name" >>"$TIMES"
    if [ $rc = 0 ]; then
        printf '  ok    %-40s %3s tests %6d ms, %6d ms of processors\n' "$name" "$passed" "$took" "$cpu"
    else
        printf '  FAIL  %-40s (exit status %d)\n%s\n' "$name" "$rc" "$(tail -60 "$log")"
    fi
    return $((rc != 0))
}

if [ "$1" = --one ]; then
    one "$2"
    exit
fi
printf '%s\n' "$@" | xargs -P "${JOBS:-$(nproc)}" -n 1 "$0" --one
