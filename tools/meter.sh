#!/bin/bash
# Work on something of which a client or a model's file chose the size is paid for (common/work.h). tools/meter.py finds the functions
# of server/api and server/text with such a parameter, and knows why some need no meter; those below have one, also in server/grammar,
# and are never called without one in the server.
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
server/api/openai.h openai_parse
server/text/chat.h chat_render
server/text/rx.h rx_work_new
"
bad=0
python3 tools/meter.py || bad=1
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

# Bodies are read by somebody who pays, and their texts become tokens at the same expense.
while read -r c; do
  if tr '\n' ' ' <"$c" | grep -oE '\b(openai_parse|chat_render)\([^;]*;' | grep -q '[,(] *NULL'; then
    echo "$c: calls openai_parse() or chat_render() without a meter"
    bad=1
  fi
done < <(grep -rlE '\bopenai_parse\(|\bchat_render\(' --include='*.c' server || true)
while read -r c; do
  # "final" of harmony is the program's own text
  if [ "$(grep -c 'struct token_vec [a-z]* = {' "$c")" -gt \
    "$(grep -cE '\.work = |struct token_vec name = |struct token_vec tokens = ' "$c")" ]; then
    echo "$c: a token_vec for tokenizer_encode() without .work"
    bad=1
  fi
done < <(grep -rl 'tokenizer_encode' --include='*.c' server/api server/net || true)
for w in server/text/jinja/run.c:pay server/text/chat.c:work server/text/tokenizer.c:pay; do
  if ! grep -q "\.${w#*:} = " "${w%:*}"; then
    echo "${w%:*}: does not hand its meter on"
    bad=1
  fi
done

# A set of expressions that is begun gets its meter at once.
while read -r c; do
  if [ "$(grep -c 'expr_init(&' "$c")" -ne "$(grep -c 'set\.work = ' "$c")" ]; then
    echo "$c: expr_init() without .work behind it"
    bad=1
  fi
done < <(grep -rl 'expr_init(&' --include='*.c' server || true)
# jansson's comparison is paid for nowhere: in schemas schema_equal() is.
if grep -nE '\bjson_equal\(' server/grammar/schema*.c | grep -v 'schema_merge.c.*return json_equal(a, b) != 0' |
  grep -v 'schema_tools.c.*json_equal(only, name)'; then
  echo "use schema_equal(), which is paid for"
  bad=1
fi
[ "$bad" -eq 0 ] && echo "  ok    what clients choose the size of has a meter"
exit "$bad"
