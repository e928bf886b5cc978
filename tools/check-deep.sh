#!/bin/sh
# After `make check`: in turn one slice of `make check-deep`, when there is time. The last line counts
# both.
#
#   tools/check-deep.sh BEGAN     when all of it began, in seconds since 1970
#
# It may take 15 minutes, and what is left of 40 in all; less than 5 are not begun. A slice that is cut
# short is said, not a failure, but what failed in it is one.
set -u
began=$1 slices=8
now=$(date +%s)
slice=$((now / 3600 % slices + 1))/$slices
counts=$(mktemp)
trap 'rm -f "$counts"' EXIT
cat build/reports/check.counts >"$counts"
may=$((began + 2400 - now))
[ $may -le 900 ] || may=900
if [ $may -lt 300 ]; then
    echo "No slice of check-deep: $((now - began)) s are gone already. By hand: make check-deep SLICE=$slice"
else
    echo "== check-deep SLICE=$slice"
    COUNTS=$counts timeout -k 30 $may "${MAKE:-make}" check-deep SLICE="$slice"
    status=$?
    if [ $status = 124 ]; then
        echo "Cut short after $((may / 60)) minutes: make check-deep SLICE=$slice"
    elif [ $status != 0 ] && ! awk '$2 > 0 { f = 1 } END { exit !f }' "$counts"; then
        echo "0 1 0" >>"$counts" # it could not be built
    fi
fi
awk '{ p += $1; f += $2; s += $3 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 }' "$counts"
