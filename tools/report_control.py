#!/usr/bin/env python3
"""Says how build/reports/bench-control.json stands against the goals; with --docs DIR also writes the table into DIR/control-measured.md,
between its lines BEGIN BENCH and END BENCH, and draws DIR/control.svg. With --heldout it is the lines BEGIN HELDOUT and END HELDOUT,
and nothing is drawn.

With --worst it also says of the worst twelve loads what they lack, and by what.

usage: tools/report_control.py REPORT.json... [--worst] [--docs DIR [--heldout]]
"""
import json
import pathlib
import re
import sys

LAWS = ("oracle-s", "oracle-5m", "low", "high", "aimd", "sidecar", "gradient", "evenkeel", "no-slo")
SHOWN = {"oracle": "#718096", "low": "#a0aec0", "high": "#d69e2e", "aimd": "#dd6b20", "sidecar": "#c53030", "gradient": "#805ad5",
         "no-slo": "#63b3ed", "evenkeel": "#2b6cb0"}


def read(path, cells):
    """Adds a report's loads, and to a load that is there already the laws that this report ran."""
    rows = {}
    for row in json.loads(pathlib.Path(path).read_text())["rows"]:
        m = re.fullmatch(r"(.+)\.load([0-9.]+?)\.([a-z][a-z0-9-]*)\.([a-z0-9_]+)", row["cell"])
        rows.setdefault((m[1], float(m[2])), {}).setdefault(m[3], {})[m[4]] = row["value"]
    for key, laws in rows.items():
        cell = cells.setdefault(key, {})
        cell.update((name, law) for name, law in laws.items() if law["seqs_mean"] > 0)


def ratio(cell, law):
    best = cell["oracle"]["good"]
    return cell[law]["good"] / best if best > 0 else 1.0


def has(cells, law):
    return all(law in c for c in cells.values())


def parts(cell):
    """Of what evenkeel lacks of the oracle: by time (against the same limits from the first second on), by sequences, by token budget."""
    best, same, all_, own = (cell[law]["good"] for law in ("oracle", "oracle-s", "high-8s", "evenkeel"))
    return (all_ - own) / best, (same - all_) / best, (best - same) / best


def worst(cells, count=12):
    """A row for each of the loads on which evenkeel has least of the oracle's."""
    lines = ["| load | of the oracle's | its limits | later than it | other sequences | other budget | changing every 5 min |", "|---|---|---|---|---|---|---|"]
    for (trace, load), c in sorted(cells.items(), key=lambda kc: ratio(kc[1], "evenkeel"))[:count]:
        moving = f"{ratio(c, 'oracle-5m'):.3f}" if "oracle-5m" in c else "–"
        lines.append(f"| {trace} {load:g} | {ratio(c, 'evenkeel'):.3f} | {c['oracle']['seqs']:.0f}, {c['oracle']['tokens']:.0f} | "
                     + (" | ".join(f"{-v:+.3f}" for v in parts(c)) if "high-8s" in c else "– | – | –") + f" | {moving} |")
    return "\n".join(lines)


def goals(cells):
    """Lines for people: each goal, how many cells meet it, and which do not."""
    below = {k: ratio(c, "evenkeel") for k, c in cells.items() if ratio(c, "evenkeel") < 0.97}
    below_s = [k for k, c in cells.items() if c["evenkeel"]["good"] < 0.97 * c["oracle-s"]["good"]]
    gaps = [k for k, c in cells.items() if c["evenkeel"]["gap_p99"] > 2]
    mean = sum(ratio(c, "evenkeel") for c in cells.values()) / len(cells)
    yield (f"goodput at least 0.97 of the oracle's: {len(cells) - len(below)} of {len(cells)} loads; mean {mean:.3f}, worst "
           f"{min(ratio(c, 'evenkeel') for c in cells.values()):.3f}")
    yield f"the same against the best number of sequences with the same token budget: {len(cells) - len(below_s)} of {len(cells)} loads"
    changing = [c for c in cells.values() if "oracle-5m" in c]
    if changing:
        gain = [ratio(c, "oracle-5m") for c in changing]
        own = [c["evenkeel"]["good"] / c["oracle-5m"]["good"] for c in changing]
        yield f"limits chosen anew every 5 minutes: {sum(gain) / len(gain):.3f} of the oracle's in the mean of {len(gain)} loads, at most {max(gain):.3f}"
        yield f"evenkeel has {sum(own) / len(own):.3f} of what those have, at least {min(own):.3f}"
    yield f"99th percentile of the longest gap of an answer at most 2 s: {len(cells) - len(gaps)} of {len(cells)} loads"
    if not has(cells, "high"):
        return
    hard = {k: c for k, c in cells.items() if c["high"]["recomputed"] > 0.05}
    few = [k for k, c in hard.items() if c["evenkeel"]["preemptions"] > 0.3 * c["high"]["preemptions"]]
    yield (f"at least 70 % fewer preemptions than 256 sequences, where those recompute over 5 % of their tokens: {len(hard) - len(few)} of "
           f"{len(hard)} loads")
    yield f"answers lost in restarts: {sum(c['evenkeel']['killed'] for c in cells.values()):.0f}; it never restarts for pressure"


def table(cells):
    """A row for each trace: good answers of all its loads as a share of the oracle's."""
    others = [law for law in LAWS if not law.startswith(("oracle", "evenkeel"))]
    lines = ["| trace | oracle, good/s | evenkeel | oracle-s | best of the others | preemptions high → evenkeel | worst gap p99 high → evenkeel |",
             "|---|---|---|---|---|---|---|"]
    for trace in dict.fromkeys(t for t, _ in cells):
        of = [c for (t, _), c in cells.items() if t == trace]
        best = sum(c["oracle"]["good"] for c in of)
        shares = {law: sum(c[law]["good"] for c in of) / max(1e-9, best) for law in LAWS if law != "oracle-5m"}
        other = max(others, key=shares.get)
        lines.append(f"| {trace} | {best / len(of):.2f} | {shares['evenkeel']:.2f} | {shares['oracle-s']:.2f} | {other} {shares[other]:.2f}"
                     + f" | {sum(c['high']['preemptions'] for c in of):.0f} → {sum(c['evenkeel']['preemptions'] for c in of):.0f}"
                     + f" | {max(c['high']['gap_p99'] for c in of):.1f} → {max(c['evenkeel']['gap_p99'] for c in of):.1f} |")
    return "\n".join(lines)


def svg(cells):
    """A panel for each trace: good answers a second over the load, a line for each law."""
    traces = list(dict.fromkeys(t for t, _ in cells))
    width, height, cols = 380, 200, 2
    rows = (len(traces) + cols - 1) // cols
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * cols} {height * rows + 30}" font-family="sans-serif" '
           'font-size="10"><rect width="100%" height="100%" fill="white"/>']
    for i, (law, colour) in enumerate(SHOWN.items()):
        out.append(f'<rect x="{20 + i * 90}" y="10" width="12" height="3" fill="{colour}"/><text x="{37 + i * 90}" y="15">{law}</text>')
    for n, trace in enumerate(traces):
        x0, y0 = (n % cols) * width + 45, (n // cols) * height + 50
        loads = [load for t, load in cells if t == trace]
        most = max(cells[trace, load][law]["good"] for load in loads for law in SHOWN) or 1
        w, h = width - 75, height - 60

        def at(load, good):
            return f"{x0 + (load - loads[0]) / (loads[-1] - loads[0]) * w:.1f},{y0 + h - good / most * h:.1f}"
        out.append(f'<text x="{x0}" y="{y0 - 6}" font-weight="bold">{trace}: good answers/s over offered load</text>'
                   f'<path d="M{x0},{y0}V{y0 + h}H{x0 + w}" fill="none" stroke="#a0aec0"/>'
                   f'<text x="{x0 - 5}" y="{y0 + 8}" text-anchor="end">{most:.1f}</text><text x="{x0 - 5}" y="{y0 + h}" text-anchor="end">0</text>')
        out += [f'<text x="{at(load, 0).split(",")[0]}" y="{y0 + h + 12}" text-anchor="middle">{load:g}</text>' for load in loads]
        for law, colour in SHOWN.items():
            points = " ".join(at(load, cells[trace, load][law]["good"]) for load in loads)
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return "\n".join(out) + "\n</svg>\n"


def main():
    cells = {}
    for path in (a for a in sys.argv[1:] if a.endswith(".json")):
        read(path, cells)
    lines = list(goals(cells))
    print("\n".join(lines))
    if "--worst" in sys.argv:
        print(worst(cells))
    if "--docs" not in sys.argv:
        return
    if not all(has(cells, law) for law in LAWS if law != "oracle-5m"):
        sys.exit("the table wants all laws but oracle-5m: a report without QUICK")
    docs = pathlib.Path(sys.argv[sys.argv.index("--docs") + 1])
    page = (docs / "control-measured.md").read_text()
    text = "\n".join(f"- {line}" for line in lines) + "\n\n" + table(cells) + "\n"
    mark = "HELDOUT" if "--heldout" in sys.argv else "BENCH"
    page, n = re.subn(rf"(<!-- BEGIN {mark} -->\n).*?(<!-- END {mark} -->)", lambda m: m[1] + text + m[2], page, flags=re.S)
    if n != 1:
        sys.exit(f"docs/control-measured.md has no lines BEGIN {mark} and END {mark}")
    (docs / "control-measured.md").write_text(page)
    if mark == "BENCH":
        (docs / "control.svg").write_text(svg(cells))


main()
