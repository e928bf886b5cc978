#!/bin/sh
# Includes go one way, among folders and (below) among modules. Each line: a folder, then the folders
# its files may include from; of kernels/ the server sees kernels/backend.h alone, and its start
# kernels/registry.h, too.
rules='
common              common
kernels             common kernels
server/text/jinja   common server/text/jinja
server/text         common server/text/jinja server/text
server/grammar      common server/text server/grammar
server/model        common kernels server/model
server/engine       common kernels server/grammar server/model server/engine
server/text/answer  common server/text server/text/answer
server/api          common server/grammar server/text server/text/answer server/engine server/api
server/net          common server/grammar server/text server/text/answer server/engine server/api server/net
server              common kernels server server/net server/api server/grammar server/text server/text/answer server/engine server/model
supervisor/engines  common supervisor/engines
supervisor/doctor   common supervisor/engines supervisor/doctor
supervisor/law      common supervisor/engines supervisor/doctor supervisor/law
supervisor/io       common supervisor/engines supervisor/doctor supervisor/law supervisor/io
supervisor/config   common supervisor/engines supervisor/law supervisor/io supervisor/config
supervisor/servers  common supervisor/engines supervisor/doctor supervisor/law supervisor/io supervisor/config supervisor/servers
supervisor/web      common supervisor/engines supervisor/law supervisor/io supervisor/config supervisor/servers supervisor/web
supervisor          common supervisor/engines supervisor/law supervisor/io supervisor/config supervisor/servers supervisor/web supervisor
supervisor/nvml     common supervisor/io supervisor/nvml
supervisor/planner  common supervisor/planner
supervisor/ctl      common supervisor/engines supervisor/planner supervisor/doctor supervisor/ctl
server/bench        common kernels server/model server/engine server/bench
'
bad=0
top=' CONTRIBUTING.md LICENSE Makefile README.md SECURITY.md VERSION alerts common dashboards docs kernels models packaging server supervisor tests tools '
for name in $(git ls-files 2>/dev/null | cut -d/ -f1 | sort -u); do
    case $name in .*) continue ;; esac
    case $top in *" $name "*) ;; *) echo "$name: not one of the folders and files of the top level"; bad=1 ;; esac
done
# One process for all files: a process for each of their includes takes 12 s of a processor.
# shellcheck disable=SC2046 # names without spaces
awk -v rules="$rules" '
function folder(path) {
    return sub(/\/[^\/]*$/, "", path) ? path : "."
}
function bad_include(what) {
    print FILENAME ": " what
    bad = 1
}
BEGIN {
    lines = split(rules, line, "\n")
    for (i = 1; i <= lines; i++) {
        words = split(line[i], word, " ")
        for (w = 2; w <= words; w++) {
            known[word[1]] = 1
            may[word[1], word[w]] = 1
        }
    }
    # Of the start of the server alone, though they lie deeper than it may look.
    start["kernels/mpi/cluster.h"] = start["kernels/apart.h"] = start["kernels/fingerprint.h"] = 1
    # What backend.h is made of: plain data.
    data["kernels/step.h"] = data["kernels/graph.h"] = data["kernels/product_forms.h"] = 1
}
FNR == 1 {
    dir = folder(FILENAME)
    if (dir ~ /^kernels\//)
        dir = "kernels"
    if (!(dir in known))
        bad_include("folder " dir " has no rule in tools/layers.sh")
}
/^#include "/ {
    split($0, part, "\"")
    inc = part[2]
    to = folder(inc)
    inside = dir == "kernels" || dir == "server/bench" # which measures single kernels, too
    if (to ~ /^kernels\// && (inside || (dir == "server" && inc in start)))
        to = "kernels"
    if (!((dir, to) in may))
        bad_include("may not include " inc)
    if (inc ~ /^kernels\// && !inside && inc != "kernels/backend.h" && !(dir == "server" && inc == "kernels/registry.h") &&
        !(inc in data) && !(inc in start))
        bad_include("only kernels/backend.h may be included")
    if (inc ~ /cuda|nccl/ && dir != "kernels")
        bad_include("CUDA belongs below kernels/cuda")
}
END { exit bad }' $(find common kernels server supervisor \
    -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh') || bad=1
# Modules that include each other.
# shellcheck disable=SC2046
awk -f tools/circles.awk $(find common kernels server supervisor \
    -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh') || bad=1
# HTTP belongs to server/net: server/api reads and writes JSON, and knows no connection.
# shellcheck disable=SC2013 # names without spaces
for f in $(grep -rlE '#include <microhttpd' server --include='*.[ch]' | grep -vE '^server/(net/|bench/|[^/]*$)'); do
    echo "$f: HTTP belongs to server/net"
    bad=1
done
# What decides does not look at the world: time and figures come as parameters.
for f in supervisor/law/*.[ch] supervisor/engines/*.[ch]; do
    if grep -nE '#include <(unistd|fcntl|poll|dirent|time|sys/|curl|systemd)|\b(ek_now_us|ek_wall_us|fopen|getenv|ek_log) *\(' "$f"; then
        echo "$f: the law does no I/O and reads no clock"
        bad=1
    fi
done
# A backtrace tells where it is by names alone: a static function that another file has, too, has its
# module's name in front. Names of two words and more may stand in three files.
# shellcheck disable=SC2046 # names without spaces
awk '/^static / {
        line = $0
        gsub(/__attribute__\(\([^)]*\)?\)\) */, "", line)
        if (match(line, /^static [^=;(]*[ *][a-z_0-9]+\(/)) {
            name = substr(line, 1, RLENGTH - 1)
            sub(/.*[ *]/, "", name)
            if (!((name, FILENAME) in seen)) {
                seen[name, FILENAME] = 1
                files[name] = files[name] " " FILENAME
                count[name]++
            }
        }
    }
    END {
        for (name in count)
            if (count[name] > (name ~ /_/ ? 3 : 1)) {
                print "static " name "() stands in" files[name]
                bad = 1
            }
        exit bad
    }' $(find common kernels server supervisor -name '*.[ch]') || bad=1
# A source file says first what it is for and who calls it.
# shellcheck disable=SC2046 # names without spaces
awk 'FNR == 1 { if ($0 !~ /^\/\*/) { print FILENAME ": begins without a comment"; bad = 1 } nextfile }
    END { exit bad }' $(find common kernels server supervisor tests \
    -name '*.c' -o -name '*.cu' -o -name '*.cuh') || bad=1
exit $bad
