"""Starts a server on the embedded model, sends it every case, writes a line of JSON per answer, ends it.
    ask.py vllm|evenkeel OUT [NAME...]     or     ask.py http://127.0.0.1:PORT OUT [NAME...]
A recorded answer is {name, status, type, json | text | events}: of streams the events, [DONE] as a string. vLLM runs in the
environment that tools/vllm-install.sh made; both servers compute in float32, where greedy texts agree."""
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cases import CASES  # noqa: E402

MODEL = ROOT / "models/evenkeel-tiny"
VLLM_PYTHON = ROOT / os.environ.get("VLLM", "build/vllm") / "venv/bin/python"  # another version: VLLM=build/vllm-0.31.0
FLAGS = ["--model", MODEL, "--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "2048", "--host", "127.0.0.1",
         "--max-num-seqs", "8", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
KEY = "secret"  # both want it; each case sends it unless it says otherwise
ACCESS = ["--api-key", KEY, "--allowed-origins", '["https://page.example"]']
# Headers that clients act by; those of a request of another page are answered by name.
HEADERS = ("Allow", "Retry-After", "Location", "Access-Control-Allow-Origin", "Access-Control-Allow-Methods", "Access-Control-Allow-Headers")
VLLM_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "2",
            "VLLM_CACHE_ROOT": str(VLLM_PYTHON.parents[2] / "cache")}  # versions overwrite each other's


def is_newest():
    """The version whose figures the documents have."""
    return os.environ.get("VLLM", "build/vllm") == "build/vllm"


def measured_with():
    """A sentence for a table of figures: which vLLM, on what, how busy."""
    info = next(VLLM_PYTHON.parents[1].glob("lib/python3*/site-packages/vllm_cpu-*.dist-info"))
    model = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    return (f"vLLM {info.name[len('vllm_cpu-'):-len('.dist-info')]}, {model}, {len(os.sched_getaffinity(0))} cores, "
            f"load average at the end {os.getloadavg()[1]:.0f}:")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def command(kind):
    if kind == "evenkeel":
        return [ROOT / os.environ.get("B", "build/release") / "evenkeel-server", *FLAGS]
    return [VLLM_PYTHON, "-m", "vllm.entrypoints.openai.api_server", *FLAGS, "--enforce-eager", "--enable-scale-out"]


def send(port, method, path, body, headers, timeout=60):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, raw, headers)
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    return answer.status, answer.headers, data


def events_of(text):
    """What the lines of a stream say: data as JSON, [DONE] as it is; with its name where an event has one."""
    events, name = [], None
    for line in text.split("\n"):
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            data = line[6:] if line == "data: [DONE]" else json.loads(line[6:])
            events.append(data if name is None else {"event": name, "data": data})
            name = None
    return events


def record(port, case):
    name, method, path, body, headers = case
    try:
        sent = {k: v for k, v in {"Authorization": f"Bearer {KEY}", **headers}.items() if v is not None}
        status, told, data = send(port, method, path, body, sent)
    except (OSError, http.client.HTTPException) as error:
        return {"name": name, "status": 0, "type": "", "text": type(error).__name__}
    kind = told.get("Content-Type", "").split(";")[0].strip()
    answer = {"name": name, "status": status, "type": kind}
    if (heads := {h: told[h] for h in HEADERS if h in told}) and name.startswith("web-"):
        answer["headers"] = heads
    text = data.decode(errors="replace")
    if kind == "text/event-stream":
        answer["events"] = events_of(text)
    elif kind == "application/json" and text:
        answer["json"] = json.loads(text)
    else:
        answer["text"] = text[:200]
    return answer


def wait_ready(process, port, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode} before it was ready")
        try:
            if send(port, "GET", "/health", None, {}, 2)[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.3)
    raise SystemExit(f"the server was not ready within {seconds} s")


def stop(process):
    """The server and what it may have left: they share a process group."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait(10)


def ask_all(port, out, names):
    chosen = [c for c in CASES if not names or c[0] in names]
    with open(out, "w", encoding="utf-8") as file:
        for case in chosen:
            file.write(json.dumps(record(port, case), ensure_ascii=False, sort_keys=True) + "\n")
    return len(chosen)


def main(kind, out, *names):
    if kind.startswith("http"):
        print(ask_all(int(kind.rsplit(":", 1)[1].strip("/")), out, names), "cases")
        return
    port = free_port()
    log_path = pathlib.Path(str(out) + ".log")
    begin = time.monotonic()
    with open(log_path, "wb") as log:
        process = subprocess.Popen([*map(str, command(kind)), *ACCESS, "--port", str(port)], stdout=log, stderr=log, start_new_session=True,
                                   env={**os.environ, **(VLLM_ENV if kind == "vllm" else {})})
    try:
        wait_ready(process, port, 300)
        ready = time.monotonic()
        count = ask_all(port, out, names)
        print(f"{kind}: ready after {ready - begin:.1f} s, {count} cases in {time.monotonic() - ready:.1f} s")
    finally:
        stop(process)


if __name__ == "__main__":
    main(*sys.argv[1:])
