#!/usr/bin/env python3
"""Writes docs/benchmarks.md from build/reports/{bench,appliance,http,bench-grammar,bench-tokenizer,packages,...}.json, as left by the make targets of these names."""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENGINES = ("llama.cpp", "vLLM")
HEAD = """# Benchmarks

Written by `tools/report.py` from what the make targets measured, never by hand: the figures that have a goal or stand beside another engine; `build/reports` has the others.
These machines are shared and noisy: compare ratios within one run, not absolute figures between runs.
Elsewhere: one card ([cuda.md](cuda.md#measured)), the scheduler ([scheduling.md](scheduling.md)), the control law ([control-measured.md](control-measured.md)), a vLLM ([vllm.md](vllm.md#measured)).
"""


def number(v):
    return "" if v is None else f"{v:,.0f}" if isinstance(v, (int, float)) and abs(v) >= 100 else f"{v:.3g}" if isinstance(v, (int, float)) else str(v)


def spread(row):
    s = row.get("spread")
    return f"{number(s[0])} to {number(s[1])}" if isinstance(s, list) and len(s) == 2 else ""


def verdict(row):
    if row.get("met") is None:
        return ""
    most = row.get("most")
    return f"{number(row.get('goal'))}: {'met' if row['met'] else 'missed'}" + (f"; the machine allows {number(most)}" if most and not row["met"] and most > row["ratio"] else "")


def kept(title):
    """A section whose benchmark was not run this time stays as it was."""
    lines = (ROOT / "docs/benchmarks.md").read_text().splitlines()
    if f"## {title}" not in lines:
        return []
    rest = lines[lines.index(f"## {title}") + 1:]
    ends = [i for i, line in enumerate(rest) if line.startswith("## ")] or [len(rest)]
    return ["", f"## {title}", *rest[:ends[0] - (ends[0] < len(rest))]]


def is_exact(row):
    """A figure that is its goal, such as 0 that were lost: named below the table."""
    return bool(row.get("met")) and row["value"] == row.get("goal") and not row.get("peer") and not spread(row)


def is_plain(row):
    """A goal that is met and has no peer: named below the table, too."""
    return bool(row.get("met")) and not row.get("peer") and not is_exact(row)


def is_shown(row):
    """Figures with a goal or beside another engine; the others, but for the machine's own, are in the report alone."""
    return row.get("goal") is not None or row.get("peer") in ENGINES or row["cell"].startswith("machine.")


def measured(row):
    return " ".join(filter(None, [number(row["value"]), row["unit"]]))


def merged(rows):
    """Cells that are met, as `CELL` VALUE (GOAL); those of several things with one goal are said together, from the least to the most."""
    groups = {}
    for row in rows:
        thing, _, rest = row["cell"].partition(".")
        groups.setdefault((rest, number(row["goal"])), []).append((thing, row))
    for (rest, goal), same in groups.items():
        least, *_, most = sorted([same[0][1], *(row for _, row in same)], key=lambda row: row["value"])
        values = measured(most) if number(least["value"]) == number(most["value"]) else f"{number(least['value'])} to {measured(most)}"
        yield f"`{'|'.join(thing for thing, _ in same)}{'.' if rest else ''}{rest}` {values} ({goal})"


def line(row):
    median = " ".join(filter(None, [measured(row), spread(row) and f"({spread(row)})"]))
    beside = f"{row['peer']} {number(row.get('peer_value'))}: {number(row.get('ratio'))}" if row.get("peer") else ""
    return f"| `{row['cell']}` | {median} | {beside} | {verdict(row)} |"


def section(title, why, name):
    path = ROOT / f"build/reports/{name}.json"
    if not path.exists():
        return kept(title)
    report = json.loads(path.read_text())
    machine = report["machine"]
    lines = [f"\n## {title}", *(["\n" + why] if why else []), f"\nMachine: {machine.get('cpu')}, {machine.get('cores')} cores" + (f", {machine['isa']}" if machine.get("isa") else "")
             + (f", {machine['threads']} threads" if "threads" in machine and "threads" not in machine.get("cpu", "") else "")
             + f". Commit {report.get('commit')}."]
    shown = list(filter(is_shown, report["rows"])) or report["rows"]
    rows = [row for row in shown if not is_exact(row) and not is_plain(row)]
    if any(not row["cell"].startswith("machine.") for row in rows):  # the machine's own say nothing alone
        lines += ["\n| cell | median (least to most) | beside: ratio | goal |", "|---|---|---|---|", *map(line, rows)]
    if plain := list(merged(filter(is_plain, shown))):
        lines.append(f"\nMet, with the goal in brackets: {', '.join(plain)}.")
    exact = {}
    for row in filter(is_exact, shown):
        exact.setdefault(number(row["goal"]), []).append(row["cell"])
    for goal, cells in exact.items():
        if len(cells) > 8:  # the same figures of several things: named without the thing
            cells = list(dict.fromkeys(cell.split(".", 1)[-1] for cell in cells))
        lines.append(f"\n{goal}, as their goal says: {', '.join(f'`{cell}`' for cell in cells)}.")
    return lines


def peers():
    """A table for each kind of machine: the one that was measured, and the others as they were."""
    path = ROOT / "build/reports/bench-peers.json"
    here = json.loads(path.read_text())["machine"].get("kind") if path.exists() else None
    why = ("`make bench-peers`: random weights with the shapes of Qwen2.5-0.5B, the same two threads, in turns in one run. The goal is a ratio for this kind of machine; for a time to "
           "first token it is the peer's over ours. `the machine allows`: what its arithmetic peak (prefill in bf16) or its read bandwidth (decode) would give if nothing else took time.")
    out = []
    for kind in ("AMX", "AVX-512 with bf16", "AVX-512", "AVX2"):
        title = f"Beside llama.cpp and vLLM, {kind}"
        out += section(title, "", "bench-peers") if kind == here else kept(title)
    return ["\n## Beside llama.cpp and vLLM\n", why, *out] if out else []


def kernels():
    """A table for each tier: the one that was measured, and the others as they were."""
    path = ROOT / "build/reports/bench-kernels.json"
    here = json.loads(path.read_text())["machine"].get("isa") if path.exists() else None
    why = ("Each kernel of the CPU backend held against the limit that binds it in the same run of `make bench`: reading memory, arithmetic, or for single rows "
           "the first cache.")
    out = []
    for isa in ("amx", "avx512bf16", "avx512vnni", "avx512", "avx2"):
        title = f"Kernels, {isa}"
        out += section(title, why, "bench-kernels") if isa == here else kept(title)
    return out


def main():
    out = [HEAD.rstrip()]
    out += section("Engine", "Prefill and decode of the embedded model beside the machine's own read bandwidth and arithmetic peak in the same run. The weights of so "
                   "small a model stay in the caches. Decodes follow a prompt of 128 tokens.", "bench")
    out += kernels()
    out += peers()
    out += section("A hybrid beside llama.cpp and vLLM", "`make bench-hybrid`: random weights with the shapes of Qwen3.5-0.8B (gated delta net, every fourth layer attends), the same "
                   "in both, two threads, in turns; llama.cpp as a wheel of PyPI has it (xllamacpp), vLLM 0.32 with its server.", "bench-hybrid")
    out += section("Appliance", "What evenkeeld costs at a poll of 1 s, how fast the server's /metrics answers while 16 clients stream, and how long a kill -9 is felt.", "appliance")
    out += section("Reading /metrics", "`make bench-scrape`: 8 streams that never end on one computing thread; what a page costs at 20 readings a second, and how many per cent "
                   "fewer tokens a second the streams get while readers misbehave.", "scrape")
    out += section("Fleet", "`make check-fleet`: three appliances with the embedded model behind each router. `roll`: all three restart in turn while 32 clients stream. "
                   "`kill`: one of them is killed while 12 stream. `lowered`: what a server whose limit went from 16 to 1 still does of the work, where a step "
                   "takes 20 ms whatever is in it. `hit_rate`: 12 beginnings asked 5 times.", "fleet")
    out += section("KV events", "`make check-kv-hits`: vllm-router's kv_aware in front of two servers; prompt tokens found in a cache, with our events and with those of vLLM "
                   "0.32 on the same 120 requests, for pools that hold all shared beginnings and for pools that hold half of them.", "kv-hits")
    out += section("HTTP", "One server and its client on the same cores: short requests over 64 kept connections, streams of 16 tokens that all run at once, connections "
                   "that were used and then stay open.", "http")
    out += section("Where the time of 16 clients goes", "`make bench-where`: shares of the time that 16 clients took, prompts of 128 tokens and answers of 128, one server. `steps`, `engine`: from the "
                   "flight recorder: the device had a step, or the engine's thread planned, waited, or filled masks. `core`: processor time of threads, of one core. `tokenizer`: "
                   "texts as long, asked alone. `prompts`: long prompts keep all compute threads busy while /metrics is read 20 times a second.", "bench-where")
    out += section("Constrained output", "A synthetic vocabulary of 128k tokens: the mask of one token, and compiling a usual schema.", "bench-grammar")
    out += section("Quantization", "What `--quantization` costs the embedded model on a held-out text of 24,377 tokens, against bfloat16: perplexity and mean divergence. "
                   "Beside int8 and int4: weights and inputs rounded as llama.cpp's Q8_0 and Q4_0 do. A small model suffers more than a large one.", "bench-quality")
    out += section("Loading", "A random bfloat16 model of 1.5 GB in four files: loaded beside reading the same files, from the disk and from the page cache. `peak` is the "
                   "largest resident set beside the packed weights; its goal is these and one shard. Two threads.", "bench-load")
    out += section("Tokenizer", "Real vocabularies: loading the files, English prompts of some 4 kB, and texts of 4 MB that have no place to cut them. `linear` is what a "
                   "byte of 4 MB costs beside one of 256 kB. One thread; the peer is Hugging Face's library in the same run.", "bench-tokenizer")
    out += section("Packages", "In a machine of its own that systemd boots: from `systemctl start evenkeeld` to the first token of the embedded model.", "packages")
    path = ROOT / "docs/benchmarks.md"
    path.write_text("\n".join(out) + "\n")
    subprocess.run([sys.executable, ROOT / "tools/docs-fmt.py", path], check=True)


if __name__ == "__main__":
    main()
