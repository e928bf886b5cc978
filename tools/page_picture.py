#!/usr/bin/env python3
"""Pictures of the status page: evenkeeld and the server with the embedded model under load, seen by chromium without a screen.

    tools/page_picture.py                     docs/page-light.png and docs/page-dark.png, as README.md shows them
    tools/page_picture.py --scene NAME        load, pressure, keys, three, none, failed: DIR/NAME-{desktop,phone}-{light,dark}.png

`make picture` installs what is missing first (chromium, pngquant). Standard library only: chromium is steered over its debugging pipe."""
import argparse
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from demo import BUILD, CONFIG, ROOT, free_port
from client import get, stream

SIZES = {"desktop": (1180, 900, 1), "phone": (390, 844, 2)}
HEAD = "listen: 127.0.0.1:{page}\nsocket: {run}/evenkeeld.sock\nrun_dir: {run}\nstate_dir: {run}/state\n"
FAKE = """\
  {name}:
    engine: evenkeel
    command: [{python}, {root}/tests/e2e/fake_engine.py, {flags}]
    host: 127.0.0.1
    port: {port}
    poll_s: 0.5
    log_file: {run}/{name}.log
"""


class Browser:
    """One chromium; one page after another."""

    def __init__(self, directory):
        to_read, self.out = os.pipe()
        self.inn, to_write = os.pipe()

        def pipes():  # chromium reads from 3 and writes to 4
            os.dup2(to_read, 100)
            os.dup2(to_write, 101)
            os.dup2(100, 3)
            os.dup2(101, 4)

        command = [shutil.which("chromium") or "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   "--remote-debugging-pipe", f"--user-data-dir={directory}", "--no-first-run", "--disable-extensions", "about:blank"]
        self.process = subprocess.Popen(command, preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.rest, self.number, self.session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                piece = os.read(self.inn, 1 << 20)
                if not piece:
                    raise SystemExit("chromium ended")
                self.rest += piece
            one, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(one)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"chromium: {method}: {answer['error']}")
                return answer["result"]

    def shoot(self, url, path, size, scheme, whole, scripts=True, wait=3.0):
        width, height, scale = size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("Page.navigate", url=url)
        time.sleep(wait)
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def evaluate(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def end(self):
        self.process.terminate()
        self.process.wait(10)


class Appliance:
    """evenkeeld with the servers of one scene, and clients."""

    def __init__(self, run, config, ports):
        self.run, self.page, self.ports = run, free_port(19470), ports
        self.stop = threading.Event()
        file = run / "evenkeeld.yaml"
        file.write_text(config.format(page=self.page, port=ports[0] if ports else 0, run=run, server=BUILD / "evenkeel-server",
                                      model=ROOT / "models/evenkeel-tiny"))
        self.log = open(run / "evenkeeld.log", "wb")
        self.process = subprocess.Popen([BUILD / "evenkeeld", "--config", file], stdout=self.log, stderr=self.log)

    def servers(self):
        return json.loads(get(self.page, "/api/v1/servers")[1])["servers"]

    def wait(self, what, condition, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if condition(self.servers()):
                    return
            except (OSError, ValueError, LookupError, TypeError):
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.3)
        raise SystemExit(f"{what}: not within {seconds} s; the log:\n{(self.run / 'evenkeeld.log').read_text()[-2000:]}")

    def client(self, number, long, key=None):
        turn, headers = 0, {"Authorization": f"Bearer {key}"} if key else None
        while not self.stop.is_set():
            turn += 1
            heavy = long(time.monotonic())
            body = {"model": "evenkeel-tiny", "prompt": f"You are the keeper of a small harbour. Story {number}-{turn}. Once upon a time, ",
                    "max_tokens": (300 + 37 * (number * 5 + turn * 3) % 400) if heavy else 40 + 13 * (number + turn) % 60, "ignore_eos": True,
                    "temperature": 0.8, "seed": number * 1000 + turn}
            try:
                for _ in stream(self.ports[0], "/v1/completions", body, headers=headers):
                    if self.stop.is_set():
                        return
            except (OSError, RuntimeError, ValueError):
                time.sleep(0.3)

    def load(self, clients, long, key=None):
        for n in range(clients):
            threading.Thread(target=self.client, args=(n, long, key), daemon=True).start()

    def end(self):
        self.stop.set()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def fakes(run, servers):
    text = "".join(FAKE.format(name=name, python=sys.executable, root=ROOT, run=run, port=free_port(18400 + 7 * i), flags=", ".join(json.dumps(f) for f in flags))
                   for i, (name, flags) in enumerate(servers.items()))
    return HEAD + "servers:\n" + text.replace("{", "{{").replace("}", "}}")


def set_scene(scene, run, seconds):
    """Starts the scene and returns when its picture is worth taking."""
    if scene == "none":
        a = Appliance(run, HEAD + f"servers_dir: {run}/servers\n", [])
        time.sleep(1)
    elif scene == "three":
        a = Appliance(run, fakes(run, {"chat": ["--load", "24", "--pool", "96"], "code": ["--load", "3"], "batch": ["--exit-code", "78"]}), [])
        a.wait("servers ready", lambda all: sum(s["ready"] for s in all) == 2)
        time.sleep(seconds)
    elif scene == "failed":
        a = Appliance(run, fakes(run, {"chat": ["--load", "6", "--oom-burst", "2000", "--max-num-batched-tokens", "8192"]}), [])
        a.wait("a restart", lambda all: all[0]["restarts"] >= 2 and all[0]["ready"])
        time.sleep(seconds)
    elif scene == "keys":  # one key floods, two others have less to do
        keys = run / "keys"
        keys.write_text("chat sk-chat weight=3\nbatch-jobs sk-batch\nsearch sk-search weight=2\n")
        keys.chmod(0o600)
        a = Appliance(run, CONFIG.replace('--stalled-share, "0"', f'--stalled-share, "0", --api-key-file, {keys}'), [free_port(18500)])
        a.wait("server ready", lambda all: all[0]["ready"])
        for key, clients in (("sk-batch", 20), ("sk-chat", 10), ("sk-search", 2)):
            a.load(clients, lambda now: key == "sk-batch", key)
        time.sleep(seconds)
    else:
        a = Appliance(run, CONFIG, [free_port(18500)])
        a.wait("server ready", lambda all: all[0]["ready"])
        begin = time.monotonic()
        until = 9e9 if scene == "pressure" else 0.45 * seconds
        a.load(16 if scene == "pressure" else 14, lambda now: 0.12 * seconds < now - begin < until)
        time.sleep(seconds)
    return a


def shrink(path):
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--skip-if-larger", "--quality", "60-95", "--speed", "1", "--strip", "--output", path, path], check=False)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--scene", choices=["load", "pressure", "keys", "three", "none", "failed"])
    p.add_argument("--seconds", type=float, default=150, help="how long the load runs before the picture (150)")
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="directory of --scene's pictures")
    o = p.parse_args()
    run = pathlib.Path(tempfile.mkdtemp(prefix="evenkeel-picture-"))
    browser = appliance = None
    try:
        appliance = set_scene(o.scene or "load", run, o.seconds)
        browser, url = Browser(run / "chromium"), f"http://127.0.0.1:{appliance.page}/"
        if o.scene:
            o.out.mkdir(parents=True, exist_ok=True)
            shots = [(o.out / f"{o.scene}-{size}-{scheme}.png", SIZES[size], scheme, True) for size in SIZES for scheme in ("light", "dark")]
        else:
            shots = [(ROOT / f"docs/page-{scheme}.png", (1180, 1270, 1), scheme, False) for scheme in ("light", "dark")]
        for path, size, scheme, whole in shots:
            browser.shoot(url, path, size, scheme, whole)
            wide = browser.evaluate("document.documentElement.scrollWidth")
            if wide > size[0]:
                print(f"note: the page is {wide} wide where the screen has {size[0]}")
            shrink(path)
            print(f"  wrote {path} ({path.stat().st_size / 1000:.0f} kB)")
        if o.scene:
            path = o.out / f"{o.scene}-noscript.png"
            browser.shoot(url, path, SIZES["desktop"], "light", True, scripts=False)
            print(f"  wrote {path}")
    finally:
        if browser:
            browser.end()
        if appliance:
            appliance.end()
        shutil.rmtree(run, ignore_errors=True)


if __name__ == "__main__":
    main()
