#!/usr/bin/env python3
"""Draws build/reports/bench-sched.json; with --docs DIR also writes DIR/scheduling.md and .svg, for which it
wants bench-prefill.json beside it.

usage: tools/report_sched.py REPORT.json [--docs DIR]
"""
import json
import pathlib
import sys

BLOCKS = (8, 16, 32)
PLOTS = (  # cell, title, factor, unit
    ("waste", "Empty slots in used blocks", 100, "%"),
    ("table_entries", "Block table entries of a step", 1, ""),
    ("host_p50", "Host time of a step, median", 1, "us"),
)
COLOURS = {8: "#2b6cb0", 16: "#38a169", 32: "#d69e2e"}
ADVICE = {8: "much variation in length; short requests", 16: "the default",
          32: "long, uniform requests"}


def svg(cells, traces, shape):
    """Grouped bars: a panel for each measure, a group for each trace, a bar for each block size."""
    width, panel, left, bar = 760, 150, 190, 9
    row = bar * len(BLOCKS) + 8
    panel = max(panel, row * len(traces) + 50)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {panel * len(PLOTS) + 30}" '
           'font-family="sans-serif" font-size="11">',
           '<rect width="100%" height="100%" fill="white"/>']
    for i, size in enumerate(BLOCKS):
        x = left + i * 110
        out.append(f'<rect x="{x}" y="10" width="10" height="10" fill="{COLOURS[size]}"/>'
                   f'<text x="{x + 15}" y="19">block size {size}</text>')
    for n, (what, title, factor, unit) in enumerate(PLOTS):
        top = 40 + n * panel
        out.append(f'<text x="10" y="{top + 10}" font-weight="bold" font-size="13">{title}</text>')
        value = {(t, b): cells[f"{t}.b{b}.{shape}.{what}"] * factor for t in traces for b in BLOCKS}
        most = max(value.values()) or 1
        for k, trace in enumerate(traces):
            y = top + 22 + k * row
            out.append(f'<text x="{left - 8}" y="{y + row / 2}" text-anchor="end">{trace}</text>')
            for j, b in enumerate(BLOCKS):
                v = value[trace, b]
                w = v / most * (width - left - 90)
                out.append(f'<rect x="{left}" y="{y + j * bar}" width="{w:.1f}" '
                           f'height="{bar - 1}" fill="{COLOURS[b]}"/>'
                           f'<text x="{left + w + 4:.1f}" y="{y + j * bar + 8}" font-size="9">'
                           f'{v:.3g} {unit}</text>')
    out.append("</svg>\n")
    return "\n".join(out)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(r) + " |" for r in rows])


def prefill(path):
    """Short prompts beside a long one: a row for each way to cut the steps."""
    row = {r["cell"]: r for r in json.loads(path.read_text())["rows"]}

    def ms(name):
        return f"{row[name]['value']:,.0f}" + (f" ({float(row[name]['goal']):,.0f})" if "goal" in row[name] else "")

    return table(("tokens a step", "TTFT p50, ms", "TTFT p99, ms (goal)", "without the long one", "the long one, ms (goal)",
                  "alone"),
                 [(says, *(ms(f"prefill.{way}.{what}") for what in ("ttft_p50", "ttft_p99", "ttft_p99_alone", "long", "long_alone")))
                  for way, says in (("2048", "2,048"), ("512", "512"), ("2048-of-512", "2,048, 512 of one prompt"),
                                    ("512-deep", "512, rows at the long one's end ten times as dear"))])


def page(report, cells, traces, shape, beside):
    def mean(b, what):
        return sum(cells[f"{t}.b{b}.{shape}.{what}"] for t in traces) / len(traces)

    def c(name, factor=1, digits=0):
        return f"{cells[name] * factor:,.{digits}f}"

    sizes = table(("block size", "empty slots", "table entries a step", "host time a step",
                   "output", "suits"),
                  [(str(b), f"{100 * mean(b, 'waste'):.2f} %", f"{mean(b, 'table_entries'):,.0f}",
                    f"{mean(b, 'host_p50'):.2f} us", f"{mean(b, 'output_rate'):,.0f} tokens/s",
                    ADVICE[b]) for b in BLOCKS])
    swap = table(("trace", "swap", "output tokens/s", "TTFT p99, ms", "preemptions",
                  "computed again", "blocks back"),
                 [(t, "on" if s == "swap" else "off", c(f"{t}.b16.{s}.c512.output_rate"),
                   c(f"{t}.b16.{s}.c512.ttft_p99"), c(f"{t}.b16.{s}.c512.preemptions"),
                   c(f"{t}.b16.{s}.c512.recomputed", 100, 2) + " %",
                   c(f"{t}.b16.{s}.c512.swapped_in")) for t in traces if cells[f"{t}.b16.noswap.c512.preemptions"] > 0 for s in ("noswap", "swap")])
    kept = [t for t in traces if f"{t}.b16.offload.c512.hit_rate" in cells]
    offload = table(("trace", "evicted prefixes", "prefix hits", "output tokens/s", "TTFT p50, ms",
                     "TTFT p99, ms", "blocks back"),
                    [(t, "kept" if s == "offload" else "dropped",
                      c(f"{t}.b16.{s}.c512.hit_rate", 100, 1) + " %",
                      c(f"{t}.b16.{s}.c512.output_rate"), c(f"{t}.b16.{s}.c512.ttft_p50"),
                      c(f"{t}.b16.{s}.c512.ttft_p99"), c(f"{t}.b16.{s}.c512.offloaded_in"))
                     for t in kept for s in ("noswap", "offload")])
    chunk = table(("trace", "budget", "output tokens/s", "TTFT p50, ms", "inter-token p50, ms",
                   "inter-token p99, ms"),
                  [(t, str(k), c(f"{t}.b16.noswap.c{k}.output_rate"),
                    c(f"{t}.b16.noswap.c{k}.ttft_p50"), c(f"{t}.b16.noswap.c{k}.itl_p50", 1, 1),
                    c(f"{t}.b16.noswap.c{k}.itl_p99", 1, 1)) for t in traces for k in (512, 2048)])
    host = table(("places", "running, mean", "median", "p99", "allocations"),
                 [(str(n), c(f"host.{n}.running"), c(f"host.{n}.p50", 1, 1) + " us",
                   c(f"host.{n}.p99", 1, 1) + " us", c(f"host.{n}.allocations"))
                  for n in (256, 1024)])
    return f"""# Scheduling, measured

<!-- Written by tools/report_sched.py from build/reports: make bench-sched bench-prefill docs-sched -->

Traces of real services (`tests/fixtures/traces/`), replayed through the scheduler in virtual time.
A cost model (`server/bench/schedsim.h`: a dense model with 8 billion parameters on a device with 2
TB/s and 200 TFLOP/s) says how long a step takes.
The pool holds 6,144 tokens, so that it is short: requests queue and are preempted. The offered load
is 0.9 of what the modelled device can do. Lengths are scaled down. The numbers rank choices; they
do not predict a machine. Host times are processor time of `{report["machine"]["cpu"]}`, {report["machine"]["cores"]} cores,
at a load average of {report["machine"]["load"]:.0f} when it began.

## Block size

Small blocks waste less, larger tables cost more. Means over the traces, swap off, 512 tokens a
step:

{sizes}

![Waste, table entries and host time by block size](scheduling.svg)

## Preemption: swap or recompute

Block size 16, 512 tokens a step; traces with preemptions. Without swap a preempted request is
computed again from its beginning, less what the prefix cache still holds.

{swap}

## Evicted prefixes: dropped or kept in host memory

Block size 16, 512 tokens a step, no swap; a host tier for 98,304 tokens (`--kv-offloading-size`),
sixteen times the pool. Traces whose prompts share beginnings. A tier that is small beside what lies
between two uses of a prefix gains nothing.

{offload}

## Tokens in a step

Block size 16, no swap. The budget bounds the gap between two tokens of a running request while
others' prompts are computed.

{chunk}

## Short prompts beside a long one

`make bench-prefill`, in virtual time: ten prompts of 256 tokens a second, with answers of 16, while one of 131,072 is
read. Goals: the short ones' 99th percentile at most twice that without the long one, and a step; the long one at most a
tenth later than its share of the tokens.

{prefill(beside / "bench-prefill.json")}

With the real CPU engine (`make bench-long PROMPT=65536`, two cores, AVX2) short ones' 99th percentile is 1,275 ms (goal
1,471, of which a step is 1,375), the long one takes 172 s (195), and tokens a second are 1.03 of what the parts take by
themselves (0.98).
With 131,072 tokens on two cores with AVX-512 and bf16 the long one takes 87 s (98), tokens a second are 1.02 (0.98), short
ones' median is 160 ms and their 99th percentile 321 ms (goal 356, of which a step is 345).

## Host time of one step

Planning a step and taking its result, block size 16, while requests come and go: eight times as many
requests as there are places.

{host}

Goals: 150 us median and 400 us p99 at 256 places, 600 us at 1,024, no allocation.
"""


def main():
    if len(sys.argv) not in (2, 4) or (len(sys.argv) == 4 and sys.argv[2] != "--docs"):
        sys.exit(__doc__)
    path = pathlib.Path(sys.argv[1])
    report = json.loads(path.read_text())
    cells = {r["cell"]: r["value"] for r in report["rows"]}
    traces = sorted({name.split(".")[0] for name in cells if ".b16." in name})
    shape = "noswap.c512"
    picture = svg(cells, traces, shape)
    path.with_suffix(".svg").write_text(picture)
    if len(sys.argv) == 4:
        docs = pathlib.Path(sys.argv[3])
        (docs / "scheduling.md").write_text(page(report, cells, traces, shape, path.parent))
        (docs / "scheduling.svg").write_text(picture)
    missed = [r["cell"] for r in report["rows"] if r.get("met") is False]
    print(f"{path}: {len(cells)} cells" + (f"; goals missed: {', '.join(missed)}" if missed else ""))


main()
