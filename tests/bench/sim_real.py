#!/usr/bin/env python3
"""make check-sim-real: what the simulations say of a server, and what the real one does with the same requests.

Cases are served by evenkeel-server with the embedded model over HTTP, and run through the simulations (tests/bench/sim_real.c): the server's
own scheduler on the null backend, and the plant of sim_control, which has no prefix cache, no host tier and no forms. The CPU backend computes every token; its steps are stretched to the
pace of a larger device (tests/sim/paced_backend.c), because a machine that others use too keeps no time of its own. What a step takes, and
what a request takes outside of the engine, is measured first, on the same server, and is all that the simulations are told.

Throughput, preemptions, tokens found in the prefix cache, blocks that came back from the host, tokens that a form forced, and percentiles of
the times to the first token, between tokens and to the last one must be within 10 % of each other. ONLY="prefix swap" runs those cases and keeps what
the report of the same commit says of others; SHARE=0.6 sends the first 60 % of each list, which ends within a minute.
PACE="base row" in microseconds (default 30000 100). Writes build/reports/sim-real.json; `--docs` puts it into docs/control-measured.md."""
import asyncio
import dataclasses
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools")]
from conftest import BUILD, MODEL, free_port, get, metric, wait_for  # noqa: E402

REPORT = ROOT / "build/reports/sim-real.json"
WITHIN, FEW = 0.10, 2  # preemptions may always differ by so many, and by the ten blocks of each
UNITS = {"tokens a second": "1/s", "preemptions": "requests", "cached tokens": "tokens", "blocks from the host": "blocks", "forced tokens": "tokens"}
LATE_S = 0.3  # a step later than that is the machine's doing: the run does not count
BLOCK, IDS = 16, range(1000)
SCALE = 16  # lengths in a trace with shared pieces are so many times as long: Mooncake's pieces have 512 tokens, ours 32
PIECE = 512 // SCALE
FORM = "([0-9]the number is even, or so they say){100}"  # of a constrained answer: what stands behind each digit is forced
COPY_US = 500  # of a block from or to the host


@dataclasses.dataclass
class Case:
    what: str
    seqs: int
    tokens: int
    blocks: int
    requests: int
    rate: float  # a second
    prompt: tuple  # tokens, least and most
    output: tuple
    max_len: int = 1024
    long: tuple = ()  # every sixth prompt has so many instead
    shared: tuple = ()  # (beginnings, pieces of each): each prompt has one of them before its own tokens
    swap_gib: float = 0
    run: int = 0  # tokens that the form forces behind each sampled one
    plant: bool = True

    host_blocks = 0  # as the server says


CASES = {
    "room": Case("enough of everything", 64, 2048, 1025, 110, 2.0, (50, 400), (20, 120)),
    "queue": Case("8 sequences, half as many again wanted", 8, 512, 1025, 190, 5.0, (20, 200), (20, 120)),
    "pressure": Case("a pool for a third of the 32 sequences", 32, 512, 97, 140, 4.0, (16, 60), (80, 240)),
    "prefills": Case("long prompts of many steps beside short ones", 32, 192, 1537, 150, 3.0, (16, 80), (20, 80), max_len=2048, long=(900, 1700),
                     plant=False),
    "prefix": Case("beginnings in common, a cache for some of them", 16, 512, 385, 150, 3.5, (20, 120), (20, 100), shared=(14, 8), plant=False),
    "swap": Case("a pool for a third, and a host tier", 32, 512, 97, 130, 4.0, (16, 60), (80, 240), swap_gib=0.05, plant=False),
    "forms": Case("answers of which a form forces eleven of twelve tokens", 16, 512, 1025, 170, 6.0, (20, 120), (24, 240), run=11, plant=False),
}


class Server:
    def __init__(self, run, case, pace):
        self.port, self.log = free_port(18600), run / "steps"
        self.out = open(run / "server.log", "wb")
        env = {**os.environ, "PACED_BASE_US": str(pace[0]), "PACED_ROW_US": str(pace[1]), "PACED_COPY_US": str(COPY_US), "PACED_LOG": str(self.log)}
        self.process = subprocess.Popen(
            [BUILD / "paced/evenkeel-server", "--model", MODEL, "--device", "cuda", "--host", "127.0.0.1", "--port", str(self.port),
             "--control-socket", run / "control.sock", "--max-num-seqs", str(case.seqs), "--max-num-batched-tokens", str(case.tokens),
             "--stalled-share", "0", "--num-gpu-blocks-override", str(case.blocks), "--block-size", str(BLOCK), "--max-model-len", str(case.max_len),
             "--swap-space", str(case.swap_gib)],
            stdout=self.out, stderr=self.out, env=env)
        wait_for("ready", self.is_ready, 60)
        case.host_blocks = int(metric(self.metrics(), "evenkeel_host_kv_blocks", state="total"))

    def is_ready(self):
        if self.process.poll() is not None:
            sys.exit(f"the server ended: {pathlib.Path(self.out.name).read_text().splitlines()[-1]}")
        return get(self.port, "/health")[0] == 200

    def metrics(self):
        return get(self.port, "/metrics")[1].decode()

    def end(self):
        """Rows, when it was given to the device and when it was done, of each step."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        return [tuple(map(float, line.split())) for line in self.log.read_text().splitlines()]


async def ask(port, prompt, output, begin, form=None):
    """When the tokens of one answer came, since `begin`; it is asked for at that time. With token ids also those come that show no text yet."""
    await asyncio.sleep(max(0, begin - time.monotonic()))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"prompt": prompt, "max_tokens": output, "temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True,
                       **({"structured_outputs": {"regex": form}} if form else {})})
    writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
                 f"Content-Type: application/json\r\n\r\n{body}".encode())
    times = []
    while line := await reader.readline():
        if line.startswith(b'data: {'):
            assert b'"error"' not in line, line
            times.append(time.monotonic() - begin)
    writer.close()
    assert times, "no answer"
    return times


async def one_by_one(port, prompts, output):
    return [await ask(port, p, output, time.monotonic()) for p in prompts]


async def all_at_once(port, prompts, output):
    begin = time.monotonic()
    return await asyncio.gather(*(ask(port, p, output, begin) for p in prompts))


async def play(jobs):
    """Jobs: name, port, requests (at, prompt, output) and form of each server, all at the same time."""
    begin = time.monotonic() + 1
    asked = [[asyncio.create_task(ask(port, prompt, output, begin + at, form)) for at, prompt, output in requests] for _, port, requests, form in jobs]
    return {name: [await t for t in tasks] for (name, *_), tasks in zip(jobs, asked)}


def fit(steps):
    """Base and row of the time from a step's begin, when the one before was done or later when it was given, to its end, without that of its
    copies: least squares without the tenth that was furthest off."""
    points, done = [], 0
    for rows, _, copies, given, end in steps:
        points.append((rows, end - max(given, done) - copies * COPY_US))
        done = end
    for _ in range(2):
        n, sx, sy = len(points), sum(x for x, _ in points), sum(y for _, y in points)
        sxx, sxy = sum(x * x for x, _ in points), sum(x * y for x, y in points)
        row = (n * sxy - sx * sy) / max(1e-9, n * sxx - sx * sx)
        base = (sy - row * sx) / n
        points = sorted(points, key=lambda p: abs(p[1] - base - row * p[0]))[:max(2, n * 9 // 10)]
    return base, row


def calibrate(run, pace):
    server, rng = Server(run, CASES["room"], pace), random.Random(3)

    def prompts(count, tokens):
        return [rng.choices(IDS, k=tokens) for _ in range(count)]
    alone = statistics.median(t[0] for t in asyncio.run(one_by_one(server.port, prompts(16, 16), 2)))
    for count, tokens in ((4, 60), (24, 200), (24, 100)):
        asyncio.run(all_at_once(server.port, prompts(count, tokens), 20))
    base, row = fit(server.end())
    return base, row, alone * 1e3 - (base + 16 * row) / 1e3


def kept(commit, chosen):
    """Rows of an earlier report of this commit about other cases."""
    old = json.loads(REPORT.read_text()) if REPORT.exists() else {"commit": None}
    return [r for r in old["rows"] if r["cell"].split(".")[0] not in chosen] if old["commit"] == commit else []


def draw(seed, case):
    """Arrivals, tokens of the prompt, tokens of the answer, pieces that others have too."""
    rng, at, requests = random.Random(seed), 0.0, []
    for i in range(round(case.requests * float(os.environ.get("SHARE") or 1))):
        pieces = []
        if case.shared:
            beginning = rng.randrange(case.shared[0])
            pieces = [beginning * 100 + k for k in range(case.shared[1])]
        prompt = rng.randint(*(case.long if case.long and i % 6 == 3 else case.prompt)) + PIECE * len(pieces)
        requests.append((round(at, 6), prompt, rng.randint(*case.output), pieces))
        at += rng.expovariate(case.rate)
    return requests


def token_ids(rng, prompt, pieces):
    ids = [t for p in pieces for t in random.Random(p).choices(IDS, k=PIECE)]
    return ids + rng.choices(IDS, k=prompt - len(ids))


def write_trace(path, case, requests):
    if case.shared:
        path.write_text("".join(json.dumps({"timestamp": round(at * 1e3, 3), "input_length": prompt * SCALE, "output_length": output * SCALE,
                                            "hash_ids": pieces}) + "\n" for at, prompt, output, pieces in requests))
    else:
        path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                        + "".join(f"2026-01-01 00:{int(at) // 60:02d}:{at % 60:010.7f},{prompt},{output}\n" for at, prompt, output, _ in requests))


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def simulated(trace, case, base, row, outside_ms):
    """The median of five runs whose steps differ by a thousandth: who is preempted depends on less than can be measured."""
    runs = [simulate(trace, case, base * (1 + i / 1000), row, outside_ms) for i in (-2, -1, 0, 1, 2)]
    return {s: {name: statistics.median(r[s][name] for r in runs) for name in runs[0][s]} for s in runs[0]}


def simulate(trace, case, base, row, outside_ms):
    words = {"seqs": case.seqs, "tokens": case.tokens, "blocks": case.blocks, "block_size": BLOCK, "max_len": case.max_len, "base_us": base,
             "row_us": row, "copy_us": COPY_US, "host_blocks": max(0, case.host_blocks - 1), "run": case.run, "scale": SCALE if case.shared else 1,
             "plant": int(case.plant)}
    done = subprocess.run([BUILD / "sim_real", trace, *(f"{k}={v}" for k, v in words.items())], capture_output=True, text=True, check=True)
    found = {}
    for name, s in json.loads(done.stdout, strict=False).items():
        first, last = zip(*(map(float, line.split()) for line in s["answers"].splitlines()))
        found[name] = {"tokens a second": s["tokens"] / s["seconds"], "preemptions": s["preemptions"], **special(case, s),
                       **{f"{what} p{int(q * 100)}": quantile(values, q) + outside_ms for what, values in (("first token", first), ("last token", last))
                          for q in (0.5, 0.9, 0.99)},
                       "gap p50": s["gap"][0], "gap p99": s["gap"][2]}
    return found


def special(case, s):
    """What only some cases have."""
    shown = {"cached tokens": ("hits", case.shared), "blocks from the host": ("swapped", case.swap_gib), "forced tokens": ("forced", case.run)}
    return {what: s[key] for what, (key, there) in shown.items() if there}


def real(case, requests, answers, page):
    gaps = [1e3 * (b - a) for times in answers for a, b in zip(times, times[1:])]
    first, last = [1e3 * t[0] for t in answers], [1e3 * t[-1] for t in answers]
    counted = {"hits": metric(page, "vllm:prefix_cache_hits_total"), "forced": metric(page, "evenkeel_forced_tokens_total"),
               "swapped": metric(page, "evenkeel_swapped_blocks_total", direction="in")}
    return {"tokens a second": sum(r[2] for r in requests) / max(r[0] + t[-1] for r, t in zip(requests, answers)),
            "preemptions": metric(page, "vllm:num_preemptions_total"), **special(case, counted),
            **{f"{what} p{int(q * 100)}": quantile(values, q) for what, values in (("first token", first), ("last token", last)) for q in (0.5, 0.9, 0.99)},
            "gap p50": quantile(gaps, 0.5), "gap p99": quantile(gaps, 0.99)}


def is_near(name, a, b):
    return abs(a - b) <= max(WITHIN * a, FEW * {"preemptions": 1, "blocks from the host": 10}.get(name, 0))


def table(rows):
    """Tables of at most four cases: a row for each figure, the real one and by how much each simulation is off."""
    cases, cells = list(dict.fromkeys(r["cell"].split(".")[0] for r in rows)), {}
    for r in rows:
        case, name = r["cell"].split(".")
        off = [f"{100 * (v / r['value'] - 1):+.1f} %" for v in (r["sched"], r["model"]) if v is not None] if r["value"] else []
        unit = " ms" if r["unit"] == "ms" else ""
        cells.setdefault(name, {})[case] = ", ".join([f"{r['value']:.1f}{unit}", *off])
    lines = []
    for some in filter(None, (cases[:4], cases[4:])):
        shown = {name: of for name, of in cells.items() if any(c in of for c in some)}
        lines += ["| | " + " | ".join(some) + " |", "|---|" + "---|" * len(some),
                  *("| " + " | ".join([name, *(of.get(c, "") for c in some)]) + " |" for name, of in shown.items()), ""]
    return lines[:-1]


def compare(found, sims):
    rows = []
    for case, values in found.items():
        for name, value in values.items():
            one = {s: sims[case][s][name] if s in sims[case] else None for s in ("sched", "model")}
            unit = UNITS.get(name, "ms")
            rows.append({"cell": f"{case}.{name}", "value": value, "unit": unit, "spread": None, **one,
                         "goal": WITHIN, "met": all(is_near(name, value, v) for v in one.values() if v is not None)})
    return rows


def serve_cases(run, cases, pace):
    """All at the same time."""
    under, jobs, drawn, steps, rng = {}, [], {}, {}, random.Random(4)
    for name, case in cases.items():
        (run / name).mkdir(parents=True)
        under[name] = server = Server(run / name, case, pace)
        drawn[name] = requests = draw(11 + list(CASES).index(name), case)
        write_trace(run / name / ("trace.jsonl" if case.shared else "trace.csv"), case, requests)
        jobs.append((name, server.port, [(at, token_ids(rng, prompt, pieces), output) for at, prompt, output, pieces in requests],
                     FORM if case.run else None))
    answers = asyncio.run(play(jobs))
    found = {name: real(case, drawn[name], answers[name], under[name].metrics()) for name, case in cases.items()}
    late = 0
    for name, server in under.items():
        log = server.end()
        steps[name] = base, row = fit(log)
        late = max(late, max((b[4] - max(a[4], b[3]) - base - row * b[0] - COPY_US * b[2]) / 1e6 for a, b in zip(log, log[1:])))
    return found, steps, late


def serve_until_quiet(run, cases, pace):
    for attempt in range(3):
        at = run / str(attempt)
        found, steps, late = serve_cases(at, cases, pace)
        if late < LATE_S:
            break
        print(f"the machine was held up: a step ended {late:.1f} s late; {'once more' if attempt < 2 else 'it is never quiet'}", flush=True)
    return found, steps, {name: next((at / name).glob("trace.*")) for name in cases}


def docs():
    report = json.loads(REPORT.read_text())
    page = ROOT / "docs/control-measured.md"
    text = page.read_text()
    begin, end = text.index("<!-- BEGIN SIM-REAL -->"), text.index("<!-- END SIM-REAL -->")
    lines = [f"Measured: a step takes {report['base_us'] / 1e3:.2f} ms and {report['row_us']:.1f} us for each row, "
             f"a request {report['outside_ms']:.1f} ms outside of the engine.", "", *table(report["rows"])]
    page.write_text(text[:begin] + "<!-- BEGIN SIM-REAL -->\n" + "\n".join(lines) + "\n" + text[end:])
    return 0


def main():
    if "--docs" in sys.argv:
        return docs()
    pace = tuple(map(float, (os.environ.get("PACE") or "30000 100").split()))
    chosen = (os.environ.get("ONLY") or " ".join(CASES)).split()
    found, steps, sims = {}, {}, {}
    with tempfile.TemporaryDirectory(prefix="evenkeel-sim-real-") as folder:
        run, begin = pathlib.Path(folder), time.monotonic()
        base, row, outside_ms = calibrate(run, pace)
        print(f"measured: a step takes {base / 1e3:.2f} ms and {row:.1f} us a row, a request {outside_ms:.1f} ms outside of the engine", flush=True)
        at_once = max(1, (os.cpu_count() or 1) // 2)  # or their servers and clients wait for processors, and no simulation does
        for i in range(0, len(chosen), at_once):
            cases = {name: CASES[name] for name in chosen[i:i + at_once]}
            served, took, traces = serve_until_quiet(run / str(i), cases, pace)
            found.update(served)
            steps.update(took)
            sims.update({name: simulated(traces[name], case, base, row, outside_ms) for name, case in cases.items()})
    for name, (b, r) in steps.items():
        print(f"  {name}: {b / 1e3:.2f} ms and {r:.1f} us a row while it was served")
    rows = compare(found, sims)
    print("\n".join(table(rows)))
    bad = [r["cell"] for r in rows if not r["met"]]
    print(f"{len(rows) - len(bad)} of {len(rows)} within {100 * WITHIN:.0f} % in the simulations, {time.monotonic() - begin:.0f} s"
          + (f"; not: {', '.join(bad)}" if bad else ""))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    rows = sorted(kept(commit, chosen) + rows, key=lambda r: list(CASES).index(r["cell"].split(".")[0]))
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps({"target": "sim-real", "commit": commit, "machine": {"cpu": cpu, "cores": os.cpu_count()}, "base_us": base,
                                  "row_us": row, "outside_ms": outside_ms, "rows": rows}, indent=1) + "\n")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
