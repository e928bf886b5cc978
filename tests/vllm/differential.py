"""A real vLLM and this server, asked the same at the same time: what drawn.py makes, and after it what both count in /metrics.
    differential.py [--sets counts,web,sweep,bend,draw] [--seed N] [--count N] [--report FILE] [--theirs PORT --ours PORT]
Every difference must be in differences.py or differences_live.py; one that is not is made smaller first (fields are left out while it stays), then printed with
the request that shows it. Needs what tools/vllm-install.sh installs, and says so without it. Both servers run with the flags of ask.py; one
that fails while it is asked is started again and the request that ended it is a finding of its own."""
import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from ask import ACCESS, KEY, VLLM_ENV, VLLM_PYTHON, command, free_port, record, send, stop, wait_ready  # noqa: E402
from cases import CHAT, FOX, ITALY, JSON, KV, PLAIN, SOFIA, WEATHER  # noqa: E402
from compare import accepted_by, differences, reduced  # noqa: E402
from differences_live import LIVE  # noqa: E402
from drawn import BASES, bend, draw, fields_of, sweep  # noqa: E402
from web import WEB  # noqa: E402


class Server:
    """One of the two, begun anew when it has ended."""

    def __init__(self, kind, folder, port=None):
        self.kind, self.log, self.process, self.port = kind, pathlib.Path(folder) / f"{kind}.log", None, port
        self.ended_by = []

    def start(self):
        if self.process is None and self.port:
            return  # somebody else's
        self.port = free_port()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*map(str, command(self.kind)), *ACCESS, "--port", str(self.port)], stdout=log, stderr=log, start_new_session=True,
                                            env={**os.environ, **(VLLM_ENV if self.kind == "vllm" else {})})

    def ready(self):
        if self.process:
            wait_ready(self.process, self.port, 400)
        return self

    def stop(self):
        if self.process:
            stop(self.process)

    def ask(self, case):
        answer = record(self.port, case)
        if answer["status"] in (0, 500, 502, 503) and self.process and not self.alive():
            self.ended_by.append(case)
            self.stop()
            self.start()
            self.ready()
        return answer

    def alive(self):
        for _ in range(8):  # an engine that ends takes its server along within seconds
            try:
                if self.process.poll() is not None or send(self.port, "GET", "/health", None, {}, 10)[0] != 200:
                    return False
            except OSError:
                return False
            time.sleep(0.25)
        return True


def is_meant(name, path, what):
    return accepted_by(name, path, what) or any(re.fullmatch(names, name) and re.fullmatch(where, f"{path} {what}") for names, where, _ in LIVE)


class Pair:
    def __init__(self, theirs, ours):
        self.theirs, self.ours, self.pool = theirs, ours, concurrent.futures.ThreadPoolExecutor(2)
        self.asked = self.alike = 0

    def differ(self, case):
        """[(path, what)] that nothing lists, and whether there were others."""
        both = [self.pool.submit(s.ask, case) for s in (self.theirs, self.ours)]
        theirs, ours = (reduced(b.result()) for b in both)
        self.asked += 1
        if 0 in (theirs["status"], ours["status"]):
            return [("status", f"{theirs['status']} {ours['status']}: no answer")]
        found = differences(theirs, ours)
        self.alike += not found
        return [(p, w) for p, w in found if not is_meant(case[0], p, w)]


def marks_of(found):
    """What a difference is, without the values."""
    return {(p, re.sub(r"(value|length) .*", r"\1", w)) for p, w in found}


def smaller(pair, case, found):
    """The case with as few fields as show one of the same differences."""
    name, method, path, body, headers = case
    api = name.split(" ")[0]
    for field in sorted(set(body) - set(BASES[api])):
        less = {k: v for k, v in body.items() if k != field}
        labels = [part for part in name.split(" ") if not re.match(re.escape(field) + r"[#=]", part)]
        tried = (" ".join(labels), method, path, less, headers)
        left = pair.differ(tried)
        if marks_of(left) & marks_of(found):
            name, body, found = tried[0], less, left
    return (name, method, path, body, headers), found


def shown(body):
    return body.decode(errors="replace") if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False)


def go(pair, cases, report):
    groups = {}
    for case in cases:
        found = pair.differ(case)
        if found and " drawn" in case[0]:
            case, found = smaller(pair, case, found)
        if not found:
            continue
        key = (case[0].split(" ")[0], *sorted(marks_of(found))[:3])
        groups.setdefault(key, []).append((case, found))
    for key, members in sorted(groups.items(), key=lambda g: -len(g[1])):
        case, found = members[0]
        print(f"{len(members)} like {case[0]}\n    {case[1]} {case[2]} {shown(case[3])[:300]}")
        for path, what in found[:6]:
            print(f"    {path} {what[:160]}")
    if report:
        pathlib.Path(report).write_text("".join(json.dumps({"name": c[0], "body": shown(c[3]), "found": f}, ensure_ascii=False) + "\n"
                                                for members in groups.values() for c, f in members), encoding="utf-8")
    return sum(map(len, groups.values()))


# ---- what both count ----

COUNTED = [
    (CHAT, {"messages": ITALY, "max_tokens": 40}), (CHAT, {"messages": KV, "max_tokens": 8}), (CHAT, {"messages": KV, "max_tokens": 8}),
    (CHAT, {"messages": KV, "max_tokens": 40, "stop": ["the"]}), (CHAT, {"messages": KV, "max_tokens": 8, "stream": True}),
    (PLAIN, {"prompt": ["The", FOX], "max_tokens": 5}), (PLAIN, {"prompt": FOX, "max_tokens": 5, "n": 2, "temperature": 0.5, "top_k": 1}),
    (PLAIN, {"prompt": FOX, "n": 0}), (PLAIN, {"model": "nope", "prompt": FOX}), (PLAIN, {"prompt": [497] * 2048, "max_tokens": 1}),
    (CHAT, {"messages": SOFIA, "tools": [WEATHER], "max_tokens": 60}), (PLAIN, {"prompt": FOX, "max_tokens": 4, "structured_outputs": {"choice": ["yes", "no"]}}),
    ("/v1/responses", {"input": "What is the capital of Italy?", "max_output_tokens": 3, "store": False}),
    ("/v1/messages", {"messages": ITALY, "max_tokens": 3}), ("/tokenize", {"prompt": FOX}),
]


def series_of(port):
    """{series: value}; of histograms of times only how many."""
    from urllib.request import urlopen
    out = {}
    for line in urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode().splitlines():
        if line.startswith(("vllm:", "http_")):
            name, value = line.rsplit(" ", 1)
            family, _, labels = name.rstrip("}").partition("{")
            out[f"{family}{{{','.join(sorted(re.findall(r'[^,]+=.[^,]*', labels)))}}}"] = float(value)
    return out


def counts(pair):
    """What the same requests add to the counters of both. Series of times differ: of these the counts alone are compared."""
    before = [series_of(s.port) for s in (pair.theirs, pair.ours)]
    for number, (path, body) in enumerate(COUNTED):
        pair.differ((f"counted{number}", "POST", path, {"model": "tiny", "temperature": 0, **body}, JSON))
    time.sleep(1.5)
    after = [series_of(s.port) for s in (pair.theirs, pair.ours)]
    theirs, ours = ({k: a[k] - b.get(k, 0) for k in a} for a, b in zip(after, before))
    bad = []
    for name in sorted(theirs.keys() | ours.keys()):
        family = name.split("{")[0]
        if not name.startswith("vllm:") or re.search(r"(seconds|_time)(_milliseconds)?(_per\w+)?_(sum|bucket)$|_created$|_perc$|vllm:cache_config_info|iteration_tokens", family):
            continue
        a, b = theirs.get(name), ours.get(name)
        what = "missing" if b is None else "extra" if a is None else f"value {a:g} → {b:g}"
        if a != b and not is_meant("counts", name, what):
            bad.append(f"    {name} {what}")
    print("\n".join(["counted otherwise:", *bad] if bad else ["counters alike"]))
    return len(bad)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--sets", default="counts,web,sweep,bend,draw")
    p.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
    p.add_argument("--count", type=int, default=400)
    p.add_argument("--report")
    p.add_argument("--only", default="", help="a regular expression on names")
    p.add_argument("--theirs", type=int)
    p.add_argument("--ours", type=int)
    args = p.parse_args()
    if not VLLM_PYTHON.exists():
        print(f"skipped: there is no vLLM at {VLLM_PYTHON}; `tools/vllm-install.sh DIR` installs one (7 GB), VLLM=DIR names it")
        return 0
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        servers = [Server("vllm", folder, args.theirs), Server("evenkeel", folder, args.ours)]
        for s in servers:
            s.start()
            ends.callback(s.stop)
        pair = Pair(*(s.ready() for s in servers))
        sets, bad, begin = args.sets.split(","), 0, time.monotonic()
        if "counts" in sets:
            bad += counts(pair)
        cases = list(WEB) if "web" in sets else []
        if "sweep" in sets:
            cases += sweep(fields_of(json.loads(send(pair.theirs.port, "GET", "/openapi.json", None, {"Authorization": f"Bearer {KEY}"})[2])))
        cases += bend() if "bend" in sets else []
        cases += draw(args.seed, args.count) if "draw" in sets else []
        bad += go(pair, [c for c in cases if re.search(args.only, c[0])], args.report)
        for s in servers:
            for case in s.ended_by:
                print(f"{s.kind} ended by {case[0]}: {shown(case[3])[:400]}")
                bad += s.kind == "evenkeel"
        print(f"seed {args.seed}: {pair.asked} requests in {time.monotonic() - begin:.0f} s, {pair.alike} alike, {bad} not listed")
    return bad > 0


if __name__ == "__main__":
    raise SystemExit(main())
