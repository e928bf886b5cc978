"""evenkeel-server by itself, and HTTP by hand: raw bytes in, raw answers out."""
import os
import re
import signal
import socket
import ssl
import subprocess

from conftest import BUILD, MODEL, free_port, get, wait_for


class Bare:
    """A server without evenkeeld. `env` adds to the environment."""

    def __init__(self, run, *flags, env=None, host="127.0.0.1", model=MODEL, ready=True, port=True, build=BUILD):
        self.run, self.port = run, free_port(28000)
        self.control = run / "control.sock"
        self.log_path = run / "server.log"
        where = ["--host", host, "--port", str(self.port)] if port else []
        self.args = [str(build / "evenkeel-server"), "--model", str(model), "--served-model-name", "tiny", *where, "--control-socket",
                     str(self.control), "--threads", "1", *map(str, flags)]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.command(self.args), stdout=log, stderr=log, env={**os.environ, **(env or {})})
        if ready:
            wait_for("server ready", lambda: self.process.poll() is not None or self.local("/readyz")[0] == 200, 90)
            assert self.process.poll() is None, self.log()

    def command(self, args):
        """What is run; others put something before the server."""
        return args

    def log(self):
        return self.log_path.read_text(errors="replace")

    def local(self, path, method="GET", body=b"", headers=None):
        """A request on the control socket."""
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(60)
        try:
            s.connect(str(self.control))
            return self.exchange(s, path, method, body, headers)
        finally:
            s.close()

    def ask(self, path, method="GET", body=b"", headers=None, seconds=60):
        """A request on the API's address: status, headers (lower case), body."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as s:
            return self.exchange(s, path, method, body, headers)

    @staticmethod
    def exchange(s, path, method, body, headers):
        body = body.encode() if isinstance(body, str) else body
        head = {"Host": "localhost", "Connection": "close", **({"Content-Type": "application/json", "Content-Length": len(body)} if body else {}),
                **(headers or {})}
        s.sendall(f"{method} {path} HTTP/1.1\r\n".encode() + b"".join(f"{k}: {v}\r\n".encode() for k, v in head.items()) + b"\r\n" + body)
        return parse(read_all(s))

    def metrics(self):
        return self.local("/metrics")[2].decode()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode


def read_all(s, most=1 << 24):
    data = b""
    while len(data) < most:
        try:
            part = s.recv(65536)
        except (ConnectionResetError, BrokenPipeError, TimeoutError, ssl.SSLEOFError):
            break
        if not part:
            break
        data += part
    return data


def parse(data):
    """Status, headers, body of the first answer in data; (0, {}, b"") when there is none."""
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        return 0, {}, b""
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
    return int(words[1]), headers, body


def count_answers(data):
    return len(re.findall(rb"HTTP/1\.[01] [1-5][0-9][0-9] ", data))


__all__ = ["Bare", "count_answers", "get", "parse", "read_all"]
