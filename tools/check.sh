#!/bin/sh
# All of `make check`: each part with its time, then one line that counts. A failing part does not
# stop the others. The parts can be named: tools/check.sh unit e2e
#
# What tests run beside the programs is installed while these are compiled. Then three lanes go on beside each other,
# for half of the parts mostly wait: what computes, which gets the time that is left and ends with what takes all
# processors; what starts servers; what waits for others (Prometheus, a machine that boots). What a part says is
# printed when it ends.
set -u
MAKE=${MAKE:-make}
jobs=$(nproc)

# cpu: what the processes that this shell has waited for have computed so far, in whole seconds, in $cpu.
cpu() {
    times >"$CHECK/$name.times" # in a pipe it would be the times of another shell
    cpu=$(awk 'END { for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); s += 60 * t[1] + t[2] } printf "%d", s }' "$CHECK/$name.times")
}

# part NAME COMMAND...: runs it; a part that keeps no counts of its own counts as one test. Leaves
# NAME.log, NAME.counts and NAME.row in $CHECK.
part() {
    name=$1
    shift
    case " $PARTS " in *" all "* | *" $name "*) ;; *) return ;; esac
    export COUNTS="$CHECK/$name.counts" TIMES="$CHECK/$name.each" # what each of its tests took
    : >"$COUNTS"
    echo "== $name begins"
    begin=$(date +%s)
    cpu
    before=$cpu
    if "$@" >"$CHECK/$name.log" 2>&1; then ok=1; else ok=0; fi
    took=$(($(date +%s) - begin))
    cpu
    cpu=$((cpu - before))
    awk '{ n += $1 + $2 } END { exit n > 0 }' "$COUNTS" && echo "$ok $((1 - ok)) 0" >>"$COUNTS"
    if [ $ok = 0 ] && ! awk '$2 > 0 { f = 1 } END { exit !f }' "$COUNTS"; then
        echo "0 1 0" >>"$COUNTS"
    fi
    [ $ok = 1 ] || echo "$name" >>"$CHECK/failed"
    printf '{"cell":"%s","value":%d,"unit":"s","cpu_s":%d,"met":%s}\n' "$name" "$took" "$cpu" "$([ $ok = 1 ] && echo true || echo false)" >"$CHECK/$name.row"
    { # as one piece: another lane may have something to say, too
        flock 9
        echo "== $name"
        cat "$CHECK/$name.log"
        printf '== %s: %s in %d s, %d s of processors\n\n' "$name" "$([ $ok = 1 ] && echo passed || echo FAILED)" "$took" "$cpu"
    } 9>"$CHECK/lock"
}

# table: where the time went: each part, and the tests that computed longest.
table() {
    echo "Seconds     by a clock  of processors"
    sed 's/.*"cell":"\([^"]*\)","value":\([0-9]*\).*"cpu_s":\([0-9]*\).*/\3 \2 \1/' "$CHECK"/*.row | sort -rn |
        awk '{ printf "  %-12s %7d %14d\n", $3, $2, $1; s += $1 } END { printf "  %-12s %7s %14d\n\n", "all parts", "", s }'
    echo "Longest tests by a clock  of processors"
    for f in "$CHECK"/*.each; do
        [ ! -e "$f" ] || sed "s/\$/ $(basename "$f" .each)/" "$f"
    done | sort -rn | awk 'NR <= 15 { printf "  %21.1f %14.1f  %s: %s\n", $2 / 1000, $1 / 1000, $4, $3 } END { print "" }'
}

# Of what takes long a share, another one each day (tests/share.h); `make check-deep` has it whole.
today=$(($(date +%s) / 86400))
# What is compiled for itself alone (races, doubling) has one day in four, and then a share by the number of such days.
turn=$((today % 4)) turns=$((today / 4))
# shared N DAY ARGS...: make with one case in N of long tests, planted bugs or paths.
shared() {
    share=$1 day=$2
    shift 2
    echo "-- of what takes long one case in $share: EVENKEEL_SHARE=$share EVENKEEL_DAY=$day"
    EVENKEEL_SHARE=$share EVENKEEL_DAY=$day $MAKE -s "$@"
}
# tests_of FOLDER: the names of its unit tests.
tests_of() { find "$1" -name 'test_*.c' | sed 's/^tests.//; s/\.c$//' | sort; }
# The card's tests run its kernels on the processor: half of them each day. The race checker has kernels of its own,
# compiled for that.
RACES=unit/cuda/test_races
# card QUARTERS: of the card's other tests, 0 to 3; a pattern.
card() { tests_of tests/unit/cuda | grep -vx $RACES | awk -v k="$1" 'NR % 4 ~ k'; }
idle() {
    { card "[$((today % 2))$((today % 2 + 2))]" && { [ $turn = 0 ] || echo $RACES; }; } | xargs
}
# Of the card's kernels, which the tests have as they are compiled for the host, nvcc compiles one file in 7 each day
# and what the last forty commits changed; all where there is a card, or where what they include has changed. 7 has no
# common divisor with the architectures of .ci/run.
images() {
    share=7
    [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ] || share=1
    changed=$(git diff --name-only HEAD~40 -- 'kernels/cuda/*.cuh' 'kernels/cuda/args*.h' kernels/graph.h kernels/step.h \
        common/sampling.h 2>/dev/null && git diff --name-only -G'NVCC|gencode' HEAD~40 -- tools/cuda.mk) || share=1
    [ -z "$changed" ] || share=1
    EVENKEEL_DAY=$today tools/turns.sh $share 40 kernels/cuda/*.cu | xargs
}
# Without an environment of Python what needs it fails, and all else goes on.
provide() { tools/deps.sh test && { $MAKE -s venv || echo "-- no build/venv: what needs it fails"; }; }
build() { $MAKE -s -j"$jobs" OMIT="$(idle)" all unit-bins e2e-tools cuda-fake; }
# 13 has no common divisor with the days of the card's halves: each case has its day.
unit() { shared 13 $today OMIT="$(idle)" unit; }
# All of the text's sources are compiled once more, to be counted.
doubling() { shared 2 $turns -j"$jobs" doubling; }
# Under the sanitizers a third of the sources is compiled on each day without doubling, with its tests and the corpora
# of its fuzz targets (PART in the Makefile), and of its tests that take long one group: the card's, for which its
# kernels are compiled, in quarters, and the processor's, with which the tiers that it has are sanitized.
third=$((today % 3)) thirds=$((today / 3))
# long GROUP: the names of its tests.
long() {
    case $1 in
    kernels-[0-3]) card "${1#*-}" ;;
    kernels-4) echo unit/kernels/test_cpu unit/kernels/test_cpu_open unit/kernels/test_shapes unit/kernels/test_tier \
        unit/kernels/test_tier_gemm unit/kernels/test_product unit/server/test_golden unit/server/test_oracle ;;
    kernels-5) echo unit/model/test_goldens sim/sim_engine ;;
    server-0) echo unit/api/test_doubling unit/api/test_doubling_files unit/api/test_doubling_forms ;;
    server-1) echo unit/grammar/test_grammar ;;
    supervisor-0) echo sim/sim_control ;;
    esac
}
# tiers: those of this processor.
tiers() {
    for t in avx2:avx2 avx512f:avx512 avx512_bf16:avx512bf16 avx512_vnni:avx512vnni amx_tile:amx; do
        ! grep -qw "${t%:*}" /proc/cpuinfo || echo "${t#*:}"
    done | xargs
}
sanitized() {
    case $third in
    0) part=kernels groups=6 ;;
    1) part=server groups=2 ;;
    2) part=supervisor groups=1 ;;
    esac
    group=$((thirds % groups)) omit='' own=''
    for g in 0 1 2 3 4 5; do
        [ $g = $group ] || omit="$omit $(long $part-$g | xargs)"
    done
    [ $part-$group != kernels-4 ] || own=$(tiers)
    echo "-- of the sources those of the $part, of what takes long group $group of $groups: $(long $part-$group | xargs)"
    $MAKE -s -j"$jobs" all || return 1 # the other sources are the release's
    set -- SAN=address,undefined OMIT="$omit" PART=$part TIERS="${BUILD:-build}/release" OWN_TIERS="$own"
    # A group comes at least once in 36 days, to which 11 has no common divisor: each of its cases has its day.
    $MAKE -s -j"$jobs" "$@" unit-bins && shared 11 $today "$@" unit
}
# pytests SECONDS ARGS...: counts are in the last line of what it says, "=== 3 passed, 1 skipped in 2.0s ===".
pytests() {
    seconds=$1
    shift
    PYTHONPATH=tests/tools timeout -s INT -k 30 "$seconds" "${venv:-build/venv}/bin/python" -m pytest -q --no-header \
        -p no:cacheprovider -p pytest_times "$@" >"$COUNTS.log" 2>&1
    cat "$COUNTS.log"
    tail -1 "$COUNTS.log" | awk '{ for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) p = $(i-1); if ($i ~ /^(failed|error)/) f += $(i-1); if ($i ~ /^skipped/) s = $(i-1) }
        print p + 0, f + 0, s + 0; exit !(p > 0 && f == 0) }' >>"$COUNTS"
}
# They mostly wait, so two files at a time, each process with ports of its own (tests/e2e/conftest.py); of those that
# are marked as long one in eight each day.
e2e() {
    export EVENKEEL_SHARE=8 EVENKEEL_DAY="$today"
    echo "-- of what takes long one case in $EVENKEEL_SHARE: EVENKEEL_SHARE=$EVENKEEL_SHARE EVENKEEL_DAY=$EVENKEEL_DAY"
    pytests 2400 -n 2 --dist loadfile --durations 20 --durations-min 5 tests/e2e
    ok=$?
    unset EVENKEEL_SHARE EVENKEEL_DAY
    return $ok
}
# litellm, langchain, MCP and the others in an environment of their own, a third of their files each day; and
# schemathesis, a phase each day with a twelfth of its examples.
clients() {
    export EVENKEEL_SHARE=12 EVENKEEL_DAY="$today"
    echo "-- a third of the files: EVENKEEL_SHARE=$EVENKEEL_SHARE EVENKEEL_DAY=$EVENKEEL_DAY"
    $MAKE -s build/venv-clients/ready && venv=build/venv-clients && pytests 400 tests/clients
    ok=$?
    unset EVENKEEL_SHARE EVENKEEL_DAY venv
    return $ok
}
# A minute of faults drawn with the seed of the day, which is printed (docs/faults.md).
chaos() { SHRINK=60 TIME=60 $MAKE -s chaos; }
# The companion's tests, types, style and wheel; where the tools for these cannot be had, its tests alone.
companion() {
    if PIP_RETRIES=1 $MAKE -s build/venv-companion/ready; then
        $MAKE -s companion
        return
    fi
    echo "-- skipped: types, style and wheel of the companion, for build/venv-companion could not be made"
    $MAKE -s check-companion && echo "1 0 1" >>"$COUNTS"
}
# Who is called when: Prometheus, Alertmanager and a webhook; one minute.
paging() { pytests 400 tests/alerts; }

lane() {
    case $1 in
    computes)
        part layers $MAKE -s layers
        part names tools/names.sh
        part reference tools/reference.sh --check
        part rules env EVENKEEL_SHARE=4 EVENKEEL_DAY=$today tools/check-rules.sh
        part lint shared 12 $today lint
        part companion companion
        part ptxas $MAKE -s check-ptxas
        part unit unit
        part mutants shared 24 $today sim-mutants
        # Each compiles much of what there is once more: they take turns.
        if [ $turn = 3 ] || [ "$PARTS" != all ]; then part doubling doubling; fi
        if [ $turn != 3 ] || [ "$PARTS" != all ]; then part sanitized sanitized; fi
        ;;
    serves)
        part e2e e2e
        part chaos chaos
        ;;
    waits) # with ports of its own
        export PORT_SHIFT=4000
        part clients clients
        part paging paging
        part packages tools/check-packages.sh quick
        ;;
    esac
    : >"$CHECK/$1.ended"
}
# What runs a lane beside this shell: timeout makes a process group and ends all of it when it is ended.
beside="env --default-signal=INT timeout 7200 $0 --lane"

if [ "${1:-}" = --lane ]; then
    lane "$2"
    exit 0
fi
PARTS="${*:-all}"
CHECK=$(mktemp -d)
export MAKE PARTS CHECK
others=
# shellcheck disable=SC2086  # numbers of processes
trap '[ -z "$others" ] || kill $others 2>/dev/null; rm -rf "$CHECK"' EXIT
trap 'exit 130' INT TERM
mkdir -p build/reports
started=$(date +%s)

CUDA_IMAGES=$(images)
export CUDA_IMAGES
case " $PARTS " in
*" all "*)
    (part provide provide) &
    others=$!
    ;;
*" e2e "* | *" paging "* | *" packages "*) $MAKE -s venv e2e-tools cuda-fake ;;
esac
part build build
wait
others=
! grep -qx provide "$CHECK/failed" 2>/dev/null || exit 1
# shellcheck disable=SC2086  # a command
{
    nice -n 19 $beside computes &
    others=$!
    $beside waits &
    others="$others $!"
}
lane serves
wait
for l in computes waits; do
    [ -e "$CHECK/$l.ended" ] || { echo "$l" >>"$CHECK/failed"; echo "0 1 0" >"$CHECK/$l.counts"; }
done

commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
printf '{"target":"check","commit":"%s","machine":{"cpu":"%s","cores":%d},"rows":[%s]}\n' \
    "$commit" "$cpu" "$jobs" "$(cat "$CHECK"/*.row 2>/dev/null | paste -sd, -)" >build/reports/check.json
table
[ ! -e "$CHECK/failed" ] || echo "Failed parts: $(paste -sd' ' - <"$CHECK/failed")"
echo "All of it took $(($(date +%s) - started)) s."
cat "$CHECK"/*.counts >build/reports/check.counts
awk '{ p += $1; f += $2; s += $3 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 }' build/reports/check.counts
