#!/bin/sh
# Alert rules are valid and do what their tests say; dashboards are JSON.
set -eu
for f in alerts/*.rules.yml; do promtool check rules "$f" >/dev/null; done
for f in alerts/tests/*.yml; do promtool test rules "$f" >/dev/null; done
for f in dashboards/*.json; do python3 -m json.tool "$f" >/dev/null; done
echo "  ok    $(grep -c 'alert:' alerts/*.rules.yml) alerts, $(ls dashboards | wc -l) dashboards"
