#!/bin/sh
# Runs fuzz targets that were linked with clang's fuzzer, each for LASTS seconds, and says what each
# found. Inputs that reach new code are kept in $BUILD/fuzz/<parser>, so that the next run goes on;
# what each run did is a line of $BUILD/fuzz/runs.tsv, of which `make fuzz-report` makes a table.
# usage: fuzz.sh TARGET...
set -eu
out=${BUILD:-build}/fuzz
bad=0
stat() { sed -n "s/^stat::$1: *//p" "$out/$n.log"; }
for t in "$@"; do
    n=${t##*/fuzz_}
    mkdir -p "$out/$n" "$out/found/$n"
    dict=
    [ ! -s "tests/fuzz/$n.dict" ] || dict=-dict=tests/fuzz/$n.dict
    begun=$(date +%s) found=0
    if "$t" -max_total_time="${LASTS:-60}" -timeout=30 -rss_limit_mb=3000 -max_len=65536 \
        -artifact_prefix="$out/found/$n/" ${dict:+"$dict"} -print_final_stats=1 \
        "$out/$n" "tests/fuzz/corpus/$n" >"$out/$n.log" 2>&1; then
        echo "  ok    fuzz/$n: $(stat number_of_executed_units) inputs"
    else
        found=1
        echo "  FAIL  fuzz/$n: see $out/$n.log and $out/found/$n"
        tail -25 "$out/$n.log"
        bad=1
    fi
    printf '%s\t%s\t%s\t%s\t%s\n' "$(git rev-parse --short HEAD)" "$n" $(($(date +%s) - begun)) \
        "$(stat number_of_executed_units)" $found >>"$out/runs.tsv"
done
exit $bad
