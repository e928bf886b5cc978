#!/usr/bin/env python3
"""What can only be proven on a card, within a budget of time: sections, each in a process group of its own that is ended when its time is over,
and after each of them OUT/all.json anew, so that whatever ends this program loses nothing. Needs Python and what is built, nothing else.

usage: tools/gpu_run.py [--build DIR] [--out DIR] [--budget SECONDS] [--resume all.json] [--list] [SECTION... | bars | decide]

Without sections those that fit into the budget, in the order below, without those that passed before for this commit (--resume, or OUT/all.json).
"bars": every figure that has a goal, in one call; at its end a table of them all. "decide": what only a card can choose.
Exit status: 0 all that ran passed, 1 something failed, 2 nothing is built, 3 no usable card.

BANDWIDTH (GB/s, 4300) and TFLOPS (790) are what shares are of: an H200's. SHAPE (8b) is the model of decode and prefill.
"""
import argparse
import glob
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINES = 30  # of a failure

# 8B on an H200: tokens per second
GOALS = {"8b.decode.1.1024": 227, "8b.decode.8.1024": 1700, "8b.decode.64.1024": 8700, "8b.decode.256.1024": 15000, "8b.prefill.2048": 38000,
         "8b.prefill.8192": 30000, "8b.fp8.decode.1.1024": 400}
MOST = {"8b.host_us.256": 150, "8b.sample_us.greedy.1": 15}  # microseconds
# What else has a goal: cells whose goal their section sets, and sections that must pass.
OTHERS = ("memory.off", "oom.lost", "oom.served")
CLEAN = ("memcheck", "racecheck")

# Several sections by one name.
#   bars: what those above are measured by, the quickest first.
#   decide: the ways of kernels/cuda/choices.c, with the seconds that each may take at most; a load of the model is about 5 s, a batch 1 to 2:
#   ops 90 (right on a card at all), ab-gemv 30, ab-skinny 30, ab-glu 35, ab-carveout 60, ab-swap 30, ab-experts 90, times 60 (each kernel of
#   a decode of 1, 64 and 256), first 100: 525 of 600. What wins becomes the first value there.
GROUPS = {"bars": ("first", "decode-fp8-1", "memory", "oom", "memcheck", "racecheck"),
          "decide": ("ops", "ab-gemv", "ab-skinny", "ab-glu", "ab-carveout", "ab-swap", "ab-experts", "times", "first")}


class Section:
    """`least`: seconds that must be left to begin it; `most`: after which it is ended. `commands`: lists of words, or lists of those that run
    beside each other; each is (words, environment). `needs`: what must be on the machine, or the section is skipped with that reason."""

    def __init__(self, name, least, most, *commands, needs=None):
        self.name, self.least, self.most, self.commands, self.needs = name, least, most, commands, needs


def sections(build, out, shape):
    gpu = {"EVENKEEL_GPU": "1"}
    few = "tiny-moe" if shape == "small" else "moe"  # a mixture of experts

    def unit(name, **env):
        return [str(build / "tests/unit/cuda" / name)], {**gpu, **env}

    def bench(of, section, weights="bf16", kv="bf16", offload=0, only=()):
        name = "-".join([of, section, weights] + ["kv-" + kv] * (kv != "bf16") + ["offload"] * bool(offload) + list(only))
        words = [str(build / "evenkeel-bench-cuda"), "--shape", of, "--section", section, "--weights", weights, "--kv", kv, "--offload", str(offload),
                 "--bandwidth", os.environ.get("BANDWIDTH", "4300"), "--tflops", os.environ.get("TFLOPS", "790"), "--report", str(out / f"{name}.json")]
        return words + [w for n in only for w in ("--only", n)], {}

    def switched(section, switch, *values, only=(), of=None, more=()):
        """The same cells with each value of a switch; the first is what the others are held against. `only`: its batches or lengths;
        `of`: another shape; `more`: further words."""
        found = []
        for i, value in enumerate(values):  # rows() reads them in the order of their names
            words, _ = bench(of or shape, section)
            words[-1] = str(out / f"ab-{'-'.join([section, *([of] if of else []), *only, str(i)])}@{switch}={value}.json")
            found.append((words + [w for n in only for w in ("--only", n)] + list(more), {switch: value}))
        return found

    def choice(what, *values, **others):
        return switched("decode", f"EVENKEEL_CUDA_{what}", *values, **others)

    def times(rows):
        """What each kernel of a decode takes; the table is in the section's log."""
        words, _ = bench(shape, "decode")
        return [*words[:-2], "--only", str(rows)], {"EVENKEEL_CUDA_TIMES": "1"}

    def model(report, *words):
        return [sys.executable, str(ROOT / "tools/gpu-model.py"), str(build), str(out / report), *words], {}

    def sanitizer(tool, name):
        return ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9", str(build / "tests/unit/cuda" / name)], gpu

    tests = ("test_wgmma", "test_lt", "test_rounded", "test_cuda", "test_packed", "test_sampler", "test_choices")
    plain = [
        # the first ten minutes: is it right, and how fast is an 8B model
        # what hangs must leave the time that the figures of a model need
        Section("ops", 60, 120, [unit(t) for t in tests]),
        Section("big", 40, 120, unit("test_big")),
        Section("first", 60, 300, bench(shape, "first")),
        Section("decode-fp8-1", 20, 60, bench(shape, "decode", "fp8", only=("1",))),
        Section("model", 20, 180, model("model.json")),
        Section("times", 20, 90, times(1), times(64), times(256)),
        Section("memory", 15, 120, model("memory.json", "--memory"), needs="nvidia-smi"),
        Section("oom", 15, 90, model("oom.json", "--oom", "--server", "max-num-seqs=8")),
        Section("ncu", 30, 60, ([sys.executable, str(ROOT / "tools/gpu-ncu.py"), str(out / "ncu.json"), *bench(shape, "first")[0]], {}), needs="ncu"),
        Section("torch", 20, 90, ([sys.executable, str(ROOT / "tools/gpu-torch.py"), str(out / "torch.json")], {}), needs="torch"),
        Section("companion", 15, 180, ([sys.executable, str(ROOT / "tools/gpu-companion.py"), str(out / "companion.json")], {}), needs="torch"),
        Section("memcheck", 40, 240, sanitizer("memcheck", "test_cuda"), needs="compute-sanitizer"),
        Section("racecheck", 40, 240, sanitizer("racecheck", "test_wgmma"), needs="compute-sanitizer"),
        Section("serve", 40, 120, model("serve.json", "--serve")),
        Section("apart", 30, 180, model("apart.json", "--name", "apart", "--kill", "5", "--server", "engine-process")),
        Section("pool", 30, 180, bench(shape, "pool")),
        Section("nccl", 20, 180, unit("test_nccl"), needs="NCCL"),
        # second: other weights, and up to how many rows they are read as they are
        *[Section(f"decode-{w}", 40, 240, bench(shape, "decode", w)) for w in ("int8", "int4", "fp8", "w8a8", "w8a8fp8", "w8a8block")],
        *[Section(f"prefill-{w}", 40, 240, bench(shape, "prefill", w)) for w in ("fp8", "w8a8", "w8a8fp8", "w8a8block")],
        *[Section(f"rows-{w}", 40, 240, bench(shape, "rows", w)) for w in ("int8", "int4", "fp8", "w8a8fp8")],
        Section("decode-kv8", 40, 240, bench(shape, "decode", "fp8", "fp8")),
        Section("model-int8", 20, 180, model("model-int8.json", "--name", "model.int8", "--least", "0.6", "--server", "dtype=bfloat16", "quantization=int8")),
        Section("decode", 40, 240, bench(shape, "decode")),
        Section("prefill", 40, 240, bench(shape, "prefill")),
        # third: with and without, and what is rare; first the ways that kernels/cuda/choices.c offers, one load of the model for each
        Section("ab-gemv", 25, 60, *choice("GEMV", "plain", "ahead", only=("1", "8"))),
        Section("ab-skinny", 25, 60, *choice("SKINNY", "off", "on", only=("32", "64"))),
        Section("ab-glu", 25, 60, *choice("GLU", "apart", "joined", only=("1", "8", "16"))),
        Section("ab-carveout", 40, 90, *choice("CARVEOUT", "driver", "0", "50", "100", only=("1", "8", "64"))),
        Section("ab-swap", 25, 60, *choice("SWAP", "inline", "beside", only=("64",), more=("--swap", "64"))),
        Section("ab-experts", 50, 120, *switched("prefill", "EVENKEEL_CUDA_EXPERTS", "16", "32", "64", only=("512", "2048"), of=few),
                *choice("EXPERTS", "16", "32", "64", only=("128", "256"), of=few)),
        Section("ab-candidate", 60, 540, *switched("prefill", "EVENKEEL_CUBLASLT_CANDIDATE", *map(str, range(8)))),
        Section("ab-candidate-64", 60, 240, *switched("decode", "EVENKEEL_CUBLASLT_CANDIDATE", *map(str, range(8)), only=("64",))),
        Section("ab-wgmma", 60, 400, *switched("prefill", "EVENKEEL_WGMMA", "off", "on")),
        Section("ops-mma", 30, 240, unit("test_cuda", EVENKEEL_WGMMA="off")),
        Section("latent", 90, 300, unit("test_latent"), bench("latent", "decode"), bench("latent", "prefill")),
        Section("recur", 30, 240, unit("test_recur")),
        Section("wide", 90, 300, unit("test_mixed"), bench("wide", "decode"), bench("wide", "prefill"), bench("wide", "decode", "bf16", "int8")),
        Section("int8-cache", 90, 300, unit("test_divide"), bench(shape, "decode", "fp8", "int8"), bench(shape, "prefill", "bf16", "int8")),
        Section("own-gemm", 30, 240, unit("test_cuda", EVENKEEL_CUBLASLT="off"), unit("test_packed", EVENKEEL_CUBLASLT="off")),
        Section("decode-7b", 40, 240, bench("7b", "decode")),
        # the same answers; decode at the pace of the bus, prefill at that of the card
        Section("offload", 60, 400, unit("test_offload"), bench(shape, "decode", offload=4), bench(shape, "prefill", offload=4)),
        Section("serve-vllm", 120, 540, model("serve-vllm.json", "--serve", "--beside", "vllm"), needs="vllm"),
        Section("stages", 60, 300, unit("test_stages"), model("model-stages.json", "--name", "model.stages", "--server", "pipeline-parallel-size=2"),
                needs="two cards"),
    ]
    return {s.name: s for s in plain}


def there(what, machine):
    cards = len(machine["cards"])
    if what == "torch":
        return subprocess.run([sys.executable, "-c", "import torch; raise SystemExit(not torch.cuda.is_available())"],
                              capture_output=True, timeout=60).returncode == 0
    if what == "two cards":
        return cards > 1
    if what == "NCCL":
        return machine.get("nccl") != "not found"
    return what is None or shutil.which(what) is not None


def end_group(process, grace):
    """The command and all that it began: asked, then killed."""
    for sig, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, sig)
        except ProcessLookupError:
            pass
        try:
            process.wait(wait)
            if sig == signal.SIGKILL:
                return
        except subprocess.TimeoutExpired:
            pass


def run_together(commands, logs, until):
    """Runs them beside each other, each with a log of its own; of those that fail what is wrong, and the log."""
    begun, wrong = [], []
    for (words, env), log in zip(commands, logs):
        with open(log, "a", encoding="utf-8") as to:
            try:
                begun.append((words, log, subprocess.Popen(words, env={**os.environ, **env}, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=to, stderr=to,
                                                           start_new_session=True)))
            except OSError as e:
                wrong.append((str(e), log))
    for words, log, process in begun:
        name = pathlib.Path(words[0]).name
        try:
            status = process.wait(max(0.1, until - time.monotonic()))
            if status:
                wrong.append((f"{name}: " + (f"signal {-status}" if status < 0 else f"exit status {status}"), log))
        except subprocess.TimeoutExpired:
            wrong.append((f"{name}: stopped, its time was over", log))
        end_group(process, 5)
    return wrong


def run_section(section, out, until):
    """What is wrong, in at most LINES lines: first what failed, then what it said."""
    until = min(until, time.monotonic() + section.most)
    for log in out.glob(f"{section.name}*.log"):
        if log.name == f"{section.name}.log" or log.name.startswith(f"{section.name}."):
            log.unlink()
    for command in section.commands:
        beside = command if isinstance(command, list) else [command]
        logs = [out / f"{section.name}.{pathlib.Path(words[0]).name}.log" if len(beside) > 1 else out / f"{section.name}.log" for words, _ in beside]
        wrong = run_together(beside, logs, until)
        if wrong:
            each = max(1, (LINES - len(wrong)) // len(wrong))
            return ([w for w, _ in wrong] + [line for _, log in wrong for line in last_lines(log, each)])[:LINES]
    return []


def last_lines(path, most):
    """What a failure says: the lines that fail, else the last ones."""
    lines = [line.rstrip()[:200] for line in open(path, encoding="utf-8", errors="replace") if line.strip()]
    telling = [line for line in lines if re.search(r"\bERROR\b|FAILED|Assert|error|!=|Race reported|Invalid __", line)]
    return (telling or lines)[-most:]


def nvidia_smi():
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.used,clocks.max.sm", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=15).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return []
    return said.splitlines()


def packages():
    """Folders of Python packages that hold CUDA's libraries: this Python's own, for the plug-in."""
    return [p for p in sys.path if glob.glob(os.path.join(p, "nvidia", "*", "lib"))]


def versions():
    """Of CUDA's libraries and torch that are Python packages."""
    found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    return {name: v for name, v in sorted(found.items(), key=str) if name and (name.startswith("nvidia-") or name in ("torch", "vllm"))}


# In a process of its own: a sick card blocks a process that asks it.
ASK_DRIVER = """
import ctypes, json, os, sys
cu = ctypes.CDLL(os.environ.get("EVENKEEL_CUDA_DRIVER") or "libcuda.so.1")
version, vmm = ctypes.c_int(), ctypes.c_int()
cu.cuInit(0)
cu.cuDriverGetVersion(ctypes.byref(version))
cu.cuDeviceGetAttribute(ctypes.byref(vmm), 102, 0)
found = "not found"
named = os.environ.get("EVENKEEL_NCCL")
for path in [named] if named else ["libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2", *sys.argv[1:]]:
    try:
        ctypes.CDLL(path)
        found = path
        break
    except OSError:
        pass
print(json.dumps({"driver_cuda": version.value // 1000 + version.value % 1000 / 100, "virtual_memory": bool(vmm.value), "nccl": found}))
"""


def ask_driver():
    """For which CUDA the driver is, whether it maps memory (the pool can be resized), where NCCL is: {} if that cannot be told."""
    nccl = [str(p) for folder in packages() for p in sorted(pathlib.Path(folder).glob("nvidia/nccl/lib/libnccl.so.2*"))]
    try:
        done = subprocess.run([sys.executable, "-c", ASK_DRIVER, *nccl], capture_output=True, text=True, timeout=15)
        return json.loads(done.stdout) if done.returncode == 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}


def probe(build, machine):
    """Is there a card that the plug-in takes, and what does it compute with? Fills machine; a sentence when not."""
    if packages():
        os.environ.setdefault("EVENKEEL_PYTHON_PACKAGES", ":".join(packages()))
    try:
        listed = subprocess.run([build / "evenkeel-server", "--list-backends"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"{build}/evenkeel-server: {e}"
    line = next((line for line in listed.splitlines() if line.startswith("cuda")), "cuda: no plug-in")
    machine.update(gpu=line, cards=nvidia_smi(), python_packages=packages(), versions=versions())
    if "not usable" in line or "no plug-in" in line:
        return line
    machine.update(ask_driver())
    try:
        small = subprocess.run([build / "evenkeel-bench-cuda", "--shape", "small", "--section", "probe"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"A small model does not run: {e}"
    for key in ("large products", "attention to prompts", "note"):
        found = re.search(rf"^{key}: (.*)$", small.stdout, re.M)
        if found:
            machine[key.replace(" ", "_")] = found[1]
    if machine.get("large_products") == "own kernels" and os.environ.get("EVENKEEL_CUBLASLT") != "off":
        return "cuBLASLt is not found (EVENKEEL_CUBLASLT=off measures without it). " + machine.get("note", "")
    return None if small.returncode == 0 else "A small model does not run: " + (small.stderr.strip() or f"exit status {small.returncode}")[-400:]


def ratios(found):
    """Of every cell measured with several values of a switch (CELL@SWITCH=VALUE): each against that of the first value."""
    first, told = {}, []
    for row in found:
        cell, _, setting = row["cell"].partition("@")
        if not setting:
            continue
        base = first.setdefault((cell, setting.split("=")[0]), row["value"])
        if base > 0:
            told.append({"cell": row["cell"] + ".ratio", "value": row["value"] / base, "unit": "1"})
    return told


def rows(out):
    found = []
    for path in sorted(out.glob("*.json")):
        if path.name == "all.json":
            continue
        text = path.read_text(errors="replace")
        try:
            read = json.loads(text)["rows"]
        except (ValueError, KeyError):  # its writer was ended: what is whole of it counts
            read = [json.loads(row) for row in re.findall(r'\{"cell":[^{}]*\}', text)]
        if "@" in path.stem:
            read = [{**row, "cell": f"{row['cell']}@{path.stem.split('@')[1]}"} for row in read]
        found += read
    found += ratios(found)
    for row in found:
        if row["cell"] in GOALS:
            row["goal"] = GOALS[row["cell"]]
            row["met"] = row["value"] >= row["goal"]
        elif row["cell"] in MOST:
            row["goal"] = MOST[row["cell"]]
            row["met"] = row["value"] <= row["goal"]
    return found


def write(out, report, before):
    report["rows"] = rows(out)
    here = {row["cell"] for row in report["rows"]}
    report["rows"] += [row for row in before if row["cell"] not in here]
    report["bars"] = bars(report)
    new = out / "all.json.new"
    new.write_text(json.dumps(report, indent=1) + "\n")
    new.replace(out / "all.json")


def table(report):
    print(f"{'section':16} {'result':8} {'seconds':>8}")
    for s in report["sections"]:
        print(f"{s['name']:16} {s['result']:8} {s['seconds']:8.0f}  {s.get('why', [''])[0][:90] if s['result'] != 'passed' else ''}")
    print(f"\n{'cell':40} {'value':>12} unit       goal")
    for row in report["rows"]:
        goal = f"{row['goal']} {'met' if row['met'] else 'MISSED'}" if "goal" in row else ""
        print(f"{row['cell']:40} {row['value']:12.4g} {row['unit']:10} {goal}")


def bars(report):
    """Everything that has a goal, whether it was measured or not."""
    rows = {row["cell"]: row for row in report["rows"]}
    results = {s["name"]: s["result"] for s in report["sections"]}
    told = []
    for cell in (*GOALS, *MOST, *OTHERS):
        row = rows.get(cell, {})
        told.append({"bar": cell, "value": row.get("value"), "goal": row.get("goal", GOALS.get(cell, MOST.get(cell))), "met": row.get("met")})
    for name in CLEAN:
        told.append({"bar": name, "value": results.get(name), "goal": "passed",
                     "met": {"passed": True, "FAILED": False}.get(results.get(name))})
    return told


def table_of_bars(told):
    print(f"\n{'bar':40} {'value':>12} {'goal':>10}")
    for b in told:
        value = b["value"] if isinstance(b["value"], str) else "" if b["value"] is None else f"{b['value']:.4g}"
        word = {True: "met", False: "MISSED", None: "not measured"}[b["met"]]
        print(f"{b['bar']:40} {value:>12} {'' if b['goal'] is None else b['goal']:>10} {word}")


def commit_of():
    stamp = ROOT / "COMMIT"
    if stamp.exists():
        return stamp.read_text().strip()
    try:
        return subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def earlier(path, commit):
    """Sections that passed for this commit, and their rows."""
    try:
        report = json.loads(pathlib.Path(path).read_text())
        if report["commit"] != commit:
            return [], []
        return [s for s in report["sections"] if s["result"] == "passed"], report["rows"]
    except (OSError, ValueError, KeyError):
        return [], []


def put_aside(out, commit):
    """Reports of another commit are no figures of this one: they go into a folder of its name."""
    try:
        other = json.loads((out / "all.json").read_text())["commit"]
    except (OSError, ValueError, KeyError):
        return
    if other != commit:
        to = out / re.sub(r"\W", "_", str(other))
        to.mkdir(exist_ok=True)
        for path in (*out.glob("*.json"), *out.glob("*.log")):
            path.replace(to / path.name)


def arguments():
    p = argparse.ArgumentParser(description="What only a card can show, within a budget of time.")
    p.add_argument("--build", default=os.environ.get("B", "build/release"), help="where the programs are")
    p.add_argument("--out", default="build/reports/gpu", help="logs, reports, all.json")
    p.add_argument("--budget", type=float, default=540, help="seconds for all of it; a call of ten minutes by itself (default 540)")
    p.add_argument("--resume", help="all.json of an earlier run; else the one in --out")
    p.add_argument("--shape", default=os.environ.get("SHAPE", "8b"), help="of decode and prefill: 8b, 7b, small")
    p.add_argument("--list", action="store_true", help="says which sections there are")
    p.add_argument("section", nargs="*")
    return p.parse_args()


def main():
    a = arguments()
    started = time.monotonic()
    build, out = (ROOT / a.build).resolve(), (pathlib.Path.cwd() / a.out).resolve()
    known = sections(build, out, a.shape)
    if a.list:
        print("\n".join([*known, *(f"{name}: {' '.join(of)}" for name, of in GROUPS.items())]))
        return 0
    named = [s for s in a.section if s in known]
    a.section = list(dict.fromkeys(name for s in a.section for name in GROUPS.get(s, (s,))))
    unknown = [s for s in a.section if s not in known]
    if unknown:
        print(f"There is no section {unknown[0]}; there are: {' '.join([*known, *GROUPS])}", file=sys.stderr)
        return 2
    places = [build, *map(pathlib.Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))]
    if not any((p / "libevenkeel-cuda.so").exists() for p in places):
        print("There is no plug-in: build it where nvcc is (make cuda CUDA_ARCHS=90a).", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    os.environ["COMMIT"] = commit = commit_of()
    put_aside(out, commit)
    passed, before = earlier(a.resume or out / "all.json", commit)
    report = {"target": "gpu", "commit": commit, "machine": {}, "budget_s": a.budget, "sections": [s for s in passed if s["name"] not in a.section]}
    wrong = probe(build, report["machine"])
    if wrong:
        report["sections"].append({"name": "probe", "result": "FAILED", "seconds": time.monotonic() - started, "why": [wrong]})
        write(out, report, before)
        print(f"No card to check on. {wrong}", file=sys.stderr)
        return 3
    print(f"{report['machine']['gpu']}; {report['machine'].get('large_products', '')}", flush=True)
    done = {s["name"] for s in report["sections"]}
    until, failed = started + a.budget, False
    for section in [known[n] for n in a.section] if a.section else [s for n, s in known.items() if n not in done]:
        begin = time.monotonic()
        if not there(section.needs, report["machine"]):
            result, why = "skipped", [f"there is no {section.needs}" if section.needs != "two cards" else "there are no two cards"]
        elif until - begin < (1 if section.name in named else section.least):
            result, why = "left", [f"{max(0, until - begin):.0f} s are left, it wants {section.least}"]
        else:
            why = run_section(section, out, until)
            result = "FAILED" if why else "passed"
        failed |= result == "FAILED"
        report["sections"].append({"name": section.name, "result": result, "seconds": round(time.monotonic() - begin, 1),
                                   **({"why": why} if why else {})})
        report["spent_s"] = round(time.monotonic() - started, 1)
        write(out, report, before)
        print(f"== {section.name}: {result}" + (f" in {time.monotonic() - begin:.0f} s" if result in ("passed", "FAILED") else f", {why[0]}"), flush=True)
        for line in why if result == "FAILED" else []:
            print("   " + line, flush=True)
    table(report)
    if not a.section or set(GROUPS["bars"]) <= set(a.section):
        table_of_bars(report["bars"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
