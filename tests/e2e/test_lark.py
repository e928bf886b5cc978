"""Protects: grammars in Lark's notation mean what they mean to Lark. For each grammar, texts drawn from it at random and others made of
them by small changes are taken or refused by both."""
import random

import pytest
from lark import Lark
from lark.exceptions import LarkError

from test_constrained import ask_tool

EBNF = 4  # enum grammar_kind
DRAWN, CHANGED, LONGEST = 12, 3, 40

# Each of them by a thing that it has: name -> grammar.
GRAMMARS = {
    "sums": r"""
        ?start: sum
        ?sum: product | sum "+" product -> add | sum "-" product -> sub
        ?product: atom | product "*" atom -> mul | product "/" atom -> div
        ?atom: NUMBER -> number | "-" atom -> neg | NAME -> var | "(" sum ")"
        %import common.CNAME -> NAME
        %import common.NUMBER
        %import common.WS_INLINE
        %ignore WS_INLINE
        """,
    "json": r"""
        ?start: value
        ?value: object | array | ESCAPED_STRING -> string | SIGNED_NUMBER -> number
              | "true" -> true | "false" -> false | "null" -> null
        array: "[" [value ("," value)*] "]"
        object: "{" [pair ("," pair)*] "}"
        pair: ESCAPED_STRING ":" value
        %import common (ESCAPED_STRING, SIGNED_NUMBER, WS)
        %ignore WS
        """,
    "settings": r"""
        start: (section | _EMPTY)+
        section: "[" NAME "]" _NL item*
        item: NAME "=" VALUE? _NL
        NAME.2: /[a-z]\w*/
        VALUE: /[^\n\[]+/   // to the end of the line
        _EMPTY: _NL
        _NL: /\r?\n/
        """,
    "comments": r"""
        // a little language
        start: (assign ";")*
        assign: NAME "=" (NUMBER | STRING)   # the right side
        NAME: LETTER (LETTER | DIGIT | "_")~0..5
        STRING: /'.*?'/ | /"[^"]*"/
        BLOCK: "{-" /(.|\n)*?/ "-}"
        %import common.LETTER
        %import common.DIGIT
        %import common.INT -> NUMBER
        %import common.SH_COMMENT
        %ignore /[ \n]+/
        %ignore SH_COMMENT
        %ignore BLOCK
        """,
    "query": r"""
        start: "select"i columns "from"i NAME [where] [";"]
        columns: "*" | NAME ("," NAME)*
        where: "where"i test (("and"i | "or"i) test)*
        test: NAME OP (NUMBER | STRING)
        OP: "=" | "<" | ">" | "<=" | ">=" | "<>"
        STRING: "'" /[^']*/ "'"
        NAME: /[a-z_]+/i
        NUMBER: "0".."9"+
        %ignore /\s+/
        """,
    "groups": r"""
        start: a ["," b] (c | "!") ~ 2..3 "x"~2
        a: "a"+ | ("b" "c")*
        b: [ "d" ["e"] ] "f"
        !c: "g".."k"
        """,
    "turns": r"""
        start: a | b
        a: b "x" | "1" | a "," a
        b: a "y" | c
        c: "(" start ")" | b "z" | a?  "2"
        """,
    "letters": r"""
        start: word (" " word)*
        word: "\u00e9t\x65" | /[à-ü]{1,3}/ | "ß"i | /[^\W\d_]+/ | "\"\\\d"
        """,
    "dots": r"""
        start: A B | C
        A: /a.b/s
        B: /c.d/i
        C: /(?i:yes)\/no/
        """,
    "lazy": r"""
        start: (TAG | TEXT)+
        TAG: /<.+?>/
        TEXT: /[^<>]+/
        """,
    "lists": r"""
        start: _list{item}
        item: "a"
        _list{x}: x ("," x)*
        """,
}
REFUSED = {
    "start: a{b}": "line 1", "start: A\nA: %json {}": "line 2", "start: a": "`a` is used", "A: A \"x\"\nstart: A": "round to itself",
    "start: \"a\"\n  b": "line 2", "%declare X\nstart: X": "%declare", "start: 'a'": "missing", "start: /a(?<=b)/": "look-around",
    "%import python.NAME\nstart: NAME": "common", "%import common.NAMES\nstart: NAMES": "NAMES", "start: /^a$/": "anchors",
    "start: /a/x": "flag x", "start: \"a\"\nstart: \"b\"": "second time", "A: start\nstart: A": "rule `start`", "start: (\"a\"": "not closed",
    "start: \"a": "not closed", "start: /a": "not closed", "start: \"a\"~3..2": "in order", "A: \"a\"": "`start`", "start: \"b\"..\"a\"": "backwards",
    "%llguidance {\"x\": 1}\nstart: \"a\"": "`x`", "start: <|eot|>": "special tokens", "start: \"ab\"..\"c\"": "one character",
    "start: /(/": "line 1", "start: \"a\" -> b c": "one name", "start[temperature=1]: \"a\"": "attributes", "start: start": "no text at all",
}


def changed(text, alphabet, rng):
    """A text with a few of its characters left out, doubled, changed or swapped."""
    chars = list(text)
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(chars) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            chars[at:at + 1] = []
        elif kind == 1:
            chars.insert(at, rng.choice(alphabet))
        elif kind == 2:
            chars[at:at + 1] = [rng.choice(alphabet)]
        else:
            chars[at:at + 2] = chars[at:at + 2][::-1]
    return "".join(chars)


def takes(parser, text):
    try:
        parser.parse(text)
        return True
    except LarkError:
        return False


@pytest.mark.parametrize("name", sorted(set(GRAMMARS) - {"lists"}))
def test_as_lark(name):
    grammar, rng = GRAMMARS[name], random.Random(name)
    parser = Lark(grammar, parser="earley", lexer="dynamic_complete", ambiguity="resolve")
    drawn = ask_tool([{"kind": EBNF, "text": grammar, "samples": DRAWN, "seed": 1, "spare": spare} for spare in (0, 3, 8, 20)])
    assert "error" not in drawn[0], drawn
    texts = sorted({t for d in drawn for t in d["texts"] if 0 < len(t) <= LONGEST})
    rng.shuffle(texts)
    texts = texts[:DRAWN]
    assert len(texts) >= 4, texts
    for text in texts:
        assert takes(parser, text), f"drawn, and refused by Lark: {text!r}"
    alphabet = sorted(set("".join(texts)))
    others = sorted({t for text in texts for t in (changed(text, alphabet, rng) for _ in range(CHANGED)) if t})
    fits = ask_tool([{"kind": EBNF, "text": grammar, "samples": 0, "check": texts + others}])[0]["fits"]
    wrong = [(t, f) for t, f in zip(texts + others, fits) if takes(parser, t) != f]
    assert not wrong, f"{len(wrong)} of {len(fits)}: {wrong[:5]}"


def test_refused_with_the_line():
    answers = ask_tool([{"kind": EBNF, "text": g, "samples": 0} for g in [*REFUSED, GRAMMARS["lists"]]])
    for (grammar, says), answer in zip([*REFUSED.items(), ("lists", "templates")], answers):
        assert says in answer.get("error", ""), (grammar, answer)
