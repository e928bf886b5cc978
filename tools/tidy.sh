#!/bin/sh
# clang-tidy over the files given, one for each core; .clang-tidy holds the rules.
# Nearly all of its time goes to paths through functions, 225000 states of each unless told. NODES=
# sets how many; `make lint` takes a tenth of that, `make lint-deep` all of them.
# EVENKEEL_SHARE=N EVENKEEL_DAY=D: paths in one file of N and in what the last ten commits changed, the other rules in
# three times as many and in what the last forty changed, others each day (tools/turns.sh).
set -u
share=${EVENKEEL_SHARE:-1}
flags="-std=gnu17 -I. -D_GNU_SOURCE -DEK_VERSION='\"x\"' $(pkg-config --cflags libmicrohttpd jansson libcurl libsystemd) $(pkg-config --cflags ompi-c 2>/dev/null) -Xclang -analyzer-config -Xclang max-nodes=${NODES:-20000}"
list=$(mktemp)
trap 'rm -f "$list"' EXIT
# tidy FLAG...: over the files of standard input; the intrinsics of the higher tiers are not for clang-tidy's default target
tidy() {
    grep -vE '_(avx2|avx512|avx512bf16|avx512vnni|amx)\.c$' |
        xargs -r -P "$(nproc)" -n 4 sh -c 'clang-tidy --quiet '"$*"' "$@" -- '"$flags"' 2>/dev/null || exit 1' tidy
}
bad=0
tools/turns.sh "$share" 10 "$@" >"$list"
tidy <"$list" || bad=1
tools/turns.sh $((share / 3)) 40 "$@" | grep -vxFf "$list" | tidy '--checks=-clang-analyzer-*' || bad=1
exit $bad
