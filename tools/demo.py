#!/usr/bin/env python3
"""make demo: evenkeeld starts evenkeel-server with the embedded model, three questions are answered, then 16 clients press on a
KV pool made small on purpose: preemptions rise, evenkeeld lowers the limit, the harm ends, the limit climbs again.

Stays up until Ctrl-C on a terminal; without one it ends by itself within 90 s, with exit status 0. Standard library only."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

from client import get, stream

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / os.environ.get("B", "build/release")
WIDTH = min(shutil.get_terminal_size((100, 24)).columns, 140)
TTY = sys.stdout.isatty() and sys.stdin.isatty()
QUESTIONS = ["What is the KV cache?", "Why does a full KV cache cause preemption?", "What is the capital of Italy?"]
CONFIG = """\
# The demo's configuration: the waits of the control law are short, so that one minute shows it all.
listen: 127.0.0.1:{page}
socket: {run}/evenkeeld.sock
run_dir: {run}
state_dir: {run}/state
servers:
  demo:
    engine: evenkeel
    command: [{server}, --model, {model}, --served-model-name, evenkeel-tiny, --max-num-seqs, "16",
              --max-model-len, "1024", --block-size, "16", --num-gpu-blocks-override, "129",
              --stalled-share, "0"]
    host: 127.0.0.1
    port: {port}
    poll_s: 0.5
    log_file: {run}/server.log
    limits:
      max_num_running_seqs: {{min: 2}}
    policy: {{reserve_most: 0, window_s: 4, warmup_s: 2, usage_high: 0.85, usage_release: 0.80, settle_s: 4, effect_s: 8,
             raise_every_s: 2, raise_after_cut_s: 4, raise_step: 2, sat_low_s: 60}}
"""
BOLD, DIM, GREEN, YELLOW, BLUE, OFF = ("\033[1m", "\033[2m", "\033[32m", "\033[33m", "\033[36m", "\033[0m") if TTY else ("",) * 6


RECENT = []  # ports that were given and may not be bound yet


def free_port(wanted):
    """The wanted port, or any free one when it is taken. PORT_SHIFT= keeps tests that run beside others out of their way."""
    for port in (wanted + int(os.environ.get("PORT_SHIFT", "0")), *[0] * 20):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            got = s.getsockname()[1]
        if port == 0 and got in RECENT:
            continue
        if port == 0:
            print(f"{DIM}Port {wanted} is taken: {got} is used instead.{OFF}")
        RECENT[:] = [*RECENT[-15:], got]
        return got
    raise SystemExit("no free port")


def say(text):
    print(f"\n{BOLD}{text}{OFF}", flush=True)


class Demo:
    def __init__(self, run):
        self.run, self.port, self.page = run, free_port(8000), free_port(9464)
        self.stop, self.seen, self.errors, self.tokens = threading.Event(), 0.0, 0, 0
        config = run / "evenkeeld.yaml"
        config.write_text(CONFIG.format(page=self.page, port=self.port, run=run, server=BUILD / "evenkeel-server",
                                        model=ROOT / "models/evenkeel-tiny"))
        self.log = open(run / "evenkeeld.log", "wb")
        self.process = subprocess.Popen([BUILD / "evenkeeld", "--config", config], stdout=self.log, stderr=self.log)

    def api(self, path):
        status, body = get(self.page, path)
        if status != 200:
            raise RuntimeError(f"{path}: status {status}")
        return json.loads(body)

    def wait_ready(self):
        for _ in range(300):
            if self.process.poll() is not None:
                raise SystemExit(f"evenkeeld ended with status {self.process.returncode}; its log:\n"
                                 + (self.run / "evenkeeld.log").read_text()[-3000:])
            try:
                if self.api("/api/v1/servers")["servers"][0]["ready"]:
                    return
            except (OSError, RuntimeError, ValueError, LookupError):
                pass
            time.sleep(0.1)
        raise SystemExit("the server did not become ready; its log:\n" + (self.run / "server.log").read_text()[-3000:])

    def ask(self):
        columns = [2, ""]  # where the line has come to, and the word that is not whole yet

        def say_on(text):
            *words, columns[1] = re.split(r"(?<=[ \n])", columns[1] + text)
            for word in words:
                if columns[0] + len(word.rstrip()) > WIDTH and columns[0] > 2:
                    print("\n  ", end="")
                    columns[0] = 2
                print(word, end="", flush=True)
                columns[0] += len(word)

        for question in QUESTIONS:
            print(f"\n{BLUE}> {question}{OFF}\n  ", end="", flush=True)
            for seconds, piece in stream(self.port, "/v1/chat/completions",
                                         {"model": "evenkeel-tiny", "messages": [{"role": "user", "content": question}],
                                          "temperature": 0, "max_tokens": 160}):
                if isinstance(piece, str):
                    say_on(piece)
                else:
                    say_on("\n")
                    columns[:] = [2, ""]
                    print(f"  {DIM}{piece.get('completion_tokens')} tokens in {seconds:.2f} s{OFF}", flush=True)

    def client(self, number):
        turn = 0
        while not self.stop.is_set():
            turn += 1
            body = {"model": "evenkeel-tiny", "prompt": f"Story {number}-{turn}. Once upon a time, there lived a fox named Zoe near",
                    "max_tokens": 300 + 37 * (number * 5 + turn * 3) % 400, "ignore_eos": True, "temperature": 0.8, "seed": number * 1000 + turn}
            try:
                for _, piece in stream(self.port, "/v1/completions", body):
                    if isinstance(piece, dict):
                        self.tokens += piece.get("completion_tokens", 0)
                    elif self.stop.is_set():
                        break
            except (OSError, RuntimeError, ValueError) as error:
                if not self.stop.is_set():
                    self.errors += 1
                    print(f"  {YELLOW}a request failed: {error}{OFF}", flush=True)
                    time.sleep(0.5)

    def show(self):
        """Prints the decisions that came since the last call."""
        news = [d for d in self.api("/api/v1/servers/demo/decisions?limit=50")["decisions"] if d["at_s"] > self.seen]
        for d in reversed(news):
            self.seen = max(self.seen, d["at_s"])
            if d["action"] in ("lower", "raise", "revert"):
                colour = YELLOW if d["action"] == "lower" else GREEN
                why = textwrap.fill(d["why"], WIDTH - 9, initial_indent="         ", subsequent_indent="         ")
                print(("\r\033[K" if TTY else "") + f"  {colour}{d['action']:<6} {d['from']:>3} -> {d['to']:<3} {d['reason']}{OFF}\n{why}", flush=True)
        return [d["action"] for d in news]

    def preemption_rate(self):
        return self.api("/api/v1/servers")["servers"][0]["signals"].get("preemption_rate") or 0.0

    def line(self):
        s = self.api("/api/v1/servers")["servers"][0]
        g, limit = s["signals"], s["limits"]["max_num_running_seqs"]
        number = lambda key: g.get(key) or 0.0
        used, wide = round(number("kv_usage") * 10), WIDTH - 1
        text = (f"  kv [{'#' * used}{'.' * (10 - used)}] {number('kv_usage'):4.0%}  running {number('running'):2.0f}/{limit['value']:<2} "
                f"waiting {number('waiting'):2.0f}  preempted {number('preemption_rate'):4.1f}/s  {number('generation_tokens_per_s'):5.0f} tok/s")
        print(f"\r\033[K{text[:wide]}" if TTY else text, end="" if TTY else "\n", flush=True)

    def watch(self, seconds, until):
        """Shows the state once a second until `until(actions so far)` or the time is over; the actions seen."""
        actions, end, tick = [], time.monotonic() + seconds, 0
        while time.monotonic() < end:
            actions += self.show()
            if TTY or tick % 6 == 0:
                self.line()
            tick += 1
            if until(actions):
                print("" if not TTY else "\n", end="")
                break
            time.sleep(0.5)
        print("" if not TTY else "\n", end="")
        return actions

    def load(self):
        clients = [threading.Thread(target=self.client, args=(n,), daemon=True) for n in range(16)]
        for c in clients:
            c.start()
        lowered = self.watch(25, lambda a: a.count("lower") >= 2 and self.preemption_rate() < 1)
        self.stop.set()
        print(f"  {DIM}The long answers end; short ones come now, so that the pool has room again.{OFF}", flush=True)
        for c in clients:
            c.join(10)
        self.stop = threading.Event()
        small = [threading.Thread(target=self.small_client, args=(n,), daemon=True) for n in range(16)]
        for c in small:
            c.start()
        begin = time.monotonic()
        # After a cut that is taken back the law waits for longer before it raises.
        raised = self.watch(60, lambda a: a.count("raise") >= (2 if time.monotonic() < begin + 20 else 1))
        self.stop.set()
        for c in small:
            c.join(10)
        return "lower" in lowered, "raise" in raised

    def small_client(self, number):
        while not self.stop.is_set():
            try:
                for _, piece in stream(self.port, "/v1/completions",
                                       {"model": "evenkeel-tiny", "prompt": f"The fox {number}", "max_tokens": 24, "ignore_eos": True}):
                    if isinstance(piece, dict):
                        self.tokens += piece.get("completion_tokens", 0)
            except (OSError, RuntimeError, ValueError):
                self.errors += 1
                time.sleep(0.2)

    def addresses(self):
        say("Look around")
        print(f"""  status page   http://127.0.0.1:{self.page}/
  supervisor    http://127.0.0.1:{self.page}/api/v1/servers   http://127.0.0.1:{self.page}/metrics
  server        http://127.0.0.1:{self.port}/v1/models   http://127.0.0.1:{self.port}/metrics
  operator      {BUILD.relative_to(ROOT) if BUILD.is_relative_to(ROOT) else BUILD}/evenkeelctl --socket {self.run}/evenkeeld.sock top
  chat          http://127.0.0.1:{self.port}/
  try           curl -N http://127.0.0.1:{self.port}/v1/chat/completions -H 'Content-Type: application/json' \\
                  -d '{{"model": "evenkeel-tiny", "stream": true,
                       "messages": [{{"role": "user", "content": "how does paged attention work"}}]}}'
""", flush=True)

    def end(self):
        self.stop.set()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run = pathlib.Path(tempfile.mkdtemp(prefix="evenkeel-demo-"))
    demo, status = None, 1
    try:
        say("Starting evenkeeld with evenkeel-server and the embedded model")
        demo = Demo(run)
        demo.wait_ready()
        print(f"  Watch it as it goes on: http://127.0.0.1:{demo.page}/")
        say("Three questions")
        demo.ask()
        say("Sixteen clients against a KV pool made small on purpose: 128 blocks of 16 tokens")
        lowered, raised = demo.load()
        print(f"  {demo.tokens} tokens were served, {demo.errors} requests failed.")
        status = 0 if lowered and raised and demo.errors == 0 else 1
        if status:
            print(f"  {YELLOW}The demo expected the limit to be lowered and raised again: lowered {lowered}, raised {raised}.{OFF}")
        demo.addresses()
        if TTY:
            print("It stays up until Ctrl-C, which leaves nothing behind.", flush=True)
            demo.process.wait()
    except KeyboardInterrupt:
        print()
    finally:
        ended = demo.end() if demo else 1
    if ended != 0:
        print(f"evenkeeld ended with status {ended}; its log is in {run}")
        return 1
    shutil.rmtree(run, ignore_errors=True)
    say("Stopped cleanly.")
    return status


if __name__ == "__main__":
    sys.exit(main())
