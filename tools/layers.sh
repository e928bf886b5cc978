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
# shellcheck disable=SC2044 # no file name here has a space
for f in $(find common kernels server supervisor -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'); do
    dir=$(dirname "$f")
    case $dir in kernels/*) dir=kernels ;; esac
    allowed=$(echo "$rules" | awk -v d="$dir" '$1 == d { $1 = ""; print }')
    [ -n "$allowed" ] || { echo "$f: folder $dir has no rule in tools/layers.sh"; bad=1; }
    # shellcheck disable=SC2013 # names without spaces
    for inc in $(sed -n 's/^#include "\(.*\)"/\1/p' "$f"); do
        to=$(dirname "$inc")
        case $to in kernels/*) case $dir:$inc in kernels:*|server/bench:*|server:kernels/mpi/cluster.h|server:kernels/apart.h|server:kernels/fingerprint.h) to=kernels ;; esac ;; esac
        case " $allowed " in
        *" $to "*) ;;
        *) echo "$f: may not include $inc"; bad=1 ;;
        esac
        case $dir:$inc in
        kernels:*|server/bench:*|*:kernels/backend.h|server:kernels/registry.h) ;; # evenkeel-bench measures single kernels, too
        *:kernels/*)
            case $inc in
            kernels/step.h|kernels/graph.h|kernels/product_forms.h) ;; # what backend.h is made of: plain data
            kernels/mpi/cluster.h|kernels/apart.h|kernels/fingerprint.h) ;; # of the server's start alone, by the rule above
            *) echo "$f: only kernels/backend.h may be included"; bad=1 ;;
            esac ;;
        esac
        case $dir:$inc in
        kernels:*) ;;
        *cuda*|*nccl*) echo "$f: CUDA belongs below kernels/cuda"; bad=1 ;;
        esac
    done
done
# Modules that still include each other (tools/circles.awk): this list only becomes shorter.
known='
kernels/cuda/cuda kernels/cuda/offload
kernels/cuda/gemv kernels/cuda/packed
'
# shellcheck disable=SC2046
awk -v known="$known" -f tools/circles.awk $(find common kernels server supervisor \
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
# A source file says first what it is for and who calls it.
# shellcheck disable=SC2046 # names without spaces
awk 'FNR == 1 { if ($0 !~ /^\/\*/) { print FILENAME ": begins without a comment"; bad = 1 } nextfile }
    END { exit bad }' $(find common kernels server supervisor tests \
    -name '*.c' -o -name '*.cu' -o -name '*.cuh') || bad=1
exit $bad
