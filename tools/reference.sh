#!/bin/sh
# The reference pages from the programs' own tables: what stands between the lines BEGIN GENERATED
# and END GENERATED of docs/man, docs/options.md, docs/limits.md, docs/metrics.md, docs/control.md, docs/signatures.md and packaging/evenkeel.catalog, the example file of
# evenkeel-server, and evenkeelctl's completions for shells. With --check nothing is written and a difference is a failure; so is an alert
# that the runbook does not explain.
set -eu
B=${B:-build/release}
check=0
[ "${1:-}" != --check ] || check=1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0

for format in roff yaml markdown; do
    "$B/evenkeel-server" --print-options $format >"$tmp/server.$format"
    "$B/evenkeeld" --print-options $format >"$tmp/daemon.$format"
done
"$B/evenkeel-server" --print-metrics >"$tmp/server.metrics"
"$B/evenkeeld" --print-metrics >"$tmp/daemon.metrics"
for command in kernels engine serve compare replay; do
    "$B/evenkeel-bench" $command --print-options roff >"$tmp/bench.$command"
done

# put FILE NEW: FILE becomes NEW, or with --check must be it already
put() {
    if [ $check = 0 ]; then
        cmp -s "$2" "$1" || { cp "$2" "$1" && echo "  wrote $1"; }
    elif ! diff -u "$1" "$2"; then
        echo "$1 differs from what the programs say: run tools/reference.sh"
        bad=1
    fi
}

# fill FILE NAME PART [NAME PART]...: PART goes between the lines of that NAME
fill() {
    file=$1
    cp "$file" "$tmp/page"
    shift
    while [ $# -gt 0 ]; do
        awk -v name="$1" -v part="$2" '
            / END GENERATED / && $0 ~ "GENERATED " name { while ((getline line < part) > 0) print line; skip = 0 }
            !skip { print }
            / BEGIN GENERATED / && $0 ~ "GENERATED " name { skip = 1 }' "$tmp/page" >"$tmp/next"
        mv "$tmp/next" "$tmp/page"
        shift 2
    done
    put "$file" "$tmp/page"
}

# Rows of the daemon's table as keys of the file: no dashes before, underscores within.
keys() {
    sed -E '/^\.B \\-\\-/ { s/^\.B \\-\\-/.B /; s/\\-/_/g }'
}
# Tables of rows | name | text | or | name | default | text | as lists, whose lines fit: a sentence a line, at most 120
# columns.
lists() {
    awk '!/^\|/ { print; next }
         /^\|-/ || /^\| (flag|key|option|name|code) / { next }
         { gsub(/^\| | \|$/, ""); n = split($0, c, / \| /); text = c[n < 3 ? 2 : 3]
           for (i = 4; i <= n; i++) text = text " | " c[i]
           print "- " c[1] (n > 2 && c[2] != "" ? " (" c[2] ")" : "") ": " text }' "$1" |
        sed -E '/^- /{ s/([.!?]) ([A-Z`])/\1\n  \2/g; }' |
        awk 'length <= 120 || !/^(- |  )/ { print; next }
             { n = split($0, w, " "); line = /^- / ? w[1] : "  " w[1]
               for (i = 2; i <= n; i++)
                   if (length(line) + 1 + length(w[i]) > 120) { print line; line = "  " w[i] } else line = line " " w[i]
               print line }'
}
# The lists of metrics, in the order of the program: name, type and labels, meaning.
metrics() {
    sed -E 's/^([^ ]+) ([a-z]+) \{([^}]*)\} (.*)/| `\1` | \2; \3 | \4 |/; t
            s/^([^ ]+) ([a-z]+) (.*)/| `\1` | \2 | \3 |/' "$1" >"$tmp/rows"
    lists "$tmp/rows"
}

# Rows of the server's table as keys of its file; what only prints and ends is no key.
sed -E '/^\.SS Information/,$d; /^\.B \\-\\-/ s/^\.B \\-\\-/.B /' "$tmp/server.roff" |
    awk '/^\.TP/ { held = $0; next } held != "" { drop = /^\.B config /; if (!drop) print held; held = "" }
         /^\.SS/ { drop = 0 } !drop' >"$tmp/file"
sed '/^\.SS Each server/,$d' "$tmp/daemon.roff" >"$tmp/daemon"
sed '1d; /^\.SS One server/,$d' "$tmp/daemon" | keys |
    awk '/^\.TP/ { held = $0; next } held != "" { drop = /leave_servers/; if (!drop) print held; held = "" } !drop' >"$tmp/top"
sed -n '/^\.SS Each server/,/^\.SS Controller/ { /^\.SS/d; p }' "$tmp/daemon.roff" | keys >"$tmp/each"
sed '1,/^\.SS Controller/d' "$tmp/daemon.roff" | keys >"$tmp/policy"
for part in file daemon top each policy; do
    [ -s "$tmp/$part" ] || { echo "tools/reference.sh: no rows of $part: a heading of the option tables has another name"; exit 1; }
done
fill docs/man/evenkeel-server.1 options "$tmp/server.roff"
fill docs/man/evenkeel.yaml.5 keys "$tmp/file"
fill docs/man/evenkeeld.8 options "$tmp/daemon"
fill docs/man/evenkeeld.yaml.5 top "$tmp/top" server "$tmp/each" policy "$tmp/policy"
fill docs/man/evenkeel-bench.1 kernels "$tmp/bench.kernels" engine "$tmp/bench.engine" \
    serve "$tmp/bench.serve" compare "$tmp/bench.compare" replay "$tmp/bench.replay"
"$B/evenkeel-server" --print-limits >"$tmp/limits"
fill docs/limits.md limits "$tmp/limits"
# for the fuzzer of HTTP: each limit, and one more
{
    echo "# From the table of limits; written by tools/reference.sh."
    awk -F'|' 'NR > 2 { split($3, v, " "); printf "\"%d\"\n\"%d\"\n", v[1], v[1] + 1 }' "$tmp/limits" | sort -u
} >"$tmp/dict"
[ -e tests/fuzz/http.dict ] || : >tests/fuzz/http.dict
put tests/fuzz/http.dict "$tmp/dict"
"$B/evenkeelctl" --print-options roff >"$tmp/ctl.roff"
"$B/evenkeelctl" --print-options markdown >"$tmp/ctl.markdown"
"$B/evenkeelctl" diagnose --page >"$tmp/catalog"
fill docs/man/evenkeelctl.1 verbs "$tmp/ctl.roff"
for shell in bash zsh fish; do
    "$B/evenkeelctl" --print-completion $shell >"$tmp/complete.$shell"
done
put packaging/completions/evenkeelctl.bash "$tmp/complete.bash"
put packaging/completions/_evenkeelctl "$tmp/complete.zsh"
put packaging/completions/evenkeelctl.fish "$tmp/complete.fish"
for of in server daemon ctl; do
    lists "$tmp/$of.markdown" >"$tmp/$of.list"
done
fill docs/options.md server "$tmp/server.list" daemon "$tmp/daemon.list" ctl "$tmp/ctl.list"
fill docs/signatures.md catalog "$tmp/catalog"
for format in markdown catalog; do
    "$B/evenkeeld" --print-reasons $format >"$tmp/reasons.$format"
done
lists "$tmp/reasons.markdown" >"$tmp/reasons.list"
fill docs/control.md reasons "$tmp/reasons.list"
fill packaging/evenkeel.catalog reasons "$tmp/reasons.catalog"
"$B/evenkeelctl" plan --page >"$tmp/cards"
fill docs/planning.md cards "$tmp/cards"

metrics "$tmp/server.metrics" >"$tmp/m.server"
metrics "$tmp/daemon.metrics" >"$tmp/m.daemon"
fill docs/metrics.md server "$tmp/m.server" daemon "$tmp/m.daemon"
for of in server daemon; do
    sed -E 's/-/\\-/g; s/^([^ ]+) ([a-z]+) \{([^}]*)\} (.*)/.TP\n.BR \1 " (\2; \3)"\n\4/; t
            s/^([^ ]+) ([a-z]+) (.*)/.TP\n.BR \1 " (\2)"\n\3/' "$tmp/$of.metrics" >"$tmp/roff.$of"
done
fill docs/man/evenkeel-metrics.7 server "$tmp/roff.server" daemon "$tmp/roff.daemon"

{
    echo "# evenkeel-server: all keys with their defaults. Use it with: evenkeel-server --config FILE"
    sed '/^# --- Information/,$d' "$tmp/server.yaml"
} | sed 's/ *$//' | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' >"$tmp/yaml"
[ -e docs/evenkeel-server.example.yaml ] || : >docs/evenkeel-server.example.yaml
put docs/evenkeel-server.example.yaml "$tmp/yaml"

# The packages' /etc/evenkeel/evenkeeld.yaml. snake: keys as files spell them; below: a comment under
# servers: NAME:
snake() { sed -E ':a; s/^(#[a-z0-9_]*)-([a-z0-9-]*:)/\1_\2/; ta'; }
below() {
    awk '/^# ---/ || !NF { next } /^# / { held = held "#    " $0 "\n"; next }
         { if ($0 !~ /^#(command|args|model|host|port):/) printf "%s#    %s\n", held, substr($0, 2); held = "" }'
}
{
    echo "# evenkeeld: keys with their defaults, but for those that the files in servers_dir give (command,"
    echo "# args, model, host, port). Check changes with: evenkeeld --config FILE --check-config"
    echo "# and put them into force with: systemctl reload evenkeeld. No program writes to this file."
    sed -n '/^# --- Daemon/,/^# --- One server/p' "$tmp/daemon.yaml" | sed '/^# ---/d' | snake |
        sed '/^#leave_servers/d; /^# The same as --on-stop/d; s|^#servers_dir:.*|servers_dir: /etc/evenkeel/servers:/usr/share/evenkeel/servers|'
    echo "# What evenkeeld does with a server. NAME is that of its file in servers_dir, which has its flags."
    echo "#servers:"
    echo "#  NAME:"
    sed -n '/^# --- Each server/,$p' "$tmp/daemon.yaml" | snake | below
} | sed 's/ *$//' >"$tmp/conf"
[ -e packaging/evenkeeld.yaml ] || : >packaging/evenkeeld.yaml
put packaging/evenkeeld.yaml "$tmp/conf"

# say FILE PATTERN WHAT: FILE has a line that begins with PATTERN (fixed text)
say() {
    awk -v p="$2" 'index($0, p) == 1 { f = 1 } END { exit !f }' "$1" && return
    echo "$1: $3"
    bad=1
}
for alert in $(sed -n 's/^ *- *alert: *//p' alerts/*.yml); do
    say docs/runbook.md "## $alert" "no entry for alert $alert"
done
for alert in $(sed -n 's/^## \(Evenkeel[A-Za-z]*\)$/\1/p' docs/runbook.md); do
    grep -qE "alert: *$alert\$" alerts/*.yml || { echo "docs/runbook.md: no alert is called $alert"; bad=1; }
done
if command -v groff >/dev/null; then
    for page in docs/man/*; do
        to=$(sed -n '1s/^\.so man[0-9]//p' "$page") # another name of that page
        if [ "$to" ]; then
            [ -e "docs/man$to" ] || { echo "$page: there is no docs/man$to"; bad=1; }
            continue
        fi
        said=$(groff -man -ww -z "$page" 2>&1) || said="groff failed"
        [ -z "$said" ] || { echo "$said"; bad=1; }
    done
fi
[ $bad = 0 ] && echo "  ok    the reference says what the programs say"
exit $bad
