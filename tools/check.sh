#!/bin/sh
# All of `make check`: each part with its time, then one line that counts. A failing part does not
# stop the others. The parts can be named: tools/check.sh unit e2e
set -u
MAKE=${MAKE:-make}
jobs=$(nproc)
COUNTS=$(mktemp)
export COUNTS
trap 'rm -f "$COUNTS" "$COUNTS.log"' EXIT
mkdir -p build/reports
rows=
failed_parts=

# part NAME COMMAND...: runs it; a part that keeps no counts of its own counts as one test
part() {
    name=$1
    shift
    case " $parts " in *" all "* | *" $name "*) ;; *) return ;; esac
    echo "== $name"
    before=$(wc -l <"$COUNTS")
    begin=$(date +%s)
    if "$@"; then ok=1; else ok=0; fi
    took=$(($(date +%s) - begin))
    if [ "$(wc -l <"$COUNTS")" = "$before" ]; then echo "$ok $((1 - ok)) 0" >>"$COUNTS"; fi
    if [ $ok = 0 ] && ! tail -n +$((before + 1)) "$COUNTS" | awk '$2 > 0 { f = 1 } END { exit !f }'; then
        echo "0 1 0" >>"$COUNTS"
    fi
    [ $ok = 1 ] || failed_parts="$failed_parts $name"
    printf '== %s: %s in %d s\n\n' "$name" "$([ $ok = 1 ] && echo passed || echo FAILED)" "$took"
    rows="$rows${rows:+,}{\"cell\":\"$name\",\"value\":$took,\"unit\":\"s\",\"met\":$([ $ok = 1 ] && echo true || echo false)}"
}

build() { $MAKE -s -j"$jobs" all unit-bins; }
sanitized() {
    $MAKE -s -j"$jobs" SAN=address,undefined unit-bins && $MAKE -s SAN=address,undefined unit
}
# pytests SECONDS ARGS...: real processes on a busy machine may miss a deadline, so what failed gets a
# second try, which is said. Counts are in a log's last line: "=== 3 passed, 1 skipped in 2.0s ==="
pytests() {
    seconds=$1
    shift
    run="timeout -s INT -k 30 $seconds ${venv:-build/venv}/bin/python -m pytest -q --no-header"
    $run "$@" 2>&1 | tee "$COUNTS.log"
    last=$(tail -1 "$COUNTS.log")
    failed=$(echo "$last" | sed -n 's/^\(=* \)\{0,1\}\([0-9]*\) failed.*/\2/p')
    if [ -n "$failed" ] && [ "$failed" -le 5 ]; then
        echo "-- a second try for the $failed that failed"
        $run --last-failed "$@" 2>&1 | tee "$COUNTS.again"
        if tail -1 "$COUNTS.again" | grep -q "^\(=* \)\{0,1\}$failed passed"; then
            echo "-- passed at the second try: $failed"
            last=$(echo "$last" | awk -v f="$failed" '{ for (i = 2; i <= NF; i++) if ($i ~ /^passed/) f += $(i-1); print f " passed" }')
        fi
        rm -f "$COUNTS.again"
    fi
    echo "$last" | awk '{ for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) p = $(i-1); if ($i ~ /^(failed|error)/) f += $(i-1); if ($i ~ /^skipped/) s = $(i-1) }
        print p + 0, f + 0, s + 0; exit !(p > 0 && f == 0) }' >>"$COUNTS"
}
e2e() {
    $MAKE -s venv cuda-fake && pytests 1200 tests/e2e
}
# litellm, langchain, MCP and schemathesis, in an environment of their own.
clients() {
    $MAKE -s build/venv-clients/ready && venv=build/venv-clients && pytests 300 tests/clients
    ok=$?
    venv=
    return $ok
}
# Who is called when: Prometheus, Alertmanager and a webhook; one minute.
paging() {
    $MAKE -s venv && pytests 280 tests/alerts
}

parts="${*:-all}"
part build build
part layers $MAKE -s layers
part lint $MAKE -s lint
part unit $MAKE -s unit
part ptxas $MAKE -s check-ptxas
part mutants $MAKE -s sim-mutants
part sanitized sanitized
part names tools/names.sh
part reference tools/reference.sh --check
part rules tools/check-rules.sh
part e2e e2e
part clients clients
part paging paging
part packages tools/check-packages.sh quick

commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
printf '{"target":"check","commit":"%s","machine":{"cpu":"%s","cores":%d},"rows":[%s]}\n' \
    "$commit" "$cpu" "$jobs" "$rows" >build/reports/check.json
[ -z "$failed_parts" ] || echo "Failed parts:$failed_parts"
awk '{ p += $1; f += $2; s += $3 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 }' "$COUNTS"
