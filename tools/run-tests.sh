#!/bin/sh
# Runs test binaries one after the other; prints each one's last line; keeps the output of failures.
fail=0
for t in "$@"; do
    log=$t.log
    if "$t" >"$log" 2>&1; then echo "ok   ${t##*/}"; else fail=1; echo "FAIL ${t##*/}"; cat "$log"; fi
done
exit $fail
