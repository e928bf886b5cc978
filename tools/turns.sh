#!/bin/sh
# Of the files given those that are looked at today, one a line: what the last COMMITS commits and the work since then
# have changed, and of the others one in N, another one each day (EVENKEEL_DAY, tests/share.h). All where N is below 2.
#
#   tools/turns.sh N COMMITS FILE...
set -eu
share=$1 commits=$2 day=${EVENKEEL_DAY:-0} n=0
shift 2
# A history that is shorter, or none, does not say what changed: then all.
changed=$(git diff --name-only "HEAD~$commits" 2>/dev/null && git ls-files -o --exclude-standard) || share=1
recent=" $(echo "$changed" | tr '\n' ' ') "
for f in "$@"; do
    n=$((n + 1))
    case $recent in
    *" $f "*) echo "$f" ;;
    *) [ "$share" -ge 2 ] && [ $(((n + day) % share)) != 0 ] || echo "$f" ;;
    esac
done
