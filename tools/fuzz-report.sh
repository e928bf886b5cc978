#!/bin/sh
# The table of docs/security.md: what `make fuzz` has run since the last one, by $BUILD/fuzz/runs.tsv
# (commit, target, seconds, inputs, whether it found something), added to what the table says.
# usage: fuzz-report.sh
set -eu
runs=${BUILD:-build}/fuzz/runs.tsv
page=docs/security.md
[ -s "$runs" ] || { echo "$runs is not there: run make fuzz first" && exit 1; }
awk -v runs="$runs" '
    BEGIN {
        FS = "\t"
        while ((getline < runs) > 0) { time[$2] += $3; inputs[$2] += $4; found[$2] += $5 }
        FS = " *[|] *"
    }
    / END GENERATED fuzz / {
        print "| target | hours | inputs | findings |"
        print "|---|---|---|---|"
        sort = "LC_ALL=C sort"
        for (n in time) {
            printf "| %s | %.3f | %.0f | %d |\n", n, time[n] / 3600, inputs[n], found[n] | sort
            hours += time[n] / 3600; all += inputs[n]; finds += found[n]
        }
        close(sort)
        printf "| all | %.3f | %.0f | %d |\n", hours, all, finds
        skip = 0
    }
    skip && $2 != "target" && $2 != "all" && $2 !~ /^-/ {
        time[$2] += 3600 * $3; inputs[$2] += $4; found[$2] += $5
    }
    !skip { print }
    / BEGIN GENERATED fuzz / { skip = 1 }' "$page" >"$page.new"
mv "$page.new" "$page"
mv "$runs" "$runs.told"
echo "  wrote $page"
