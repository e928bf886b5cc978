#!/bin/sh
# After `make check`: in turn one slice of `make check-deep`, when there is time.
#
#   tools/check-deep.sh BEGAN     when all of it began, in seconds since 1970
#
# With less than 30 minutes gone it may take 15. A slice that is cut short is said, not a failure.
set -u
began=$1 slices=5
now=$(date +%s)
slice=$((now / 3600 % slices + 1))/$slices
if [ $((now - began)) -ge 1800 ]; then
    echo "No slice of check-deep: $((now - began)) s are gone already. By hand: make check-deep SLICE=$slice"
    exit 0
fi
echo "== check-deep SLICE=$slice"
timeout -k 30 900 "${MAKE:-make}" check-deep SLICE="$slice"
status=$?
[ $status != 124 ] || { echo "Cut short after 15 minutes: make check-deep SLICE=$slice"; exit 0; }
exit $status
