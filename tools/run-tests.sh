#!/bin/sh
# Runs test binaries one after the other: one line each, the whole output of failures, and the
# counts added to the file named by COUNTS ("passed failed skipped" per line).
fail=0
for t in "$@"; do
    log=$t.log
    begin=$(date +%s%N)
    "$t" >"$log" 2>&1
    rc=$?
    took=$((($(date +%s%N) - begin) / 1000000))
    passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -1)
    failed=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -1)
    skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$log" | tail -1)
    if [ -z "$passed" ]; then # not a cmocka program: it passes or fails as a whole
        passed=$((rc == 0)) failed=$((rc != 0))
    elif [ $rc != 0 ] && [ "${failed:-0}" = 0 ]; then
        failed=1 # a sanitizer or a crash after the last test
    fi
    [ -z "${COUNTS:-}" ] || echo "$passed ${failed:-0} ${skipped:-0}" >>"$COUNTS"
    name=$(echo "$t" | sed 's|.*/tests/||')
    if [ $rc = 0 ]; then
        printf '  ok    %-40s %3s tests %6d ms\n' "$name" "$passed" "$took"
    else
        printf '  FAIL  %-40s (exit status %d)\n' "$name" "$rc"
        tail -60 "$log"
        fail=1
    fi
done
exit $fail
