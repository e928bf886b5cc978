#!/usr/bin/env python3
"""Writes build/reports/bench-plan.json into DIR/planning.md, between its lines BEGIN BENCH and END BENCH, and draws DIR/planning.svg.

usage: tools/report_plan.py REPORT.json --docs DIR
"""
import json
import math
import pathlib
import re
import sys

NAMES = {"tiny": "tiny", "0.5b": "0.5B"}
COLOURS = {"prefill": "#2b6cb0", "ttft": "#2b6cb0", "decode": "#38a169", "between": "#d69e2e", "output": "#805ad5"}
LEGEND = {"prefill": "prompts", "decode": "decode steps", "between": "between tokens, served", "output": "output, served"}


def number(v):
    return f"{v:,.0f}" if v >= 100 else f"{v:.3g}"


def parts(row):
    """Model, weights, kind, what is said of the cell."""
    m = re.fullmatch(r"(tiny|0\.5b)\.(\w+)\.(\w+)\.(\d+)(?:\.(\d+))?", row["cell"])
    model, form, kind, n, context = m.groups()
    some = "1 sequence" if n == "1" else f"{n} sequences"
    text = {"prefill": f"prompt of {int(n):,} tokens", "decode": f"a step of {some} after {int(context or 0):,} tokens",
            "ttft": f"first token of a prompt of {context}, over HTTP", "between": f"between tokens, {n} client{'s' if n != '1' else ''}",
            "output": f"output of {n} clients"}[kind]
    return NAMES[model], form, kind, text


def table(rows):
    """A row for each model and cell, a column for each kind of weights: predicted, measured and the ratio of the two."""
    forms = list(dict.fromkeys(parts(r)[1] for r in rows))
    cells = {}
    for r in rows:
        model, form, _, text = parts(r)
        cells.setdefault((model, text), {})[form] = (f"{number(r['peer_value'])}, {number(r['value'])} {r['unit']}: {r['ratio']:.2f}"
                                                     f"{'' if r['met'] else ' (out of its band)'}")
    lines = ["| model | what | " + " | ".join(f"{form}: predicted, measured" for form in forms) + " |", "|---|---|" + "---|" * len(forms)]
    return "\n".join(lines + [f"| {model} | {text} | " + " | ".join(of.get(form, "") for form in forms) + " |" for (model, text), of in cells.items()])


def svg(rows):
    """Measured over predicted, for each kind and model: 1 is right, grey is the band."""
    width, left, right, row_height, top = 760, 300, 40, 17, 60
    height = top + row_height * len(rows) + 30
    low, high = 0.5, 2.0

    def at(ratio):
        return left + (math.log(min(max(ratio, low), high)) - math.log(low)) / (math.log(high) - math.log(low)) * (width - left - right)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">'
           '<rect width="100%" height="100%" fill="white"/>',
           '<text x="10" y="20" font-weight="bold" font-size="13">What was measured over what was predicted, and the band</text>']
    for i, (kind, text) in enumerate(LEGEND.items()):
        out.append(f'<circle cx="{left - 285 + i * 150}" cy="37" r="4" fill="{COLOURS[kind]}"/><text x="{left - 276 + i * 150}" y="41">{text}</text>')
    for i, r in enumerate(rows):
        y = top + i * row_height
        model, form, kind, text = parts(r)
        out.append(f'<rect x="{at(1 / r["band"]):.1f}" y="{y}" width="{at(r["band"]) - at(1 / r["band"]):.1f}" height="{row_height - 3}" fill="#e2e8f0"/>'
                   f'<text x="{left - 8}" y="{y + 11}" text-anchor="end" font-size="10">{model} {form}: {text}</text>'
                   f'<circle cx="{at(r["ratio"]):.1f}" cy="{y + (row_height - 3) / 2}" r="4" fill="{COLOURS[kind]}"/>')
    bottom = top + row_height * len(rows)
    for tick in (0.5, 0.625, 0.714, 1, 1.4, 1.6, 2):
        out.append(f'<path d="M{at(tick):.1f},{top - 4}V{bottom}" stroke="{"#4a5568" if tick == 1 else "#cbd5e0"}" stroke-width="1"/>'
                   f'<text x="{at(tick):.1f}" y="{bottom + 14}" text-anchor="middle" font-size="9">{tick:g}</text>')
    return "\n".join(out) + "\n</svg>\n"


def main():
    report = json.loads(pathlib.Path(sys.argv[1]).read_text())
    docs = pathlib.Path(sys.argv[sys.argv.index("--docs") + 1])
    rows = [r for r in report["rows"] if r.get("peer") == "predicted"]
    machine = {r["cell"]: r for r in report["rows"] if r["cell"].startswith("machine.")}
    m = report["machine"]
    can = ", ".join(f"{text} {number(machine[c]['value'])} {machine[c]['unit']}" for c, text in (
        ("machine.read", "reads"), ("machine.last_cache", "from the last cache"), ("machine.peak_bf16", "computes in bf16"), ("machine.peak_int8", "in int8"))
        if c in machine)
    text = (f"Machine: {m['cpu']}, {m['threads']} threads, {m['isa']}; {can}. Commit {report['commit']}. {sum(r['met'] for r in rows)} of {len(rows)} are within "
            f"their band.\n\n{table(rows)}\n")
    page, n = re.subn(r"(<!-- BEGIN BENCH -->\n).*?(<!-- END BENCH -->)", lambda x: x[1] + text + x[2], (docs / "planning.md").read_text(), flags=re.S)
    if n != 1:
        sys.exit("planning.md has no lines BEGIN BENCH and END BENCH")
    (docs / "planning.md").write_text(page)
    (docs / "planning.svg").write_text(svg(rows))


main()
