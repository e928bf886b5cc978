#!/usr/bin/env python3
"""Sets the documents as docs/ has them: a sentence begins a line, and no line of a text is longer than 120 columns, so that a change
of a sentence is a change of its lines. Tables, code, headings, comments and what is generated stay as they are.

usage: tools/docs-fmt.py [--check] FILE.md...
"""
import pathlib
import re
import sys
import textwrap

COLUMNS = 120
ENDS = re.compile(r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bcf\.)(?<!\bvs\.)(?<!\bNo\.)((?:\*\*|[)\"”])?) +(?=[A-Z`*\[(\"“])")
ITEM = re.compile(r"^(\s*)([-*+]|\d+[.)]) +(?=\S)")
# What begins a line and is no text, or must stay a line of its own.
OTHER = re.compile(r"^\s*(#|\||>|<|\[[^]]+\]: |---|===|!\[|    \S)")
# A continued line must not look like the beginning of something else.
TAKEN = re.compile(r"^([-+*](\s|$)|#{1,6}\s|[>|]|[=-]+$|\d+[.)](\s|$))")


def sentences(text):
    text = ENDS.sub(lambda m: m[1] + "\n", " ".join(text.split()))
    return text.split("\n")


def wrapped(sentence, first, rest):
    lines = textwrap.wrap(sentence, COLUMNS, initial_indent=first, subsequent_indent=rest, break_long_words=False,
                          break_on_hyphens=False)
    for i in range(len(lines) - 1, 0, -1):
        if TAKEN.match(lines[i].strip()):  # its last word goes along; a line may get a little longer instead
            word, _, left = lines[i].strip().partition(" ")
            lines[i - 1] += " " + word
            lines[i] = rest + left
    return [line for line in lines if line.strip()]


def paragraph(lines):
    """Lines of one paragraph or list item, set anew."""
    item = ITEM.match(lines[0])
    first = item[0] if item else re.match(r"\s*", lines[0])[0]
    rest = " " * len(first)
    text = " ".join(line[len(first):].strip() if n == 0 else line.strip() for n, line in enumerate(lines))
    out = []
    for n, s in enumerate(sentences(text)):
        if n and TAKEN.match(s):
            out[-1] += " " + s
        else:
            out += wrapped(s, first if n == 0 else rest, rest)
    return out


def document(text):
    out, open_lines, fence, generated = [], [], None, False

    def flush():
        if open_lines:
            out.extend(paragraph(open_lines))
            open_lines.clear()

    for line in text.split("\n"):
        mark = re.match(r"\s*(```|~~~)", line)
        if "<!-- BEGIN" in line or "<!-- END" in line:
            generated = "BEGIN" in line
        if mark and (fence is None or fence == mark[1]):
            flush()
            fence = None if fence else mark[1]
            out.append(line)
        elif fence or generated or not line.strip() or line.endswith("  ") or (OTHER.match(line) and not (open_lines and line.startswith("    "))):
            flush()
            out.append(line)
        else:
            if ITEM.match(line):
                flush()
            open_lines.append(line)
    flush()
    return "\n".join(out)


def main():
    check = "--check" in sys.argv[1:]
    bad = 0
    for name in [a for a in sys.argv[1:] if a != "--check"]:
        path = pathlib.Path(name)
        old = path.read_text()
        new = document(old)
        if document(new) != new:
            sys.exit(f"{name}: setting it twice differs; mend tools/docs-fmt.py")
        if new == old:
            continue
        bad += 1
        if check:
            print(f"{name}: not set as tools/docs-fmt.py has it (make fmt)")
        else:
            path.write_text(new)
    sys.exit(1 if check and bad else 0)


main()
