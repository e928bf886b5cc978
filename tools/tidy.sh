#!/bin/sh
# clang-tidy over the files given, one for each core; .clang-tidy holds the rules.
# Nearly all of its time goes to paths through functions, 225000 states of each unless told. NODES=
# sets how many; `make lint` takes a tenth of that, `make lint-deep` all of them.
# EVENKEEL_SHARE=N EVENKEEL_DAY=D: paths in one file of N, others each day (tests/share.h), and in what
# the last ten commits changed; the other rules hold every file.
set -u
share=${EVENKEEL_SHARE:-1} day=${EVENKEEL_DAY:-0}
recent=" $(git diff --name-only HEAD~10 2>/dev/null | xargs) "
flags="-std=gnu17 -I. -D_GNU_SOURCE -DEK_VERSION='\"x\"' $(pkg-config --cflags libmicrohttpd jansson libcurl libsystemd) $(pkg-config --cflags ompi-c 2>/dev/null) -Xclang -analyzer-config -Xclang max-nodes=${NODES:-20000}"
# files WHICH FILE...: those whose paths are followed (1) or not (0)
files() {
    which=$1 n=0
    shift
    for f in "$@"; do
        case $f in # the intrinsics of the higher tiers are not for clang-tidy's default target
        *_avx2.c | *_avx512.c | *_avx512bf16.c | *_avx512vnni.c | *_amx.c) continue ;;
        esac
        n=$((n + 1)) paths=0
        case $recent in *" $f "*) paths=1 ;; esac
        [ $(((n + day) % share)) != 0 ] || paths=1
        [ $paths != "$which" ] || echo "$f"
    done
}
# tidy FLAG...: over the files of standard input
tidy() { xargs -r -P "$(nproc)" -n 4 sh -c 'clang-tidy --quiet '"$*"' "$@" -- '"$flags"' 2>/dev/null || exit 1' tidy; }
bad=0
files 1 "$@" | tidy || bad=1
files 0 "$@" | tidy '--checks=-clang-analyzer-*' || bad=1
exit $bad
