#!/usr/bin/env python3
"""The list of clients in docs/compatibility.md, from what tests/clients/test_table.py saw (build/reports/clients.json).

usage: tools/clients-table.py [--check]

With --check nothing is written: what was seen otherwise than the list says is a failure; clients that were not here are left out."""
import json
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/compatibility.md"
BEGIN, END = "<!-- written by make check-clients -->", "<!-- end of clients -->"
COLUMNS = ["answer", "stream", "tools", "form", "vectors", "ranks", "not offered"]


def told(words):
    """What a client does, from {column: word}: a column alone works, what is not offered is refused, other words are named."""
    return ", ".join("refuses" if (c, w) == ("not offered", "refused") else c if w == "works" else f"{c}: {w}" for c, w in words.items())


def read_page(text):
    """What the page says: {(client, column): word}."""
    said = {}
    for does, clients in re.findall(r"^- \*\*(.+?)\*\*: (.+?)(?=^- |\Z)", text, re.S | re.M):
        for one in does.split(", "):
            column, _, word = one.partition(": ")
            column, word = ("not offered", "refused") if one == "refuses" else (column, word or "works")
            said.update({(client, column): word for client in " ".join(clients.split()).split("; ")})
    return said


def listed(words):
    """The list, from {(client, column): word}: a line for each set of things that some clients do."""
    groups = {}
    for client in dict.fromkeys(c for c, _ in words):
        does = told({column: words[client, column] for column in COLUMNS if words.get((client, column))})
        groups.setdefault(does, []).append(client)
    return "\n".join(textwrap.fill(f"- **{does}**: {'; '.join(clients)}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
                     for does, clients in groups.items() if does)


def main():
    check = sys.argv[1:] == ["--check"]
    seen = {(c["client"], c["does"]): c["result"] for c in json.loads((ROOT / "build/reports/clients.json").read_text())}
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    table, after = rest.split(END)
    said = read_page(table.strip())
    words = {k: said.get(k, "") if v == "not tried" else v for k, v in seen.items()}
    wrong = [f"{client}, {column}: the page says {said.get((client, column)) or 'nothing'}, seen: {word}"
             for (client, column), word in words.items() if word and word != said.get((client, column))]
    if check:
        print("\n".join(wrong + ["run make check-clients"] if wrong else ["  ok    the list of clients is what was seen"]))
        return bool(wrong)
    PAGE.write_text(f"{before}{BEGIN}\n\n{listed(words)}\n\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
