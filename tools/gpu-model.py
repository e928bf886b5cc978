#!/usr/bin/env python3
"""The embedded model through evenkeel-server on a card: the reference's answers, or serving.

usage: gpu-model.py BUILD_DIR REPORT.json [--serve [--beside vllm] | --memory | --oom | --kill 5] [--device cuda] [--seconds 30] [--clients 64]

Without --serve each question of tests/fixtures/expected.json is asked, greedily, alone and then all
at once; answers must be the reference's text. In bfloat16 a token may differ where two logits lie
close: a case counts as right when the text is the same, and 90 % of all must be (--least: fewer,
for a server that quantizes). With --serve clients
ask for so long while the KV pool is full of work; every answer must be whole. With --memory what the
card has in use for the server is held against the share of it that the plan was given.
With --oom the driver says that it has no memory for a step of a decode of eight, nor when it is
tried again (BUILD_DIR/tests/cuda/libfailing-cuda.so in front of it): that must cost one request,
the others go on, and so does the server.
With --beside the same clients then ask a vLLM with the same model, which has the card to itself.
With --kill the engine's process (--server engine-process) is killed so often while all are asked at
once: no client may notice, and the pauses are told.
"""
import argparse
import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

MODEL = "models/evenkeel-tiny"
FAILURES = 5  # three in a row end a request; the step under way may end well behind the first two, and the count begins anew


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(build, device, port, more, env):
    command = ["evenkeel-server", "--model", MODEL, "--device", device, "--host", "127.0.0.1", "--port", str(port), *more]
    return ready(command, port, 60, f"{build}/", env)


def ready(command, port, seconds, folder="", env=None):
    server = subprocess.Popen([folder + command[0], *command[1:]], env={**os.environ, **(env or {})})
    for _ in range(10 * seconds):
        if server.poll() is not None:
            sys.exit(f"the server ended with {server.returncode}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
            return server
        except OSError:
            time.sleep(0.1)
    server.kill()
    sys.exit(f"{command[0]} did not become ready in {seconds} s")


def ask(port, messages, limit, **more):
    body = json.dumps({"model": "evenkeel-tiny", "messages": messages, "temperature": 0,
                       "max_tokens": limit, **more}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body,
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        a = json.load(answer)
    return a["choices"][0]["message"]["content"], a["usage"]["completion_tokens"]


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(c) for c in f.read().split()]


def counted(port, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        return sum(float(line.rsplit(" ", 1)[1]) for line in page.read().decode().splitlines() if line.startswith(name))


def kill_engine(server, port, times):
    """Its launcher is the server's child, and it is the launcher's."""
    for n in range(1, times + 1):
        time.sleep(1)
        for engine in [e for launcher in children(server.pid) for e in children(launcher)]:
            os.kill(engine, signal.SIGKILL)
        until = time.time() + 120
        while counted(port, "evenkeel_engine_pause_seconds_count") < n and time.time() < until:
            time.sleep(0.05)
    return counted(port, "evenkeel_engine_pause_seconds_count"), counted(port, "evenkeel_engine_pause_seconds_sum")


def goldens(port, cases, limit, name_of, least, server, kills):
    rows = []
    alone = [ask(port, c["messages"], limit)[0] for c in cases]
    with concurrent.futures.ThreadPoolExecutor(17) as pool:
        killed = pool.submit(kill_engine, server, port, kills)
        crowd = list(pool.map(lambda c: ask(port, c["messages"], limit)[0], cases))
        while kills and not killed.done():
            ask(port, cases[0]["messages"], limit)
    if kills:
        count, seconds = killed.result()
        print(f"  {count:.0f} of {kills} engines replaced, {1000 * seconds / max(count, 1):.0f} ms each")
        rows += [{"cell": f"{name_of}.replaced", "value": count, "unit": "1", "goal": kills, "met": count >= kills},
                 {"cell": f"{name_of}.pause", "value": 1000 * seconds / max(count, 1), "unit": "ms"}]
    for name, answers in (("alone", alone), ("together", crowd)):
        right = sum(a == c["output_text"] for a, c in zip(answers, cases))
        for a, c in zip(answers, cases):
            if a != c["output_text"]:
                print(f"  {name}, {c['name']}: {a!r} instead of {c['output_text']!r}")
        print(f"  {name}: {right} of {len(cases)} answers are the reference's")
        rows.append({"cell": f"{name_of}.{name}", "value": right / len(cases), "unit": "1",
                     "goal": least, "met": right >= least * len(cases)})
    return rows


def bench_serve(program, port, clients, requests):
    """{cell: value} of evenkeel-bench: prompts of 128 random tokens, answers of 128; nothing may fail."""
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as report:
        subprocess.run([program, "serve", "--url", f"http://127.0.0.1:{port}", "--served-model", "evenkeel-tiny", "--clients", str(clients),
                        "--requests", str(requests), "--report", report.name], check=True, stdout=subprocess.DEVNULL)
        return {row["cell"]: row["value"] for row in json.load(report)["rows"]}


def serve_by_bench(program, port, seconds, clients, name):
    """As serve(), but with clients that are no limit to a fast server. As many requests as about fill the time."""
    quick = bench_serve(program, port, clients, 2 * clients)
    found = bench_serve(program, port, clients, max(2 * clients, int(quick["serve.answers"] * seconds)))
    print(f"  {name}: {clients} clients of evenkeel-bench: {found['serve.answers']:.1f} answers/s, {found['serve.output']:.0f} tokens/s, "
          f"first token in {found['serve.ttft.p50']:.1f} ms (median)")
    return [{"cell": f"{name}.{clients}.tokens", "value": found["serve.output"], "unit": "token/s"},
            {"cell": f"{name}.{clients}.requests", "value": found["serve.answers"], "unit": "1/s"},
            {"cell": f"{name}.{clients}.first_token", "value": found["serve.ttft.p50"], "unit": "ms"}]


def serve(port, cases, limit, seconds, clients, name="serve", bench=None):
    if bench and os.path.exists(bench):
        return serve_by_bench(bench, port, seconds, clients, name)
    until = time.time() + seconds
    begin = time.time()

    def client(i):
        tokens = requests = 0
        while time.time() < until:
            text, n = ask(port, cases[(i + requests) % len(cases)]["messages"], limit)
            if not text:
                raise SystemExit("an empty answer")
            tokens += n
            requests += 1
        return tokens, requests
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        done = list(pool.map(client, range(clients)))
    took = time.time() - begin
    tokens, requests = (sum(d[k] for d in done) for k in (0, 1))
    print(f"  {name}: {clients} clients, {took:.1f} s: {requests} answers, {tokens / took:.0f} tokens/s")
    return [{"cell": f"{name}.{clients}.tokens", "value": tokens / took, "unit": "token/s"},
            {"cell": f"{name}.{clients}.requests", "value": requests / took, "unit": "1/s"}]


def beside(program, own, port, cases, limit, a):
    """The same of a vLLM, after our server has given the card back, and our tokens over its."""
    server = ready([program, "serve", MODEL, "--served-model-name", "evenkeel-tiny", "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048",
                    "--gpu-memory-utilization", str(a.share), "--max-num-seqs", str(a.clients)], port, 240)
    try:
        serve(port, cases, limit, 3, a.clients, "warm", a.bench)  # what it compiles with its first requests
        rows = serve(port, cases, limit, a.seconds, a.clients, "serve-vllm", a.bench)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            server.kill()
    ratio = own[0]["value"] / rows[0]["value"]
    print(f"  {ratio:.2f} times the tokens of vLLM")
    return [*rows, {"cell": f"serve.{a.clients}.over_vllm", "value": ratio, "unit": "1"}]


def card_memory():
    """(total, in use) in MiB, of the first card, by NVML"""
    said = subprocess.run(["nvidia-smi", "--id=0", "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"],
                          capture_output=True, text=True, timeout=30, check=True).stdout
    return tuple(float(n) for n in said.split(","))


def memory(port, cases, limit, before, share):
    """After some work: a plan for a share of the card that takes more or less than that by 1 % is wrong."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda c: ask(port, c["messages"], limit), cases[:32]))
    total, used = card_memory()
    taken, planned = used - before, total * share
    print(f"  {taken:.0f} MiB in use, {planned:.0f} MiB planned: {taken / planned:.4f}")
    return [{"cell": "memory.taken", "value": taken, "unit": "MiB"}, {"cell": "memory.planned", "value": planned, "unit": "MiB"},
            {"cell": "memory.off", "value": abs(taken / planned - 1), "unit": "1", "goal": 0.01, "met": abs(taken / planned - 1) <= 0.01}]


def failing(build, when):
    """The variables of a server whose driver has no memory for a step, nor when it is tried again, from when that file says so."""
    if "EVENKEEL_CUDA_DRIVER" in os.environ:
        sys.exit("--oom puts a driver in front of the one that the linker finds: unset EVENKEEL_CUDA_DRIVER")
    return {"EVENKEEL_CUDA_DRIVER": os.path.abspath(f"{build}/tests/cuda/libfailing-cuda.so"), "EVENKEEL_FAILING": f"cuGraphLaunch:{FAILURES}:2:{when}"}


def no_memory(port, cases, tokens, when):
    """Eight at once, of which one must end when all of them are computed; then one more. If none ended, nothing would have failed."""
    def one(c):
        try:
            return ask(port, c["messages"], tokens, ignore_eos=True)[1] == tokens
        except urllib.error.HTTPError as e:
            print(f"  {c['name']}: {e.code} {e.read().decode(errors='replace').strip()[:200]}")
            return False
    crowd = cases[:8]
    with concurrent.futures.ThreadPoolExecutor(len(crowd)) as pool:
        jobs = [pool.submit(one, c) for c in crowd]
        while counted(port, "vllm:num_requests_running") < len(crowd) and not any(j.done() for j in jobs):
            time.sleep(0.01)
        when.write(b"1")
        when.flush()
        lost = sum(not j.result() for j in jobs)
    after = one(crowd[0])
    print(f"  {lost} of {len(crowd)} requests ended for memory; the server {'goes on' if after else 'does not go on'}")
    return [{"cell": "oom.lost", "value": lost, "unit": "1", "goal": 1, "met": lost == 1},
            {"cell": "oom.served", "value": len(crowd) - lost + after, "unit": "1", "goal": len(crowd), "met": after and lost == 1}]


def write(report, rows):
    os.makedirs(os.path.dirname(report) or ".", exist_ok=True)
    with open(report, "w", encoding="utf-8") as f:
        json.dump({"target": "gpu-model", "rows": rows}, f)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("build")
    p.add_argument("report")
    p.add_argument("--serve", action="store_true")
    p.add_argument("--beside", metavar="PROGRAM", help="with --serve: vllm")
    p.add_argument("--bench", help="with --serve: evenkeel-bench (default BUILD_DIR's); where there is none, this program's own clients ask")
    p.add_argument("--memory", action="store_true")
    p.add_argument("--oom", action="store_true")
    p.add_argument("--kill", type=int, default=0, help="ends of the engine's process")
    p.add_argument("--share", type=float, default=0.85, help="of the card, with --memory")
    p.add_argument("--device", default="cuda")
    p.add_argument("--seconds", type=float, default=30)
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--cases", type=int, default=1000)
    p.add_argument("--limit", type=int)
    p.add_argument("--least", type=float, default=0.9, help="share of the answers that must be the same")
    p.add_argument("--name", default="model", help="of the cells")
    p.add_argument("--server", nargs="*", default=[], help="more options of the server, without --")
    a = p.parse_args()
    a.bench = f"{a.build}/evenkeel-bench" if a.bench is None else a.bench
    expected = json.load(open("tests/fixtures/expected.json", encoding="utf-8"))
    chats = [c for c in expected["cases"] if "messages" in c and "output_text" in c and "tools" not in c]
    cases, limit = chats[:a.cases], a.limit or expected["limit"]
    port = free_port()
    before = card_memory()[1] if a.memory else 0
    if a.oom:
        a.server.append("no-sandbox")  # which lets no server read a file that says when its driver fails
    if a.memory:
        a.server.append(f"gpu-memory-utilization={a.share}")
    when = tempfile.NamedTemporaryFile()
    when.write(b"\0")
    when.flush()
    when.seek(0)
    server = start(a.build, a.device, port, ["--" + o for o in a.server], failing(a.build, when.name) if a.oom else {})
    try:
        if a.memory:
            rows = memory(port, cases, limit, before, a.share)
        elif a.oom:
            rows = no_memory(port, cases, a.limit or 800, when)
        elif a.serve:
            rows = serve(port, cases, limit, a.seconds, a.clients, bench=a.bench)
        else:
            rows = goldens(port, cases, limit, a.name, a.least, server, a.kill)
    finally:
        server.send_signal(signal.SIGTERM)
        ended = server.wait(timeout=60)
    write(a.report, rows)
    if a.serve and a.beside and ended == 0:
        write(a.report, rows + beside(a.beside, rows, free_port(), cases, limit, a))
    if ended != 0:
        sys.exit(f"the server ended with {ended}")
    sys.exit(0 if all(r.get("met", True) for r in rows) else 1)


if __name__ == "__main__":
    main()
