"""What vllm-doctor and vllm-htop say about a real vLLM under pressure, and what evenkeelctl says about the same one at the same time: eight
endless clients with answers of 700 tokens on a pool for three of them. Writes what each said into a directory.
    peers.py DIRECTORY-WITH-THEIR-PROGRAMS OUT"""
import http.client
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from ask import ROOT, VLLM_ENV, command, free_port, send, stop, wait_ready  # noqa: E402

BUILD = ROOT / os.environ.get("B", "build/release")
POOL = ["--max-model-len", "1024", "--block-size", "32", "--num-gpu-blocks-override", "70"]


def client(port, over):
    while not over.is_set():
        body = json.dumps({"model": "tiny", "prompt": f"Once upon a time {time.monotonic()}", "max_tokens": 700, "ignore_eos": True}).encode()
        try:
            send(port, "POST", "/v1/completions", body, {"Content-Type": "application/json"}, 120)
        except (OSError, http.client.HTTPException):
            return


def said(out, name, words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": "160", "NO_COLOR": "1"})
    (out / f"{name}.txt").write_text(f"$ {' '.join(pathlib.Path(str(w)).name for w in words)}\n{done.stdout}{done.stderr}[{done.returncode}]\n")


def main(programs, out):
    programs, out, port, page = pathlib.Path(programs), pathlib.Path(out), free_port(), free_port()
    out.mkdir(parents=True, exist_ok=True)
    url, over = f"http://127.0.0.1:{port}", threading.Event()
    (out / "c.yaml").write_text(f"""\
listen: 127.0.0.1:{page}
run_dir: {out}/r
state_dir: {out}/s
servers:
  main: {{engine: vllm, attach: "{url}", mode: advise, limits: {{max_num_running_seqs: {{max: 8}}}}}}
""")
    with open(out / "vllm.log", "wb") as log, open(out / "evenkeeld.log", "wb") as own:
        process = subprocess.Popen([*map(str, command("vllm")), *POOL, "--port", str(port)], stdout=log, stderr=log, start_new_session=True,
                                   env={**os.environ, **VLLM_ENV})
        daemon = None
        try:
            wait_ready(process, port, 600)
            for _ in range(8):
                threading.Thread(target=client, args=(port, over), daemon=True).start()
            daemon = subprocess.Popen([BUILD / "evenkeeld", "--config", out / "c.yaml"], stdout=own, stderr=own)
            time.sleep(45)  # a window of pressure
            ctl = [BUILD / "evenkeelctl", "--socket", out / "r/evenkeeld.sock"]
            said(out, "vllm-doctor", [programs / "vllm-doctor", "diagnose", f"{url}/metrics"])
            said(out, "vllm-htop", [programs / "vllm-htop", "--url", url, "--once"])
            said(out, "evenkeelctl-diagnose", [BUILD / "evenkeelctl", "diagnose", "--live", f"127.0.0.1:{port}"])
            said(out, "evenkeelctl-top", [*ctl, "top", "--once"])
            said(out, "evenkeelctl-explain", [*ctl, "explain"])
        finally:
            over.set()
            if daemon:
                daemon.terminate()
                daemon.wait(60)
            stop(process)


if __name__ == "__main__":
    main(*sys.argv[1:])
