/*
 * Every feature of the template language, each with what jinja2 makes of it, set up as transformers
 * sets it up (good), and what is refused with which message (bad).
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/jinja/jinja.h"

struct jinja_one {
    const char *source, *context, *expected; /* context: JSON or NULL */
};

static const struct jinja_one good[] = {
    /* text, whitespace, comments */
    {"plain", NULL, "plain"},
    {"", NULL, ""},
    {"one line\n", NULL, "one line"},
    {"two\n\n", NULL, "two\n"},
    {"a\r\nb\rc", NULL, "a\nb\nc"},
    {"a\n  {% if true %}\n  b\n  {% endif %}\nc", NULL, "a\n  b\nc"},
    {"a {%- if true -%} \n b {%- endif -%} \n c", NULL, "abc"},
    {"a\n  {%+ if true %}\n b{% endif +%}\nc", NULL, "a\n   b\nc"},
    {"  {{ 1 }}  \n  {{- 2 -}}  \n 3", NULL, "  123"},
    {"{{ 1 }}\n{{ 2 }}\n", NULL, "1\n2"},
    {"a\n  {# note #}\nb", NULL, "a\nb"},
    {"a {#- note -#} b", NULL, "ab"},
    {"{# a #}{#- b #}x{#+ c +#}\ny", NULL, "x\ny"},
    {"{% raw %}{{ x }}{% y %}{% endraw %}", NULL, "{{ x }}{% y %}"},
    {"a  {%- raw -%}  {{ x }} {%- endraw -%}  b", NULL, "a{{ x }}b"},
    {"x\n {% raw %}\n y\n {% endraw %}\nz", NULL, "x\n\n y\nz"},
    {"{{ '{{' }}{{ \"}}\" }}{ { }%}", NULL, "{{}}{ { }%}"},
    {"  {% set x = 1 %}\n  {{ x }}", NULL, "  1"},
    {"a {% set x = 1 %}\nb", NULL, "a b"},
    {"\n\n{% if 1 %}\n\nx{% endif %}", NULL, "\n\n\nx"},
    {"\t{% if 1 %}\302\240x{% endif -%}\342\200\203 y", NULL, "\302\240xy"},
    {"{%- set a = 1 -%}\n{%- set b = 2 -%}\n{{ a + b }}", NULL, "3"},
    /* literals */
    {"{{ 1 }} {{ 1_000 }} {{ 1.5 }} {{ 1e3 }} {{ 2.5e-7 }} {{ true }} {{ False }} {{ none }} {{ "
     "None }}",
     NULL, "1 1000 1.5 1000.0 2.5e-07 True False None None"},
    {"{{ 'a\\n\\t\\\\\\'\\\"\\x41\\u00e9\\U0001F600\\101\\q' }}", NULL,
     "a\n\t\\'\"A\303\251\360\237\230\200A\\q"},
    {"{{ 'a' 'b' \"c\" }}", NULL, "abc"},
    {"{{ 'it''s' }}", NULL, "its"},
    {"{{ [1, 'a', none, [2.0]] }}", NULL, "[1, 'a', None, [2.0]]"},
    {"{{ (1,) }}{{ () }}{{ (1, 2) }}{{ 1, 2 }}", NULL, "(1,)()(1, 2)(1, 2)"},
    {"{{ {'a': 1, 2: [3], 'b': {'c': none}} }}", NULL, "{'a': 1, 2: [3], 'b': {'c': None}}"},
    {"{{ [1, 2,] }}{{ {'a': 1,} }}", NULL, "[1, 2]{'a': 1}"},
    {"{{ {'a': {'b': {}}} }}", NULL, "{'a': {'b': {}}}"},
    {"{{ {'a': 1, 'a': 2} }}", NULL, "{'a': 2}"},
    {"{{ ['it\\'s', 'say \"x\"', 'a\\nb', '\303\251', '\\u200b', '\\\\'] }}", NULL,
     "[\"it's\", 'say \"x\"', 'a\\nb', '\303\251', '\\u200b', '\\\\']"},
    {"{{ 1.0 }} {{ 100.0 }} {{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 0.1 + 0.2 }} {{ "
     "-0.5 }} {{ 1e22 }} {{ 123456.789 }} {{ 1/3 }}",
     NULL,
     "1.0 100.0 1e+16 1000000000000000.0 0.0001 1e-05 0.30000000000000004 -0.5 1e+22 123456.789 "
     "0.3333333333333333"},
    /* operators */
    {"{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ "
     "-7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }}",
     NULL, "3 9 3.5 3 -4 1 2 1024 0.5"},
    {"{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** 0.5 }} {{ 1 + 1.5 }} {{ true + 1 }} {{ 3 * 1.0 }}",
     NULL, "3.0 0.5 1.4142135623730951 2.5 2 3.0"},
    {"{{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ - - 1 }} {{ +1 }} {{ -1 | abs }}", NULL, "4 64 1 1 1"},
    {"{{ 'a' ~ 1 ~ none ~ [1] ~ nope }}", NULL, "a1None[1]"},
    {"{{ 'a' + 'b' * 3 }} {{ 3 * 'ab' }} {{ [1] + [2] }} {{ [0] * 3 }} {{ (1,) + (2,) }} {{ 'x' * "
     "-1 }}",
     NULL, "abbb ababab [1, 2] [0, 0, 0] (1, 2) "},
    {"{{ 1 ~ 2 ~ 3 * 2 }}", NULL, "126"},
    {"{{ 10 - 2 - 3 }} {{ 100 / 10 / 2 }}", NULL, "5 5.0"},
    {"{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} "
     "{{ 'a' != 'b' }} {{ [1, 2] < [1, 3] }} {{ (1,) <= (1,) }}",
     NULL, "True True False True True True True True True"},
    {"{{ 1 in [1] }} {{ 'a' in 'cat' }} {{ 'x' not in {'x': 1} }} {{ '' in 'a' }} {{ 1 in nope }} "
     "{{ none in [none] }} {{ 2 in range(3) }}",
     NULL, "True True False True False True True"},
    {"{{ not 1 }} {{ not 0 and 1 }} {{ 1 and 0 or 'x' }} {{ '' or 'd' }} {{ not not [] }} {{ 0 or "
     "none }} {{ 1 and 'last' }}",
     NULL, "False 1 x d False None last"},
    {"{{ not 1 == 2 }} {{ not 'a' in 'b' }}", NULL, "True True"},
    {"{{ 'a' if x else 'b' }} {{ 'a' if not x }}|{{ 1 if 0 else 2 if 0 else 3 }}", "{\"x\": 0}",
     "b a|3"},
    {"{{ [1] == [1] }} {{ {'a': 1} == {'a': 1.0} }} {{ [1] == (1,) }} {{ nope == nada }} {{ none "
     "== false }} {{ '1' == 1 }}",
     NULL, "True True False True False False"},
    {"{{ '\303\251' < 'z' }} {{ '%s-%d-%.2f-%5s|%-5s|%05d' % ('a', 3, 1.005, 'r', 'l', 42) }} {{ "
     "'%s%%' % 5 }} {{ '%r' % 'x' }}",
     NULL, "False a-3-1.00-    r|l    |00042 5% 'x'"},
    /* attributes, elements, slices */
    {"{{ m.a }} {{ m['a'] }} {{ m.b.c[0] }} {{ m.nope }} {{ m['nope'] }} {{ m.b.c[-1] }} {{ "
     "m.b.c.1 }}",
     "{\"m\": {\"a\": 1, \"b\": {\"c\": [1, 2]}}}", "1 1 1   2 2"},
    {"{{ l[0] }} {{ l[-1] }} {{ l[9] }} {{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[::2] }} {{ "
     "l[5:] }} {{ l[-2:] }} {{ l[3:1:-1] }} {{ l[:none] }}",
     "{\"l\": [1, 2, 3, 4]}",
     "1 4  [2, 3, 4] [1, 2, 3] [4, 3, 2, 1] [1, 3] [] [3, 4] [4, 3] [1, 2, 3, 4]"},
    {"{{ s[0] }} {{ s[-1] }} {{ s[1:3] }} {{ s[::-1] }} {{ s[9] }} {{ s[:100] }} {{ s[::2] }} {{ "
     "s|length }}",
     "{\"s\": \"a\303\251z\360\237\231\202x\"}",
     "a x \303\251z x\360\237\231\202z\303\251a  a\303\251z\360\237\231\202x azx 5"},
    {"{{ m.items() | list }} {{ m['items'] }}", "{\"m\": {\"items\": 1}}", "[('items', 1)] 1"},
    {"{{ m.get('a') }} {{ m.get('z') }} {{ m.get('z', 3) }} {{ m.keys() | list }} {{ m.values() | "
     "list }} {{ m.items() | list }}",
     "{\"m\": {\"a\": 1, \"b\": 2}}", "1 None 3 ['a', 'b'] [1, 2] [('a', 1), ('b', 2)]"},
    {"{{ m.keys() }} {{ m.items() }} {{ m.keys()[0] }}|{{ m.keys() | length }}",
     "{\"m\": {\"a\": 1}}", "dict_keys(['a']) dict_items([('a', 1)]) |1"},
    {"{{ x.y is defined }} {{ x['y'] is defined }} {{ z is defined }} {{ x.append is defined }}",
     "{\"x\": []}", "False False False False"},
    {"{{ (1, 2)[0] }} {{ 'abc'[1] }} {{ [[1, 2], [3]][0][1] }} {{ {'a': 1}['a'] }} {{ {1: 'x'}[1] "
     "}} {{ {true: 'y'}[1] }}",
     NULL, "1 b 2 1 x y"},
    {"{{ none.x }}|{{ 5 .x }}|{{ none['x'] }}", NULL, "||"},
    /* string methods */
    {"[{{ '  a '.strip() }}] [{{ ' a '.lstrip() }}] [{{ ' a '.rstrip() }}] [{{ 'xxaxx'.strip('x') "
     "}}] [{{ 'abcba'.lstrip('ba') }}] [{{ '\\n\\u3000a'.strip() }}]",
     NULL, "[a] [a ] [ a] [a] [cba] [a]"},
    {"{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(none, 1) }} {{ "
     "'a-b-c'.split('-', 1) }} {{ 'a-b-c'.rsplit('-', 1) }} {{ ''.split(',') }} {{ ''.split() }} "
     "{{ 'a b  c '.split(' ', 1) }} {{ 'abc'.split('</x>')[-1] }}",
     NULL,
     "['a', 'b', '', 'c'] ['a', 'b'] ['a', 'b c'] ['a', 'b-c'] ['a-b', 'c'] [''] [] ['a', 'b  c '] "
     "abc"},
    {"{{ 'a b c '.split(maxsplit=1) }} {{ ' a'.split(none, 0) }}", NULL, "['a', 'b c '] ['a']"},
    {"{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }} "
     "{{ 'abc'.endswith('') }}",
     NULL, "True True True True"},
    {"{{ 'aXbX'.replace('X', '-') }} {{ 'aXbX'.replace('X', '-', 1) }} {{ 'ab'.replace('', '.') }} "
     "{{ '\303\251'.replace('', '.') }}",
     NULL, "a-b- a-bX .a.b. .\303\251."},
    {"{{ 'a\303\251'.upper() }} {{ 'A\303\211'.lower() }} {{ \"they're bill's\".title() }} {{ "
     "'hELLO wORLD'.capitalize() }} {{ 'stra\303\237e'.upper() }} {{ '\307\206'.title() }}",
     NULL, "A\303\211 a\303\251 They'Re Bill'S Hello world STRASSE \307\205"},
    {"{{ ', '.join(['a', 'b']) }} {{ '-'.join('xyz') }} {{ 'a\303\251bc'.find('b') }} {{ "
     "'abc'.find('z') }} {{ 'abab'.rfind('ab') }} {{ 'aaaa'.count('aa') }} {{ 'abc'.index('c') }} "
     "{{ 'aba'.find('a', 1) }}",
     NULL, "a, b x-y-z 2 -1 2 2 2 2"},
    {"{{ '{} and {}'.format(1, 'x') }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x}'.format(x=3) }} {{ "
     "'{{}}{}'.format(none) }}",
     NULL, "1 and x ba 3 {}None"},
    {"{{ 'a\\nb\\r\\nc'.splitlines() }} {{ 'a\\n'.splitlines(true) }} {{ 'k=v=w'.partition('=') }} "
     "{{ 'k=v=w'.rpartition('=') }} {{ 'kv'.partition('=') }} {{ 'kv'.rpartition('=') }}",
     NULL,
     "['a', 'b', 'c'] ['a\\n'] ('k', '=', 'v=w') ('k=v', '=', 'w') ('kv', '', '') ('', '', 'kv')"},
    {"{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.txt'.removesuffix('.txt') }} {{ "
     "'12'.isdigit() }} {{ 'ab1'.isalpha() }} {{ 'ab1'.isalnum() }} {{ ' '.isspace() }} {{ "
     "''.isdigit() }}",
     NULL, "x x True False True True False"},
    {"{{ [1, 2, 1].count(1) }} {{ [3, 4].index(4) }} {{ (1, 1).count(1) }}", NULL, "2 1 2"},
    /* statements */
    {"{% set x = 1 %}{% set y, z = 2, 3 %}{% set (p, q) = [4, 5] %}{{ x }}{{ y }}{{ z }}{{ p }}{{ "
     "q }}",
     NULL, "12345"},
    {"{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]{{ x is string }}", NULL, "[a1b]True"},
    {"{% set x | upper | trim %} ab {% endset %}[{{ x }}]", NULL, "[AB]"},
    {"{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{% set ns.new = [1] %}{{ ns.a "
     "}}{{ ns.b }}{{ ns.new }}{{ ns.nope }}",
     NULL, "2x[1]"},
    {"{% set ns = namespace({'k': 1}) %}{{ ns.k }}{% set ns = namespace() %}{% for i in [1,2] %}{% "
     "set ns.x = i %}{% endfor %}{{ ns.x }}{{ ns }}",
     NULL, "12<Namespace {'x': 2}>"},
    {"{% if a %}A{% elif b %}B{% elif c %}C{% else %}D{% endif %}", "{\"b\": 0, \"c\": 1}", "C"},
    {"{% if 1 %}{% set x = 5 %}{% endif %}{{ x }}", NULL, "5"},
    {"{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}", NULL, "21"},
    {"{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}", NULL,
     "1212"},
    {"{% for i in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ "
     "loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}|{% endfor %}",
     NULL, "1032TrueFalse3|2121FalseFalse3|3210FalseTrue3|"},
    {"{% for i in 'abc' %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }}{{ loop.cycle('x', 'y') "
     "}} {{ loop.previtem is defined }};{% endfor %}",
     NULL, "<a>bx False;a<b>cy True;b<c>x True;"},
    {"{% for i in [] %}x{% else %}none{% endfor %}{% for i in [1] %}x{% else %}none{% endfor %}",
     NULL, "nonex"},
    {"{% for i in range(6) if i % 2 %}{{ i }}/{{ loop.length }}{{ ',' if not loop.last }}{% else "
     "%}e{% endfor %}",
     NULL, "1/3,3/3,5/3"},
    {"{% for i in [1] if i > 5 %}x{% else %}none{% endfor %}", NULL, "none"},
    {"{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}{% for k in m %}{{ k }}{% endfor %}{% "
     "for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
     "{\"m\": {\"a\": 1, \"b\": 2}}", "a=1;b=2;ab123"},
    {"{% for i in [1, 2] %}{% for j in [1, 2] %}{{ loop.index }}{{ loop.depth }}{{ loop.depth0 "
     "}}{% endfor %}{{ loop.index }}{{ loop.depth }} {% endfor %}",
     NULL, "11021011 11021021 "},
    {"{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% "
     "endif %}{{ i }}{% endfor %}",
     NULL, "013"},
    {"{% for i in range(3) %}{% for j in range(3) %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ "
     "j }} {% endfor %}{% endfor %}",
     NULL, "00 10 20 "},
    {"{% for x in nope %}x{% else %}empty{% endfor %}{% for x in {} %}{% endfor %}", NULL, "empty"},
    {"{% for m in ms %}{{ loop.nextitem.role if loop.nextitem is defined else 'end' }} {% endfor "
     "%}",
     "{\"ms\": [{\"role\": \"a\"}, {\"role\": \"b\"}]}", "b end "},
    {"{{ range(3) | list }}{{ range(1, 4) | list }}{{ range(5, 0, -2) | list }}{{ range(0) | list "
     "}}{{ range(3) }}{{ range(5)[1:3] | list }}{{ range(4)[-1] }}",
     NULL, "[0, 1, 2][1, 2, 3][5, 3, 1][]range(0, 3)[1, 2]3"},
    {"{% macro m(a, b=2, c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ "
     "m(b=5, a=4) }}{{ m(1) | length }}{{ m() }}",
     NULL, "[121][131][454]5[2]"},
    {"{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% set x = 2 %}{{ m() }}", NULL,
     "12"},
    {"{% macro m(n) %}{{ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}", NULL,
     "543210"},
    {"{% macro list(x) %}({% for i in x %}{{ caller(i) }}{% endfor %}){% endmacro %}{% call(i) "
     "list([1, 2]) %}<{{ i }}>{% endcall %}",
     NULL, "(<1><2>)"},
    {"{% macro box() %}[{{ caller() }}]{% endmacro %}{% set y = 7 %}{% call box() %}in {{ y }}{% "
     "endcall %}",
     NULL, "[in 7]"},
    {"{% macro a() %}{% set z = 1 %}{{ z }}{% endmacro %}{{ a() }}{{ z }}", NULL, "1"},
    {"{% macro a(x) %}{{ b(x) }}{% endmacro %}{% macro b(x) %}b{{ x }}{% endmacro %}{{ a(1) }}",
     NULL, "b1"},
    {"{% filter upper %}a{{ 'b' }}{% endfilter %}{% filter replace('a', 'x') | trim %} banana {% "
     "endfilter %}",
     NULL, "ABbxnxnx"},
    {"{% with a = 1, b = 2 %}{{ a }}{{ b }}{% set c = 3 %}{% endwith %}{{ a }}{{ c }}", NULL, "12"},
    {"{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", NULL, "211"},
    {"{% generation %}x{% set y = 1 %}{% endgeneration %}{{ y }}", NULL, "x"},
    {"{% set x = namespace(l=[]) %}{% for i in [1,2] %}{% set x.l = x.l + [i] %}{% endfor %}{{ x.l "
     "}}",
     NULL, "[1, 2]"},
    {"{{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }} {{ dict({'a': 1}, b=2) }} {{ dict(**{'z': 1}) }} "
     "{{ range(*[1, 3]) | list }}",
     NULL, "{'a': 1, 'b': 2} {'x': 1} {'a': 1, 'b': 2} {'z': 1} [1, 2]"},
    {"{% set a = [1, 2] %}{% set b = a[::-1] %}{{ a }}{{ b }}{% if a is sequence and b %}ok{% "
     "endif %}",
     NULL, "[1, 2][2, 1]ok"},
    {"{% if x is defined and x %}1{% elif x is not defined %}2{% endif %}{{ 'a' if x is defined "
     "else 'b' }}",
     NULL, "2b"},
    /* filters */
    {"[{{ '  a ' | trim }}] [{{ 'xax' | trim('x') }}] {{ [1, 2] | length }} {{ "
     "'\303\251\360\237\231\202' | count }} {{ {'a': 1} | length }} {{ nope | length }}",
     NULL, "[a] [a] 2 2 1 0"},
    {"{{ [1, 2] | join(', ') }} {{ [1, none] | join }} {{ 'abc' | join('-') }} {{ [{'a': 1}, {'a': "
     "2}] | join('+', attribute='a') }} {{ nope | join(',') }}",
     NULL, "1, 2 1None a-b-c 1+2 "},
    {"{{ 'aBc' | upper }} {{ 'aBc' | lower }} {{ \"it's a-test (of)\" | title }} {{ 'aBC dEF' | "
     "capitalize }} {{ 5 | upper }}",
     NULL, "ABC abc It's A-Test (Of) Abc def 5"},
    {"{{ 'aaa' | replace('a', 'b') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 1 | string }} {{ none "
     "| string }} {{ [1] | string | length }}",
     NULL, "bbb bba 1 None 3"},
    {"{{ nope | default('d') }} {{ none | default('d') }} {{ none | default('d', true) }} {{ '' | "
     "d('x', boolean=true) }} {{ 0 | default(1) }} {{ nope | default }}|{{ a.b | default('z') }}",
     "{\"a\": {}}", "d None d x 0 |z"},
    {"{{ [1, 2] | first }} {{ [1, 2] | last }} {{ 'abc' | first }} {{ 'abc' | last }} {{ [] | "
     "first }}|{{ {'a': 1} | first }}",
     NULL, "1 2 a c |a"},
    {"{{ 'abc' | list }} {{ {'a': 1} | list }} {{ (1, 2) | list }} {{ nope | list }}", NULL,
     "['a', 'b', 'c'] ['a'] [1, 2] []"},
    {"{{ [{'a': 1}, {'a': 2}] | map(attribute='a') | list }} {{ ['a', 'b'] | map('upper') | list "
     "}} {{ [{}] | map(attribute='x', default=9) | list }} {{ [[1, 2]] | map('join', '-') | list "
     "}} {{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }} {{ none | map('upper') | list }}",
     NULL, "[1, 2] ['A', 'B'] [9] ['1-2'] [1] []"},
    {"{{ [1, 2, 3, 4] | select('odd') | list }} {{ [0, 1] | select | list }} {{ [1, 2, 3] | "
     "reject('gt', 1) | list }} {{ ms | selectattr('r', 'equalto', 'a') | list }} {{ ms | "
     "rejectattr('r', '==', 'a') | list }} {{ ms | selectattr('x') | list }} {{ ms | "
     "selectattr('x', 'defined') | list | length }}",
     "{\"ms\": [{\"r\": \"a\"}, {\"r\": \"b\", \"x\": 1}]}",
     "[1, 3] [1] [1] [{'r': 'a'}] [{'r': 'b', 'x': 1}] [{'r': 'b', 'x': 1}] 1"},
    {"{{ [1] | select('odd') | first }} {% if [] | select %}generators are true{% endif %} {% set "
     "g = [1, 2] | select %}{{ g | first }}{{ g | list }}{{ g | list }}",
     NULL, "1 generators are true 1[2][]"},
    {"{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A'] | "
     "sort(case_sensitive=true) }} {{ [1, 2] | sort(reverse=true) }} {{ [{'n': 2, 'k': 'x'}, {'n': "
     "1}, {'n': 2, 'k': 'y'}] | sort(attribute='n') }} {{ [(1, 'b'), (1, 'a')] | sort }}",
     NULL,
     "[1, 2, 3] ['A', 'b', 'c'] ['A', 'b'] [2, 1] [{'n': 1}, {'n': 2, 'k': 'x'}, {'n': 2, 'k': "
     "'y'}] [(1, 'a'), (1, 'b')]"},
    {"{{ [1, 2, 3] | reverse | list }} {{ 'a\303\251b' | reverse }} {{ ['a', 'A', 'b', 'a'] | "
     "unique | list }} {{ [1, 1, 2] | unique | list }}",
     NULL, "[3, 2, 1] b\303\251a ['a', 'b'] [1, 2]"},
    {"{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ '3.9' | int }} {{ 3.9 | int }} {{ "
     "'0x1f' | int(base=16) }} {{ true | int }} {{ none | int }} {{ '-5' | int }} {{ '1.5' | float "
     "}} {{ 'x' | float }} {{ 2 | float }} {{ ' 7 ' | int }} {{ '1e3' | float }}",
     NULL, "42 0 7 3 3 31 1 0 -5 1.5 0.0 2.0 7 1000.0"},
    {"{{ {'b': 1, 'a': 2} | items | list }} {{ {'b': 1, 'A': 2, 'c': 0} | dictsort }} {{ {'b': 1, "
     "'a': 2} | dictsort(by='value') }} {{ {'b': 1, 'a': 2} | dictsort(reverse=true) }} {{ nope | "
     "items | list }}",
     NULL,
     "[('b', 1), ('a', 2)] [('A', 2), ('b', 1), ('c', 0)] [('b', 1), ('a', 2)] [('b', 1), ('a', "
     "2)] []"},
    {"{{ 'a\\nb\\n\\nc' | indent }} {{ 'a\\nb' | indent(2, true) }} {{ 'a\\n\\nb' | indent(1, "
     "blank=true) }} {{ 'a\\nb' | indent('> ') }} {{ 'a\\nb\\n' | indent(2) }}|{{ '\\na' | "
     "indent(2, first=true) }}|{{ '' | indent }}",
     NULL, "a\n    b\n\n    c   a\n  b a\n \n b a\n> b a\n  b\n|  \n  a|"},
    {"{{ -3 | abs }} {{ 2.5 | round }} {{ 2.567 | round(2) }} {{ 2.1 | round(method='ceil') }} {{ "
     "2.9 | round(0, 'floor') }} {{ 3 | round }} {{ [1, 2, 3] | sum }} {{ [{'a': 1}, {'a': 4}] | "
     "sum(attribute='a') }} {{ [3, 1] | min }} {{ ['b', 'C'] | max }} {{ [1] | sum(start=10) }} {{ "
     "[] | min }}",
     NULL, "3 2.0 2.57 3.0 2.0 3 6 5 1 C 11 "},
    {"{{ '<a b=\"c\">&\\'' | escape }} {{ '<b>' | e }} {{ '<b>' | safe }} {{ ('<a>' | safe) + "
     "'<b>' }} {{ '<a>' + ('<b>' | safe) }} {{ ('<a>' | safe) ~ '<b>' }} {{ '<' | escape | escape "
     "}}",
     NULL, "&lt;a b=&#34;c&#34;&gt;&amp;&#39; &lt;b&gt; <b> <a>&lt;b&gt; &lt;a&gt;<b> <a><b> &lt;"},
    {"{{ '%s=%s' | format('a', 1) }} {{ 'a b  c' | wordcount }} {{ 'ab' | center(5) }}| {{ [1, 2, "
     "3] | batch(2) | list }} {{ [1, 2, 3] | batch(2, 0) | list }}",
     NULL, "a=1 3   ab | [[1, 2], [3]] [[1, 2], [3, 0]]"},
    {"{{ 'x' | attr('upper') is defined }} {{ {'a': 1} | attr('a') is defined }}", NULL,
     "True False"},
    /* tojson */
    {"{{ x | tojson }}",
     "{\"x\": {\"b\": 1, \"a\": [1.5, null, true, \"\303\251\\\"\\\\\\n\\t\\u0001/<>&'\"], \"c\": "
     "{}, \"d\": [], \"e\": 1e+20, \"f\": -0.0}}",
     "{\"b\": 1, \"a\": [1.5, null, true, \"\303\251\\\"\\\\\\n\\t\\u0001/<>&'\"], \"c\": {}, "
     "\"d\": [], \"e\": 1e+20, \"f\": -0.0}"},
    {"{{ x | tojson(indent=2) }}", "{\"x\": {\"b\": {\"c\": [1, {\"d\": []}]}, \"e\": {}}}",
     "{\n  \"b\": {\n    \"c\": [\n      1,\n      {\n        \"d\": []\n      }\n    ]\n  },\n  "
     "\"e\": {}\n}"},
    {"{{ x | tojson(ensure_ascii=true) }} {{ x | tojson(sort_keys=true) }} {{ x | "
     "tojson(separators=(',', ':')) }} {{ x | tojson(indent='\\t') }}",
     "{\"x\": {\"\303\251\": \"\360\237\231\202\", \"a\": 1}}",
     "{\"\\u00e9\": \"\\ud83d\\ude42\", \"a\": 1} {\"a\": 1, \"\303\251\": \"\360\237\231\202\"} "
     "{\"\303\251\":\"\360\237\231\202\",\"a\":1} {\n\t\"\303\251\": "
     "\"\360\237\231\202\",\n\t\"a\": 1\n}"},
    {"{{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ (1, 'a') | tojson }} {{ 'x' | tojson }} "
     "{{ 5 | tojson }} {{ none | tojson }} {{ '\\x7f\\u2028' | tojson }}",
     NULL, "{\"1\": 4, \"null\": 3, \"1.5\": 5} [1, \"a\"] \"x\" 5 null \"\177\342\200\250\""},
    {"{{ [] | tojson(indent=4) }} {{ [1, [2]] | tojson(indent=0) }}", NULL, "[] [\n1,\n[\n2\n]\n]"},
    /* tests */
    {"{% for v in vs %}{{ v is string }}{{ v is number }}{{ v is integer }}{{ v is float }}{{ v is "
     "boolean }}{{ v is none }}{{ v is mapping }}{{ v is iterable }}{{ v is sequence }}{{ v is "
     "true }}{{ v is false }}{{ v is callable }}\n{% endfor %}",
     "{\"vs\": [\"a\", 1, 1.5, true, null, {}, [], false]}",
     "TrueFalseFalseFalseFalseFalseFalseTrueTrueFalseFalseFalse\nFalseTrueTrueFalseFalseFalseFalseF"
     "alseFalseFalseFalseFalse\nFalseTrueFalseTrueFalseFalseFalseFalseFalseFalseFalseFalse\nFalseTr"
     "ueFalseFalseTrueFalseFalseFalseFalseTrueFalseFalse\nFalseFalseFalseFalseFalseTrueFalseFalseFa"
     "lseFalseFalseFalse\nFalseFalseFalseFalseFalseFalseTrueTrueTrueFalseFalseFalse\nFalseFalseFals"
     "eFalseFalseFalseFalseTrueTrueFalseFalseFalse\nFalseTrueFalseFalseTrueFalseFalseFalseFalseFals"
     "eTrueFalse\n"},
    {"{{ x is defined }} {{ x is undefined }} {{ x is none }} {{ x is string }} {{ x is iterable "
     "}} {{ x is sequence }} {{ x is mapping }}",
     NULL, "False True False False True True False"},
    {"{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is eq "
     "1 }} {{ 1 is equalto 2 }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 2 is gt 1 }} {{ 2 is ge 2 }} {{ "
     "2 is le 1 }} {{ 1 is in [1] }} {{ 'a' is not in 'b' }} {{ 1 is sameas 1 }} {{ none is sameas "
     "none }}",
     NULL, "True True True False True False True True True True False True True True True"},
    {"{{ 'a' is lower }} {{ 'A' is upper }} {{ '1' is lower }} {{ 'upper' is filter }} {{ 'odd' is "
     "test }} {{ 'zz' is filter }} {{ x is not defined and 1 }} {{ 1 is string or 2 }}",
     NULL, "True True False True True False 1 2"},
    {"{{ range(2) is iterable }} {{ range(2) is sequence }} {{ m.items() is sequence }} {{ ([1] | "
     "map('string')) is sequence }} {{ (1,) is sequence }} {{ namespace() is mapping }}",
     "{\"m\": {}}", "True True False False True False"},
    /* undefined is empty text and false */
    {"[{{ nope }}] {{ nope ~ 'x' }} {{ 'y' if nope else 'n' }} {{ nope | upper }} {{ nope | trim "
     "}} {{ [nope] }} {{ nope == '' }} {{ nope is none }} {{ nope | string }}",
     NULL, "[] x n   [Undefined] False False "},
    {"{{ [1, 2] | select('undefined') | list }} {{ nope | first }} {{ nope | sum }} {{ nope | "
     "reverse | list }} {{ nope | sort }}",
     NULL, "[]  0 [] []"},
    /* names and scopes */
    {"{% set in_x = 1 %}{% set not_y = 2 %}{{ in_x + not_y }} {{ if_z is defined }} {% set "
     "\303\251 = 3 %}{{ \303\251 }}",
     NULL, "3 False 3"},
    {"{% set range = 5 %}{{ range }}", NULL, "5"},
    {"{{ loop is defined }}{% for i in [1] %}{{ loop is defined }}{% endfor %}{{ i is defined }}",
     NULL, "FalseTrueFalse"},
    {"{% for i in [1, 2] %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}", NULL, "12"},
    {"{% for i in [1, 2, 3] %}{% if loop.first %}{% set t = 'x' %}{% endif %}{{ t }}{% endfor %}",
     NULL, "x"},
    {"{% set x = 1 %}{% set y %}{% set x = 2 %}{{ x }}{% endset %}{{ x }}{{ y }}", NULL, "12"},
    {"{% set x = 1 %}{% filter upper %}{% set x = 2 %}{{ x }}{% endfilter %}{{ x }}", NULL, "21"},
    {"{{ messages[-1]['content'].split('</think>')[-1].lstrip('\\n') }}",
     "{\"messages\": [{\"content\": \"<think>x</think>\\n\\nhi\"}]}", "hi"},
    {"{% set _ = {'a': 1}.items() %}{{ _ | length }}", NULL, "1"},
    /* what differs from Python or from what one expects */
    {"{% for i in [1, 2] %}{{ i }}{% break %}{% else %}E{% endfor %}{% for i in [1] %}{{ i }}{% "
     "continue %}{% else %}E{% endfor %}",
     NULL, "1E1E"},
    {"{{ ['<' | e] }} {{ 'a-b c_d \303\251!' | wordcount }} {{ true | round }} {{ 1.5 is lower }} "
     "{{ 'x' % [] }} {{ [range(2), range(2)] | unique | list | length }} {{ [x, x] | unique | list "
     "}}",
     NULL, "[Markup('&lt;')] 4 1 False x 1 [Undefined]"},
};

static const struct jinja_one bad[] = {
    {"{{ n[1:] }}", "{\"n\": null}", "'NoneType' object cannot be sliced"},
    {"{{ l[:'a'] }}", "{\"l\": [1]}", "slice indices must be integers"},
    {"{{ 5 | indent }}", NULL, "must be str, not int"},
    {"{{ [[1], [1]] | unique | list }}", NULL, "unhashable type: 'list'"},
    {"{{ 1", NULL, "line 1 column 5: the template ends inside of a tag"},
    {"a\n b {{ 1 + }}", NULL, "line 2 column 11: an expression expected, not the end of the tag"},
    {"{% if x %}", NULL, "the body that begins here has no {% endif %}"},
    {"{% endif %}", NULL, "line 1 column 4: unknown or misplaced tag 'endif'"},
    {"{% foo %}", NULL, "unknown or misplaced tag 'foo'"},
    {"{% include 'x' %}", NULL, "unknown or misplaced tag 'include'"},
    {"{{ 'abc }}", NULL, "line 1 column 4: this string has no end"},
    {"{# abc", NULL, "this comment has no end"},
    {"{% raw %}", NULL, "this raw block has no end"},
    {"{{ a b }}", NULL, "'}}' expected, not 'b'"},
    {"{{ (1 }}", NULL, "this bracket closes nothing"},
    {"{{ ) }}", NULL, "this bracket closes nothing"},
    {"{{ a ! b }}", NULL, "unexpected character"},
    {"{% set 1 = 2 %}", NULL, "a variable expected"},
    {"{% for x y %}", NULL, "in expected, not 'y'"},
    {"{% for x in y recursive %}{% endfor %}", NULL, "recursive loops are not supported"},
    {"{% break %}", NULL, "outside of a loop"},
    {"{% for i in x %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", NULL,
     "outside of a loop"},
    {"{{ x is }}", NULL, "a name expected"},
    {"{{ x | }}", NULL, "a name expected"},
    {"{% macro %}", NULL, "a name expected"},
    {"{{ {'a' 1} }}", NULL, "':' expected"},
    {"{{ '\\ud800' }}", NULL, "this escape is not a character"},
    {"{{ 99999999999999999999 }}", NULL, "this number is too large"},
    {"{% call x %}{% endcall %}", NULL, "a call is expected"},
    {"{{ a is b is c is d }}", NULL, "tests cannot be chained"},
    {"{{ \"\\x4\" }}", NULL, "this escape"},
    {"{% set x %}", NULL, "has no {% endset %}"},
    {"{{ nope.x }}", NULL, "line 1 column 8: 'nope' is undefined"},
    {"{{ m.a.b }}", "{\"m\": {}}", "'dict object' has no attribute 'a'"},
    {"{{ 'a' + 1 }}", NULL, "line 1 column 10: can only concatenate str (not \"int\") to str"},
    {"{{ 1 + 'a' }}", NULL, "unsupported operand type(s) for +: 'int' and 'str'"},
    {"x\n{{ raise_exception('Bad ' ~ 1) }}", NULL, "chat template line 2 column 19: Bad 1"},
    {"{{ x | nofilter }}", NULL, "there is no filter named 'nofilter'"},
    {"{{ x is notest }}", NULL, "there is no test named 'notest'"},
    {"{{ [1].append(2) }}", NULL, "'append' would change a 'list'"},
    {"{{ {}.update({}) }}", NULL, "'update' would change a 'dict'"},
    {"{{ 1 / 0 }}", NULL, "division by zero"},
    {"{{ 1 % 0 }}", NULL, "modulo by zero"},
    {"{{ 1 < 'a' }}", NULL, "'<' not supported between instances of 'int' and 'str'"},
    {"{{ [1, 'a'] | sort }}", NULL, "'<' not supported"},
    {"{% for x in 5 %}{% endfor %}", NULL, "'int' object is not iterable"},
    {"{% set a, b = [1] %}", NULL, "not enough values to unpack"},
    {"{% set a, b = [1, 2, 3] %}", NULL, "too many values to unpack"},
    {"{{ {[]: 1} }}", NULL, "unhashable type: 'list'"},
    {"{{ nope() }}", NULL, "'nope' is undefined"},
    {"{{ 5() }}", NULL, "'int' object is not callable"},
    {"{% set x.y = 1 %}", "{\"x\": {}}", "non-namespace"},
    {"{{ nope | tojson }}", NULL, "not JSON serializable"},
    {"{{ 5 | length }}", NULL, "has no len()"},
    {"{{ [1, 2] | map('upper') | length }}", NULL, "'generator' has no len()"},
    {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", NULL, "takes not more than 1 argument"},
    {"{% macro m(a) %}{% endmacro %}{{ m(b=1) }}", NULL, "takes no argument 'b'"},
    {"{{ 'a'.split('') }}", NULL, "empty separator"},
    {"{{ 'abc'.index('z') }}", NULL, "substring not found"},
    {"{{ 1 in 'a' }}", NULL, "requires string as left operand"},
    {"{{ 1 in 5 }}", NULL, "argument of type 'int' is not iterable"},
    {"{{ '%s' % () }}", NULL, "not enough arguments for format string"},
    {"{{ '%d' % 'a' }}", NULL, "a real number is required"},
    {"{{ [][::0] }}", NULL, "slice step cannot be zero"},
    {"{{ nope[1:] }}", NULL, "'nope' is undefined"},
    {"{{ ''.__class__.__mro__ }}", NULL, "'str object' has no attribute '__class__'"},
    {"{{ 9223372036854775807 + 1 }}", NULL, "integer overflow"},
    {"{{ range(1000000000) }}", NULL, "range is longer than 100000"},
    {"{{ 'a'.strip(1) }}", NULL, "must be str, not int"},
    {"{{ 'a' | replace('b') }}", NULL, "replace needs 2 argument(s)"},
    {"{{ 'a' | upper(1) }}", NULL, "takes not more than 0"},
    {"{{ 'a' | indent(wide=1) }}", NULL, "unexpected argument 'wide'"},
};

static int render(const struct jinja_one *c, struct ek_buf *out, struct ek_fault *fault)
{
    struct jinja *t = NULL;
    json_t *context = json_loads(c->context ? c->context : "{}", 0, NULL);
    struct jinja_env env = {.context = context};
    assert_non_null(context);
    int r = jinja_parse(c->source, strlen(c->source), &t, fault);
    if (r == 0)
        r = jinja_render(t, &env, out, fault);
    jinja_free(t);
    json_decref(context);
    return r;
}

static void test_good(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        struct ek_buf out = {0};
        struct ek_fault fault = {0};
        int r = render(&good[i], &out, &fault);
        const char *text = out.data ? out.data : "";
        if (r != 0 || strcmp(text, good[i].expected) != 0)
            fail_msg("%s\n  want %s\n  got  %s %s", good[i].source, good[i].expected, text,
                     fault.msg);
        ek_buf_done(&out);
    }
}

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct ek_buf out = {0};
        struct ek_fault fault = {0};
        int r = render(&bad[i], &out, &fault);
        if (r != -EBADMSG || !strstr(fault.msg, bad[i].expected))
            fail_msg("%s\n  want %s\n  got  %d %s", bad[i].source, bad[i].expected, r, fault.msg);
        assert_int_equal(out.len, 0);
        ek_buf_done(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good), cmocka_unit_test(test_bad)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
