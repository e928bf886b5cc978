"""In each API server: an ASGI middleware that refuses before a stream begins, and serves the listening socket that evenkeeld holds.

A refusal is a true 429 with Retry-After. A request is refused at its arrival when too many wait, and later when the engine says that it
has waited for `queue_deadline_s` without ever running; so the beginning of an answer is held back until its first piece is there. What
the engine says is a list of request ids, and each request gets an id of its own for that where its client sent none.

vLLM itself listens on a Unix socket beside the control socket. What came through the control socket is evenkeeld's own, bears the word that
the first process has made up, and passes unjudged; all else at vLLM's socket is a client's, through a proxy perhaps.

An error in any of this ends no request: what it was about goes on as if nothing of ours were there, and one line says so. Errors of vLLM
and of the connection are none of ours, and pass.
"""
from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import socket
import time
from typing import Any

from . import OWN, OWN_HEADER, SUPERVISED, board, directory, off, say

# What computes in the engine, of the versions in docs/vllm.md. Not those that only tokenize, count, render or cancel, and not the WebSocket
# /v1/realtime, whose one connection is many requests.
PATHS = frozenset((
    "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/v1/responses", "/v1/messages", "/v1/systemone",
    "/generate", "/inference/v1/generate", "/invocations", "/cohere/v2/chat",
    "/v1/embeddings", "/v2/embed", "/pooling", "/classify",
    "/score", "/v1/score", "/generative_scoring", "/rerank", "/v1/rerank", "/v2/rerank",
    "/v1/audio/transcriptions", "/v1/audio/translations",
))
POLLS = ("/health", "/metrics")
TICK_S = 0.1
IDLE_S = 1.0  # what was accepted before a drain has so long to send its request
BUCKET_S = 5.0  # two of them are what `gap_s` looks back
RETRY_MOST_S = 60


class Held:
    """One request from its arrival to the end of its answer."""

    def __init__(self, front: Front, name: bytes) -> None:
        self.front, self.name = front, name.decode("latin-1")
        self.receive: Any = None
        self.send: Any = None
        self.start: Any = None  # the beginning of the answer, held back
        self.task: asyncio.Task[None] | None = None
        self.streams = self.begun = self.expired = self.asked_all = False
        self.gone = asyncio.Event()
        self.refusal: tuple[str, int] = ("", 0)  # of one that has expired: the sentence, Retry-After
        self.last = 0.0  # when its last piece went

    async def run(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        self.receive, self.send = receive, send
        task = self.task = asyncio.ensure_future(app(scope, self.take, self.give))
        try:
            await first_of(asyncio.shield(task), self.gone.wait())
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not self.expired:
            task.result()  # its error, if it has one
            if self.start is not None:  # an answer without a body
                await send(self.start)
            return
        await refuse(send, 429, *self.refusal)
        _, late = await asyncio.wait({task}, timeout=1.0)
        for each in late:
            each.cancel()

    async def give(self, message: Any) -> None:
        if self.expired:
            return
        try:
            goes = self.looks_at(message)
        except Exception as error:
            self.front.passes_by(error)
            goes = True
        if not goes:
            return
        self.begun = True
        if self.start is not None:
            start, self.start = self.start, None
            await self.send(start)
        await self.send(message)

    def looks_at(self, message: Any) -> bool:
        """False for what is held back."""
        if message["type"] == "http.response.start" and not self.begun:
            self.start = message
            return False
        if self.start is not None:
            self.begins(self.start)
        self.piece()
        return True

    async def take(self) -> Any:
        """As if the client had left, once it has expired: that is how vLLM takes a request back from its engine."""
        try:
            if self.asked_all:
                await first_of(self.receive(), self.gone.wait())
                return {"type": "http.disconnect"}
        except Exception as error:
            self.front.passes_by(error)
        message = await self.receive()
        try:
            self.took(message)
        except Exception as error:
            self.front.passes_by(error)
        return message

    def took(self, message: Any) -> None:
        self.asked_all = not message.get("more_body", False)

    def begins(self, start: Any) -> None:
        headers = start.get("headers") or []
        self.streams = any(k.lower() == b"content-type" and v.startswith(b"text/event-stream") for k, v in headers)
        if self.front.drain() == board.HOLDING:
            start["headers"] = [*headers, (b"connection", b"close")]

    def piece(self) -> None:
        now = time.monotonic()
        if self.streams and self.last:
            self.front.gap(now - self.last, now)
        self.last = now

    def expire(self) -> None:
        if not self.begun and self.task is not None and not self.task.done():
            self.refusal = self.front.text_deadline(), self.front.retry_after()
            self.front.board.add("refused_deadline")
            self.expired = True  # from here on nothing fails
            self.gone.set()


async def first_of(*these: Any) -> None:
    """Waits for one of them; the others are cancelled."""
    tasks = {asyncio.ensure_future(each) for each in these}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def refuse(send: Any, status: int, text: str, after_s: int) -> None:
    kind = "RateLimitError" if status == 429 else "ServiceUnavailableError"
    body = json.dumps({"error": {"message": text, "type": kind, "param": None, "code": status}}).encode()
    await send({"type": "http.response.start", "status": status,
                "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
                            (b"retry-after", str(after_s).encode())]})
    await send({"type": "http.response.body", "body": body})


class WithoutPolls(logging.Filter):
    """For uvicorn's access log: what evenkeeld asks over the Unix socket twice a second for days is left out while answered well."""

    def filter(self, record: logging.LogRecord) -> bool:
        match record.args:
            case (client, _, path, _, status):
                return bool(client) or path not in POLLS or status != 200
        return True


class Front:
    """What one API server keeps. Owned by its event loop."""

    def __init__(self) -> None:
        where = directory()
        self.board = board.make(where, "front")
        self.limits = board.Reader(where, "limits")
        self.engines = board.Reader(where, "engine")
        self.fronts = board.Reader(where, "front")
        self.where = where
        self.limit: board.Board | None = None
        self.engine: dict[int, board.Board] = {}
        self.fronts_open: dict[int, board.Board] = {}
        self.held: dict[int, Held] = {}
        self.unheld = 0  # open requests that pass unjudged because of an error of ours
        self.server: Any = None  # uvicorn's
        self.app: Any = None
        self.sock: socket.socket | None = None  # evenkeeld's listening socket
        self.listener: Any = None
        self.idle: dict[Any, float] = {}
        self.gaps, self.bucket = [0.0, 0.0], 0.0
        self.finished, self.finished_at = 0, time.monotonic()
        self.trimmed = 0.0
        self.task: asyncio.Task[None] | None = None
        self.failed = self.erred = False
        logging.getLogger("uvicorn.access").addFilter(WithoutPolls())

    def passes_by(self, error: Exception) -> None:
        """An error of ours at one request, which goes on without us; the next one is looked at again."""
        if not self.erred:
            self.erred = True
            say(f"a request passed without us, others may: {type(error).__name__}: {error}")

    # The judgement

    def value(self, name: str) -> float:
        return self.limit.get(name) if self.limit else 0.0

    def drain(self) -> int:
        return int(self.value("drain"))

    def admit(self, scope: Any) -> Held | tuple[int, str, int] | None:
        """What is to become of a request: it is held, refused (status, sentence, Retry-After), or none of ours."""
        if self.task is None and "app" in scope:
            self.task = asyncio.ensure_future(self.run(scope["app"]))
        if scope["type"] != "http" or scope["method"] != "POST" or path_of(scope) not in PATHS or is_own(scope):
            return None
        verdict = self.judge()
        if verdict:
            return *verdict, self.retry_after()
        return Held(self, own_name(scope))

    def judge(self) -> tuple[int, str] | None:
        """A status and a sentence for a request that is not taken."""
        if self.drain() == board.REFUSING:
            self.board.add("refused_draining")
            return 503, "The server is being drained; send this request to another one."
        waiting = board.total(self.engine, "waiting")
        reqs, tokens, seqs = self.value("queued_reqs"), self.value("queued_tokens"), self.value("running_seqs")
        if reqs and self.engine and (waiting >= reqs or (seqs and self.opened() >= seqs + reqs)):
            self.board.add("refused_queue_full")
            return 429, (f"{max(waiting, self.opened() - seqs):.0f} requests wait and at most {reqs:.0f} may (max_num_queued_reqs); "
                         f"try again later.")
        queued = board.total(self.engine, "waiting_tokens")
        if tokens and queued >= tokens:
            self.board.add("refused_tokens")
            return 429, f"{queued:.0f} prompt tokens wait and at most {tokens:.0f} may (max_num_queued_tokens); try again later."
        return None

    def opened(self) -> float:
        """Requests in all API servers; what the others wrote is a tenth of a second old."""
        return board.total({p: b for p, b in self.fronts_open.items() if p != os.getpid()}, "open") + self.opened_here()

    def opened_here(self) -> int:
        return len(self.held) + self.unheld

    def text_deadline(self) -> str:
        return f"The request waited for {self.value('deadline_s'):.3g} s (queue_deadline_s) and had no turn; try again later."

    def retry_after(self) -> int:
        rate = self.board.get("finished_rate")
        return max(1, min(RETRY_MOST_S, round(board.total(self.engine, "waiting") / rate))) if rate > 0 else 2

    def gap(self, seconds: float, now: float) -> None:
        self.gaps[0] = max(self.gaps[0], seconds)

    # Each tenth of a second

    async def run(self, app: Any) -> None:
        self.app = app
        try:
            while True:
                await self.tick()
                await asyncio.sleep(TICK_S)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.failed = True
            off("the API server's part", error)
            if self.listener is None and os.environ.get(SUPERVISED):
                os.kill(os.getpid(), signal.SIGTERM)  # nobody would ever reach it

    async def tick(self) -> None:
        self.limit = next(iter(self.limits.boards().values()), None)
        self.engine = self.engines.boards()
        self.fronts_open = self.fronts.boards()
        now = time.monotonic()
        b = self.board
        b.set("open", self.opened_here())
        b.set("streams", sum(h.streams for h in self.held.values()))
        b.set("beat", now)
        b.set("gap_s", max([*self.gaps, *(now - h.last for h in self.held.values() if h.streams and h.last)]))
        if now - self.bucket >= BUCKET_S:
            self.bucket, self.gaps = now, [0.0, self.gaps[0]]
        if now - self.finished_at >= 1.0:
            rate = self.finished / (now - self.finished_at)
            b.set("finished_rate", 0.8 * b.get("finished_rate") + 0.2 * rate)
            self.finished, self.finished_at = 0, now
        try:
            self.look_for_overdue()
        except Exception as error:  # the socket is served all the same
            self.passes_by(error)
        await self.listen()
        await self.trim()

    def look_for_overdue(self) -> None:
        if not self.value("deadline_s"):
            return
        names = overdue(self.where, self.engine)
        if names:
            for h in list(self.held.values()):
                if not h.begun and h.name and any(h.name in name for name in names):
                    h.expire()

    async def listen(self) -> None:
        """Takes connections from evenkeeld's socket, except while a drain holds them for the next process."""
        self.server = self.server or getattr(self.app.state, "server", None)
        if self.server is None or not getattr(self.server, "started", False):
            return
        if self.sock is None:
            self.sock = await asyncio.get_running_loop().run_in_executor(None, take_socket, self.where)
        if self.drain() == board.HOLDING:
            if self.listener is not None:
                self.listener.close()
                self.listener = None
                self.board.set("listening", 0)
            self.hang_up()
        elif self.sock is not None and self.listener is None:
            self.idle.clear()
            self.listener = await self.serve(self.sock.dup())
            self.board.set("listening", 1)

    async def serve(self, sock: socket.socket) -> Any:
        """As uvicorn's Server.startup() does it for its own."""
        server, config, loop = self.server, self.server.config, asyncio.get_running_loop()
        sock.setblocking(False)

        def protocol() -> Any:
            return config.http_protocol_class(config=config, server_state=server.server_state, app_state=server.lifespan.state, _loop=loop)

        listener = await loop.create_server(protocol, sock=sock, ssl=config.ssl, backlog=config.backlog)
        server.servers.append(listener)  # closed with the others at the end
        return listener

    def hang_up(self) -> None:
        """Busy connections end after their answer; idle ones when they have had time to send what is on its way."""
        now = time.monotonic()
        for connection in list(self.server.server_state.connections):
            cycle = getattr(connection, "cycle", None)
            if cycle is not None and not cycle.response_complete:
                self.idle.pop(connection, None)
            elif now - self.idle.setdefault(connection, now) < IDLE_S:
                continue
            shut = getattr(connection, "shutdown", None)
            if shut is not None:
                shut()

    async def trim(self) -> None:
        asked = self.value("trim")
        if asked <= self.trimmed:
            return
        self.trimmed = asked
        trim_heap()
        if os.getpid() != min(self.fronts_open, default=0):
            return  # one of us asks the workers
        try:
            await self.app.state.engine_client.collective_rpc("evenkeel_trim")
        except Exception as error:
            off("trimming the workers", error)


class Admission:
    """What `--middleware` names."""

    front: Front | None = None  # one per process

    def __init__(self, app: Any) -> None:
        self.app = app
        if directory() and Admission.front is None:
            try:
                Admission.front = Front()
            except Exception as error:
                off("the API server's part", error)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        front = self.front
        if front is None or front.failed:
            await self.app(scope, receive, send)
            return
        try:
            what = front.admit(scope)
        except Exception as error:
            front.passes_by(error)
            opens = int(scope["type"] == "http")
            front.unheld += opens
            try:
                await self.app(scope, receive, send)
            finally:
                front.unheld -= opens
            return
        if what is None:
            await self.app(scope, receive, send)
        elif isinstance(what, tuple):
            await refuse(send, *what)
        else:
            front.held[id(what)] = what
            try:
                await what.run(self.app, scope, receive, send)
            finally:
                del front.held[id(what)]
                front.finished += 1


def path_of(scope: Any) -> str:
    path, root = str(scope["path"]), str(scope.get("root_path") or "")
    return path[len(root):] if root and path.startswith(root) else path


def is_own(scope: Any) -> bool:
    """Passed on from the control socket, which only evenkeeld's user can reach."""
    word, name = os.environ.get(OWN, "").encode(), OWN_HEADER.lower().encode()
    return bool(word) and any(key == name and secrets.compare_digest(bytes(value), word) for key, value in scope["headers"])


def own_name(scope: Any) -> bytes:
    """The id by which the engine will know it: the client's, else one of ours."""
    for key, value in scope["headers"]:
        if key == b"x-request-id":
            return bytes(value)
    name = b"ek" + secrets.token_hex(8).encode()
    scope["headers"] = [*scope["headers"], (b"x-request-id", name)]
    return name


def overdue(where: str, engines: dict[int, board.Board]) -> list[str]:
    """Request ids that the engines have waiting for longer than the deadline."""
    names: list[str] = []
    for pid in engines:
        try:
            with open(os.path.join(where, "boards", f"overdue-{pid}"), encoding="utf-8") as file:
                names += file.read().split("\n")
        except OSError:
            continue
    return [name for name in names if name]


def take_socket(where: str) -> socket.socket | None:
    """evenkeeld's listening socket, from the process that it was handed to; None while there is none."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(1.0)
            peer.connect(os.path.join(where, "control.sock"))
            peer.sendall(b"EVENKEEL-FD get listen\n")
            text, fds, _, _ = socket.recv_fds(peer, 128, 1)
    except OSError:
        return None
    if not fds:
        return None
    say("takes connections from evenkeeld's listening socket")
    return socket.socket(fileno=fds[0])


def trim_heap() -> None:
    """What the C library holds and does not use goes back to the system."""
    import ctypes
    import gc
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass  # another C library
