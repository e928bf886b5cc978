#!/bin/sh
# After `make check`: in turn one slice of `make check-deep`, when there is time. The last line counts
# both.
#
#   tools/check-deep.sh BEGAN     when all of it began, in seconds since 1970
#
# With less than 30 minutes gone it may take 15. A slice that is cut short is said, not a failure, but
# what failed in it is one.
set -u
began=$1 slices=5
now=$(date +%s)
slice=$((now / 3600 % slices + 1))/$slices
counts=$(mktemp)
trap 'rm -f "$counts"' EXIT
cat build/reports/check.counts >"$counts"
if [ $((now - began)) -ge 1800 ]; then
    echo "No slice of check-deep: $((now - began)) s are gone already. By hand: make check-deep SLICE=$slice"
else
    echo "== check-deep SLICE=$slice"
    COUNTS=$counts timeout -k 30 900 "${MAKE:-make}" check-deep SLICE="$slice"
    status=$?
    if [ $status = 124 ]; then
        echo "Cut short after 15 minutes: make check-deep SLICE=$slice"
    elif [ $status != 0 ] && ! awk '$2 > 0 { f = 1 } END { exit !f }' "$counts"; then
        echo "0 1 0" >>"$counts" # it could not be built
    fi
fi
awk '{ p += $1; f += $2; s += $3 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 }' "$counts"
