#!/bin/sh
# Alerts, dashboards and documents use only metric names that the programs export, or that a
# recording rule makes. The programs print their own tables.
set -eu
B=${B:-build/release}
known=$(mktemp)
trap 'rm -f "$known"' EXIT
{
    "$B/evenkeel-server" --print-metrics
    "$B/evenkeeld" --print-metrics
    echo evenkeel_vllm # the companion's package
    sed -n 's/^ *"\(evenkeel_[a-z_]*\)": ("\([a-z]*\)", .*/\1 \2/p' supervisor/companion/evenkeel_vllm/metrics.py
} | awk '{ print $1; if ($2 == "histogram") { print $1 "_bucket"; print $1 "_sum"; print $1 "_count" } }' >"$known"
sed -n 's/^ *- *record: *//p' alerts/*.yml >>"$known"
bad=0
for f in alerts/*.yml dashboards/*.json docs/*.md README.md; do
    [ -e "$f" ] || continue
    for n in $(grep -oE '(vllm:|evenkeel_|evenkeel:)[a-z0-9_:]*[a-z0-9]' "$f" | sort -u); do
        grep -qxF -- "$n" "$known" && continue
        grep -qE "^$n(_|\$)" "$known" && case $f in *.md) continue ;; esac # a prefix in prose
        echo "$f: no program exports $n"
        bad=1
    done
done
[ $bad = 0 ] && echo "  ok    $(wc -l <"$known") names; alerts, dashboards and documents use no other"
exit $bad
