#!/bin/bash
# Who works on what a client or a model's file chose the size of is paid for (common/work.h): the functions below have a meter
# among their arguments, and nobody in the server hands them none. A function that is written later and reads what clients send
# goes into the list.
set -eu
cd "$(dirname "$0")/.."

# file of the declaration, function
metered="
server/grammar/compile.h grammar_compile
server/grammar/compile.h grammar_cache_get
server/grammar/grammar.h grammar_new
server/grammar/grammar.h grammar_warm
server/grammar/near.h near_make
server/api/complete.h form_grammar
"
bad=0
while read -r file name; do
  [ -n "$name" ] || continue
  if ! tr '\n' ' ' <"$file" | grep -Eq "[ *]$name\([^;]*struct ek_work \*"; then
    echo "$file: $name() takes what a client sent, and has no meter (struct ek_work)"
    bad=1
  fi
  calls=$(grep -rlE "\b$name\(" --include='*.c' server || true)
  for c in $calls; do
    if tr '\n' ' ' <"$c" | grep -oE "\b$name\([^;]*;" | grep -Eq 'NULL, *(&|ret_)(g|grammar|ret_grammar)\b'; then
      echo "$c: calls $name() without a meter"
      bad=1
    fi
  done
done <<<"$metered"

# A set of expressions that is begun gets its meter at once.
for c in $(grep -rl 'expr_init(&' --include='*.c' server); do
  if [ "$(grep -c 'expr_init(&' "$c")" -ne "$(grep -c 'set\.work = ' "$c")" ]; then
    echo "$c: expr_init() without .work behind it"
    bad=1
  fi
done
# jansson's comparison is paid for nowhere: in schemas schema_equal() is.
if grep -nE '\bjson_equal\(' server/grammar/schema*.c | grep -v 'schema_merge.c.*return json_equal(a, b) != 0' |
  grep -v 'schema_tools.c.*json_equal(only, name)'; then
  echo "use schema_equal(), which is paid for"
  bad=1
fi
[ "$bad" -eq 0 ] && echo "  ok    what clients choose the size of has a meter"
exit "$bad"
