#!/bin/sh
# Alert rules are valid and do what their tests say, each alert has one; Alertmanager's example sends
# them where its table says; dashboards are what their description makes and follow the linter's rules.
#
# EVENKEEL_SHARE=N EVENKEEL_DAY=D: of the files of cases one in N, others each day, and what was changed; all where the
# rules were (tools/turns.sh).
set -eu
share=${EVENKEEL_SHARE:-1}
git diff --quiet HEAD~40 -- alerts/*.yml tools/slo-rules.py 2>/dev/null || share=1
export GOGC=800 GOMAXPROCS=1 # a case is hours of samples, half of whose time were collections of garbage
for f in alerts/*.rules.yml; do
    said=$(promtool check rules --lint=all --lint-fatal "$f" 2>&1) || { echo "$said"; exit 1; }
done
for f in $(tools/turns.sh "$share" 40 alerts/tests/*.yml); do
    said=$(promtool test rules "$f" 2>&1) || { echo "$said"; exit 1; }
done
python3 tools/slo-rules.py --check
for a in $(sed -n 's/^ *- *alert: *//p' alerts/*.rules.yml | sort -u); do
    grep -qE "alertname(: *|=\\\\?\")$a" alerts/tests/*.yml || { echo "alerts/tests: no case for $a"; exit 1; }
done
if command -v amtool >/dev/null; then
    amtool check-config alerts/alertmanager.example.yml >/dev/null
    grep -v '^#' alerts/tests/routes.txt | while IFS=: read -r want labels; do
        # shellcheck disable=SC2086  # labels are words
        got=$(amtool config routes test --config.file=alerts/alertmanager.example.yml $labels 2>/dev/null)
        [ "$got" = "$want" ] || { echo "alertmanager.example.yml:$labels goes to $got, not to $want"; exit 1; }
    done
else
    echo "amtool is missing: apt-get install prometheus-alertmanager"
    exit 1
fi
python3 tools/dashboards.py --check
[ ! -x tools/dash-lint ] || tools/dash-lint dashboards/*.json
echo "  ok    $(sed -n 's/^ *- *alert: *//p' alerts/*.rules.yml | sort -u | wc -l) alerts, $(ls dashboards/*.json | wc -l) dashboards"
