#!/usr/bin/env python3
"""A FAKE engine for tests of evenkeeld: no model, no tokens. It speaks what evenkeel-server speaks (metrics, health, live limits,
drain, EVENKEEL-FD on the control socket) over a simulated block pool, and misbehaves when told to. Standard library only.

Flags: --load N       N endless clients press on the pool
       --pool N       blocks of the pool          --max-num-seqs N, --max-num-batched-tokens N
       --start-s S    seconds until ready         --exit-code C   end with C instead of becoming ready
       --oom-start N, --oom-burst N   run out of device memory before being ready, or --oom-after (1) seconds after, while the token budget is above N
       --says TEXT    says so first
       --no-segments  ends with status 1 instead of becoming ready while PyTorch's segments are expandable
       --oom-frag     the same after being ready unless PyTorch's segments are expandable; --oom-host  while there is swap space
       (after being ready: a second after evenkeeld read /metrics for the second time, so that it knows)
       --engine-process  has such a process, and a restart of it mends --frag
       --frag         memory outside the pool grows to 1 GiB of which a tenth was ever used; --frag-trims  a trim gives it back
       --leak         after the first requests a block is held by nobody; --prefixes  unused prefixes fill the pool and are never hit
       --grow N       N MiB more memory each second; --grow-apart  in a process of its own, as of vLLM's engine
       --ranks FILE   two processes more, which hold FILE locked as a GPU is held; when one of them is killed or stops, it ends with 73 and
                      leaves the other behind; it does not start while one of an earlier run holds the file
       --no-preemptions  its page has no counter of preemptions
       --ignore-term  SIGTERM and a drain do nothing
       --junk FILE  /metrics answers what the word in FILE says: 500, html, half, empty, nan, large, above, missing, lost, hang
Signals: SIGUSR1 hang (HTTP answers, no step is made), SIGUSR2 more load, SIGTERM end."""
import argparse
import array
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

p = argparse.ArgumentParser()
for flag, kind, default in (("--model", str, ""), ("--control-socket", str, None), ("--prefix-file", str, ""), ("--load", int, 0), ("--pool", int, 128),
                            ("--max-num-seqs", int, 16), ("--max-num-batched-tokens", int, 2048), ("--start-s", float, 0.2),
                            ("--exit-code", int, -1), ("--oom-start", int, 0), ("--oom-burst", int, 0), ("--oom-after", float, 1.0), ("--swap-space", float, 0),
                            ("--gpu-memory-utilization", float, 0.92), ("--port", int, 0), ("--grow", int, 0)):
    p.add_argument(flag, type=kind, default=default)
p.add_argument("--junk", default="")
p.add_argument("--says", default="")
p.add_argument("--no-preemptions", action="store_true")
p.add_argument("verb", nargs="?")  # as in "vllm serve"
p.add_argument("--ranks", default="")
for flag in ("--listen-from-control", "--oom-frag", "--no-segments", "--ignore-term", "--oom-host", "--frag", "--frag-trims", "--engine-process", "--engine-refuses", "--grow-apart", "--leak", "--prefixes"):
    p.add_argument(flag, action="store_true")
ARGS = p.parse_args()


class Engine:
    """Running requests hold blocks; when the pool is full the last one is preempted and starts over."""

    def __init__(self):
        self.lock = threading.Lock()
        self.ceiling = {"max_num_running_seqs": ARGS.max_num_seqs, "max_num_batched_tokens": ARGS.max_num_batched_tokens}
        self.limits, self.generation = dict(self.ceiling), 1
        self.running, self.waiting = [], 0
        self.steps = self.tokens = self.prompt = self.preempted = self.recomputed = 0
        self.load, self.hung, self.draining, self.leave = ARGS.load, False, False, False
        self.ready_at = time.monotonic() + ARGS.start_s
        self.step_at = time.monotonic()
        self.trimmed, self.read, self.known_at, self.replaced, self.apart = False, 0, None, 0, 0
        self.limits["cached_share"], self.ceiling["cached_share"] = 1.0, 1.0

    def used(self):
        return sum(1 + r // 16 for r in self.running) + (ARGS.leak and time.monotonic() > self.ready_at + 1)

    def pool(self):
        """Bytes outside the KV pool: reserved now, and the most that was ever used."""
        grown = ARGS.frag and time.monotonic() > self.ready_at + 1 and not self.trimmed
        return (1 << 30 if grown else 1 << 27), 1 << 26

    def cached(self):
        return ARGS.pool * 0.9 if ARGS.prefixes else max(0, min(20, ARGS.pool - self.used()))

    def step(self):
        with self.lock:
            if self.hung or time.monotonic() < self.ready_at:
                return
            while not self.draining and len(self.running) < min(self.load, self.limits["max_num_running_seqs"]) \
                    and self.used() < ARGS.pool * 0.97:
                self.running.append(32)
                self.prompt += 32
            self.waiting = max(0, self.load - len(self.running)) if not self.draining else 0
            if not self.running:
                self.step_at = time.monotonic()
                return
            self.running = [r + 4 for r in self.running]
            self.tokens += 4 * len(self.running)
            while self.used() > ARGS.pool:
                self.recomputed += self.running.pop()
                self.preempted += 1
            self.running = [r for r in self.running if r < 400]
            self.steps += 1
            self.step_at = time.monotonic()

    def metrics(self):
        with self.lock:
            self.read += time.monotonic() >= self.ready_at
            if self.read == 2:
                self.known_at = time.monotonic()
            used = self.used()
            rows = [("vllm:num_requests_running", "gauge", "", len(self.running)), ("vllm:num_requests_waiting", "gauge", "", self.waiting),
                    ("vllm:kv_cache_usage_perc", "gauge", "", min(1, used / ARGS.pool)),
                    ("vllm:num_preemptions_total", "counter", "", self.preempted),
                    ("vllm:prompt_tokens_total", "counter", "", self.prompt), ("vllm:generation_tokens_total", "counter", "", self.tokens),
                    ("evenkeel_recomputed_tokens_total", "counter", "", self.recomputed),
                    ("evenkeel_engine_steps_total", "counter", "", self.steps),
                    ("evenkeel_engine_step_age_seconds", "gauge", "", time.monotonic() - self.step_at),
                    ("evenkeel_kv_blocks", "gauge", '{state="total"}', ARGS.pool),
                    ("evenkeel_devpool_reserved_bytes", "gauge", "", self.pool()[0]), ("evenkeel_devpool_used_high_bytes", "gauge", "", self.pool()[1]),
                    ("vllm:prefix_cache_queries_total", "counter", "", time.monotonic() * 1e5),
                    ("vllm:prefix_cache_hits_total", "counter", "", 1),
                    ("evenkeel_kv_blocks", None, '{state="cached"}', self.cached())]
            rows += [("evenkeel_limit", "gauge" if i == 0 else None, f'{{limit="{k}"}}', v) for i, (k, v) in enumerate(self.limits.items())]
            if ARGS.engine_process:
                rows += [("evenkeel_engine_state", None, f'{{state="{k}"}}', int(k == "running")) for k in ("running", "starting", "released")]
                rows.append(("evenkeel_engine_restarts_total", "counter", '{cause="planned"}', self.replaced))
            rows.append(("process_start_time_seconds", "gauge", "", START))
        rows = [r for r in rows if not (ARGS.no_preemptions and "preemptions" in r[0])]
        return "".join((f"# TYPE {n} {t}\n" if t else "") + f"{n}{labels} {v}\n" for n, t, labels, v in rows)

    def config(self):
        return {**self.limits, "generation": self.generation, "ceiling": self.ceiling, "floor": {k: 1 for k in self.limits}}

    def patch(self, change):
        with self.lock:
            if change.get("generation") not in (None, 0, self.generation):
                return 409, {"error": {"message": "stale generation"}}
            wanted = {k: v for k, v in change.items() if k in self.limits}
            for k, v in wanted.items():
                if not 0 < v <= self.ceiling[k]:
                    return 400, {"error": {"message": f"{k} {v} is above the ceiling {self.ceiling[k]}"}}
            self.limits.update(wanted)
            self.generation += 1
            return 200, self.config()


START, ENGINE, LISTEN = time.time(), Engine(), {}
GATE, SERVED, ENDING = threading.RLock(), 0, False


def junk(page):
    """The page, or what the file of --junk says instead."""
    try:
        with open(ARGS.junk) as f:
            kind = f.read().strip()
    except OSError:
        kind = ""
    if kind == "hang":
        time.sleep(30)
    return {"500": (500, page), "html": (200, "<html><body>502 Bad Gateway</body></html>"), "half": (200, page[:len(page) // 3]), "empty": (200, ""),
            "nan": (200, page.replace("kv_cache_usage_perc ", "kv_cache_usage_perc NaN\n#")), "large": (200, "x 1\n" * 2_000_000),
            "above": (200, page.replace("kv_cache_usage_perc ", "kv_cache_usage_perc 97\n#")),
            "twice": (200, page + page.replace(" ", "{a=\"b\"} ")), "lost": (200, page + "evenkeel_reading_age_seconds 120\n"), "missing": (200, page.replace("num_requests_", "renamed_"))}.get(kind, (200, page))


def answer(method, path, body):
    ready = time.monotonic() >= ENGINE.ready_at and not ENGINE.draining
    if path == "/metrics":
        return junk(ENGINE.metrics())
    if path in ("/readyz", "/health", "/livez"):
        return (200 if ready or path == "/livez" else 503), {}
    if path == "/outlived":
        return (200 if ENGINE.known_at and time.monotonic() > ENGINE.known_at + 1.5 else 503), {}
    if path == "/v1/models":
        return 200, {"data": [{"id": "fake"}]}
    if path == "/v1/runtime_config":
        return ENGINE.patch(json.loads(body)) if method == "PATCH" else (200, ENGINE.config())
    if path == "/drain" and ARGS.ignore_term:
        return 200, {}
    if path == "/drain":
        ENGINE.draining, ENGINE.leave = True, json.loads(body or "{}").get("exit", False)
        return 200, {}
    if path == "/resume":
        ENGINE.draining = ENGINE.leave = False
        return 200, {}
    if path == "/v1/engine/restart" and ARGS.engine_refuses:
        return 409, {"error": {"message": "not now"}}
    if path == "/v1/engine/restart" and ARGS.engine_process:
        ENGINE.trimmed, ENGINE.replaced = True, ENGINE.replaced + 1
        if ENGINE.apart:
            os.kill(ENGINE.apart, signal.SIGUSR1)
        return 202, {}
    if path == "/trim":
        ENGINE.trimmed = ARGS.frag_trims
        return 200, {}
    if path == "/v1/completions":
        while ENGINE.hung:
            time.sleep(0.05)
        return 200, {"choices": [{"text": "x"}]}
    return 404, {"error": {"message": "nothing here"}}


def serve(connection):
    try:
        with connection:
            data, fds = b"", []
            while b"\n" not in data:
                part, got, _, _ = socket.recv_fds(connection, 65536, 4) if connection.family == socket.AF_UNIX \
                    else (connection.recv(65536), [], 0, None)
                data, fds = data + part, fds + list(got)
                if not part:
                    return
            if data.startswith(b"EVENKEEL-FD "):
                _, verb, name = data.split(b"\n")[0].decode().split(" ")
                if verb == "put" and fds:
                    LISTEN[name] = socket.socket(fileno=fds[0])
                    threading.Thread(target=accept, args=(LISTEN[name],), daemon=True).start()
                    connection.sendall(b"OK\n")
                elif verb == "get" and name in LISTEN:
                    connection.sendmsg([b"OK\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [LISTEN[name].fileno()]))])
                else:
                    connection.sendall(b"ERR no such socket\n")
                return
            while b"\r\n\r\n" not in data:
                data += connection.recv(65536)
            head, body = data.split(b"\r\n\r\n", 1)
            length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
            while len(body) < length:
                body += connection.recv(65536)
            method, path = head.split(b" ")[:2]
            status, out = answer(method.decode(), path.decode(), body)
            out = out.encode() if isinstance(out, str) else json.dumps(out).encode()
            connection.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: {len(out)}\r\nConnection: close\r\n\r\n".encode() + out)
    except (OSError, ValueError):
        pass


def serve_and_count(connection):
    global SERVED
    try:
        serve(connection)
    finally:
        with GATE:
            SERVED -= 1


def accept(listener):
    """Connections one after the other; what is still in the kernel's queue at an end is the next process's."""
    global SERVED
    listener.setblocking(False)
    while True:
        select.select([listener], [], [])
        with GATE:
            if ENDING:
                return
            try:
                connection, _ = listener.accept()
            except OSError:
                continue  # somebody else who has this socket was quicker
            connection.setblocking(True)
            SERVED += 1
        threading.Thread(target=serve_and_count, args=(connection,), daemon=True).start()


def end(code):
    """Take no more, answer what was taken (a second for what hangs), and end: nobody's connection is reset."""
    global ENDING
    with GATE:
        ENDING = True
    until = time.monotonic() + 1
    while SERVED and time.monotonic() < until:
        time.sleep(0.005)
    os._exit(code)


GIB = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {:.2f} GiB. GPU 0 has a total capacity of 79.15 GiB of which {:.2f} GiB "
       "is free. Including non-PyTorch memory, this process has 70.00 GiB memory in use. Of the allocated memory 60.00 GiB is allocated by "
       "PyTorch, and {:.2f} GiB is reserved by PyTorch but unallocated.")


def run_out(line, code):
    print(line, flush=True)
    os._exit(code)


def misbehave():
    """Runs out of memory when told to; with numbers as PyTorch prints them."""
    if ARGS.oom_start and ARGS.max_num_batched_tokens > ARGS.oom_start:
        run_out(GIB.format(2, 1, 0.2), 1)
    if ENGINE.known_at is None or time.monotonic() < ENGINE.known_at + ARGS.oom_after:
        return
    if ARGS.oom_burst and ARGS.max_num_batched_tokens > ARGS.oom_burst:
        run_out(GIB.format(2, 1, 0.2), 1)
    if ARGS.oom_frag and "expandable_segments:True" not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
        run_out(GIB.format(2, 1, 6), 1)
    if ARGS.oom_host and ARGS.swap_space > 0:
        run_out("std::bad_alloc", 1)


def start_ranks():
    """Their lock is one of the open file, which they share with nobody but each other."""
    device = open(ARGS.ranks, "w")
    try:
        fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        run_out("the device is held by a process of an earlier run", 71)
    ranks = [subprocess.Popen(["sleep", "1000"], pass_fds=[device.fileno()]) for _ in range(2)]
    device.close()
    return ranks


def watch_ranks(ranks):
    """As a watchdog of collectives does: one that does not come back in half a second is an error of all."""
    quiet = {}
    while True:
        for rank, process in enumerate(ranks):
            with open(f"/proc/{process.pid}/stat") as f:
                state = f.read().rsplit(")", 1)[1].split()[0]
            quiet[rank] = quiet.get(rank, 0) + 1 if state in "TZX" else 0
            if quiet[rank] > 25:
                run_out(f"Watchdog caught collective operation timeout: rank {rank} does not answer", 73)
        time.sleep(0.02)


def grow():
    """Memory that nobody gives back, touched so that it counts."""
    kept, parent = [], os.getppid()
    if ARGS.grow_apart:
        signal.signal(signal.SIGUSR1, lambda *_: kept.clear())  # a restart of the engine's process
    while os.getppid() == parent:
        kept.append(bytearray(b"x" * (ARGS.grow << 18)))
        time.sleep(0.25)


def main():
    print("fake engine", os.getpid(), flush=True)
    if ARGS.grow and ARGS.grow_apart:
        apart = os.fork()
        if not apart:
            grow()
            os._exit(0)
        ENGINE.apart = apart
        print("grows apart", apart, flush=True)
    elif ARGS.grow:
        threading.Thread(target=grow, daemon=True).start()
    if ARGS.ranks:
        threading.Thread(target=watch_ranks, args=(start_ranks(),), daemon=True).start()
    signal.signal(signal.SIGUSR1, lambda *_: setattr(ENGINE, "hung", True))
    signal.signal(signal.SIGUSR2, lambda *_: setattr(ENGINE, "load", ENGINE.load + 16))
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ARGS.ignore_term else lambda *_: end(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # evenkeel-server reads its keys again
    if ARGS.says:
        print(ARGS.says, flush=True)
    if ARGS.no_segments and "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
        time.sleep(ARGS.start_s)
        sys.exit(1)
    if ARGS.exit_code >= 0:
        time.sleep(ARGS.start_s)
        sys.exit(ARGS.exit_code)
    if ARGS.control_socket and os.path.exists(ARGS.control_socket):
        os.unlink(ARGS.control_socket)
    control = socket.socket(socket.AF_UNIX if ARGS.control_socket else socket.AF_INET)
    control.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    control.bind(ARGS.control_socket or ("127.0.0.1", ARGS.port))
    control.listen(16)
    threading.Thread(target=accept, args=(control,), daemon=True).start()
    while True:
        ENGINE.step()
        misbehave()
        if ENGINE.leave and not ENGINE.running:
            end(77)
        time.sleep(0.02)


main()
