#!/bin/sh
# clang-tidy over the files given, one for each core; .clang-tidy holds the rules.
# Nearly all of its time goes to paths through functions, 225000 states of each unless told. NODES=
# sets how many; `make lint` takes a tenth of that, `make lint-deep` all of them.
flags="-std=gnu17 -I. -D_GNU_SOURCE -DEK_VERSION='\"x\"' $(pkg-config --cflags libmicrohttpd jansson libcurl libsystemd) $(pkg-config --cflags ompi-c 2>/dev/null) -Xclang -analyzer-config -Xclang max-nodes=${NODES:-20000}"
for f in "$@"; do
    case $f in # the intrinsics of the higher tiers are not for clang-tidy's default target
    *_avx2.c | *_avx512.c | *_avx512bf16.c | *_avx512vnni.c | *_amx.c) ;;
    *) echo "$f" ;;
    esac
done | xargs -P "$(nproc)" -n 4 sh -c 'clang-tidy --quiet "$@" -- '"$flags"' 2>/dev/null || exit 1' tidy
