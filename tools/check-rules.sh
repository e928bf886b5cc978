#!/bin/sh
# Alert rules are valid and do what their tests say; dashboards are JSON.
set -eu
for f in alerts/*.rules.yml; do promtool check rules "$f" >/dev/null; done
for f in alerts/tests/*.yml; do promtool test rules "$f" >/dev/null; done
python3 tools/dashboards.py --check
echo "  ok    $(grep -c 'alert:' alerts/*.rules.yml) alerts, $(ls dashboards | wc -l) dashboards"
