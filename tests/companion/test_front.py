"""Protects: the middleware of the companion without a vLLM: refusals before a stream, trim, and an error of ours that ends nothing."""
import asyncio
import contextlib
import io
import json
import logging
import os
import pathlib
import sys
import types
import unittest
from unittest import mock

from directory import InDirectory  # first: it makes the others known
import routes
import vllm_stub
from evenkeel_vllm import board, control, front, metrics, scheduler, worker


class AroundAnApplication(InDirectory):
    """One API server's middleware around an application that answers when it is told to."""

    def setUp(self):
        super().setUp()
        front.Admission.front = None
        self.addCleanup(setattr, front.Admission, "front", None)
        self.limits, self.engine = board.make(self.dir, "limits"), board.make(self.dir, "engine")
        self.left, self.go = [], asyncio.Event()

    async def app(self, scope, receive, send):
        await receive()
        gone, goes = asyncio.ensure_future(receive()), asyncio.ensure_future(self.go.wait())
        kind = b"text/event-stream" if scope["path"] == "/v1/completions" else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        done, _ = await asyncio.wait({gone, goes}, return_when=asyncio.FIRST_COMPLETED)
        goes.cancel()
        if gone in done:
            self.left.append(dict(scope["headers"]).get(b"x-request-id"))
            return
        gone.cancel()
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})

    async def ask(self, path="/v1/completions", server=("127.0.0.1", 80), headers=(), root=""):
        sent, body = [], asyncio.Queue()
        await body.put({"type": "http.request", "body": b"{}", "more_body": False})

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "headers": list(headers), "server": server,
                 "root_path": root}
        await self.admission(scope, body.get, send)
        self.sent = sent
        return sent[0]["status"], dict(sent[0]["headers"]), b"".join(m.get("body", b"") for m in sent[1:])

    async def begin(self):
        self.admission = front.Admission(self.app)
        f = self.admission.front
        f.listen = lambda: asyncio.sleep(0)  # there is no uvicorn here
        await f.tick()
        return f


class TestFront(AroundAnApplication):
    def test_passes_in_order_and_forgets(self):
        async def body():
            f = await self.begin()
            self.go.set()
            self.assertEqual(await self.ask(), (200, {b"content-type": b"text/event-stream"}, b"ab"))
            self.assertEqual(len(f.held), 0)
        asyncio.run(body())

    def test_a_full_queue_is_a_429_before_anything(self):
        async def body():
            f = await self.begin()
            self.limits.set("queued_reqs", 3)
            self.engine.set("waiting", 3)
            await f.tick()
            status, headers, text = await self.ask()
            self.assertEqual((status, headers[b"content-type"]), (429, b"application/json"))
            self.assertTrue(1 <= int(headers[b"retry-after"]) <= 60)
            self.assertIn("at most 3 may (max_num_queued_reqs)", json.loads(text)["error"]["message"])
            self.assertEqual(f.board.get("refused_queue_full"), 1)
            self.go.set()
            self.assertEqual((await self.ask(server=(self.dir + "/api.sock", None)))[0], 429)  # a client's, through a proxy
            for word, status in (("a word", 200), ("another", 429), ("", 429)):
                with mock.patch.dict(os.environ, EVENKEEL_COMPANION_OWN="a word"):
                    self.assertEqual((await self.ask(headers=[(b"x-evenkeel-own", word.encode())]))[0], status)
            self.assertEqual((await self.ask(headers=[(b"x-evenkeel-own", b"")]))[0], 429)  # no word was made up
            self.assertEqual((await self.ask(path="/tokenize"))[0], 200)
            self.limits.set("queued_reqs", 0)
            self.limits.set("queued_tokens", 100)
            self.engine.set("waiting_tokens", 100)
            await f.tick()
            self.assertIn(b"max_num_queued_tokens", (await self.ask())[2])
        asyncio.run(body())

    def test_tokens_that_wait_are_limited(self):
        """With the scheduler's part counting them: one more is refused while they wait, and is not when they run or are preempted."""
        async def body():
            f = await self.begin()
            self.go.set()
            s = scheduler.build(vllm_config=vllm_stub.config())
            for cell, value in (("running_seqs", 1), ("queued_tokens", 100)):
                self.limits.set(cell, value)

            async def status():
                s._keel.looked = 0.0
                s.update_from_output(s.schedule(), None)
                await f.tick()
                return (await self.ask())[0]

            seen = []
            for name, prompt in (("a", 500), ("b", 60), ("c", 39), ("d", 1)):
                s.add_request(vllm_stub.Request(name, prompt=prompt))
                seen.append(await status())
            self.assertEqual(seen, [200, 200, 200, 429])  # 0, 60, 99, 100 wait
            self.assertEqual(f.board.get("refused_tokens"), 1)
            s.finish_requests(["a"], None)
            self.assertEqual(await status(), 200)  # b runs, 40 wait
            s._preempt_request(s.requests["b"], 0.0)
            s.finish_requests(["c", "d"], None)
            s.add_request(vllm_stub.Request("e", prompt=99))
            self.limits.set("running_seqs", 0)  # ours is silent, so that nobody is admitted
            s.max_num_active_reqs = 0
            self.assertEqual(await status(), 200)  # of 159 that wait b has had its turn with 60
        asyncio.run(body())

    def test_every_route_that_computes_is_judged_and_no_other(self):
        async def body():
            f = await self.begin()
            self.go.set()
            self.limits.set("queued_reqs", 1)
            self.engine.set("waiting", 1)
            await f.tick()
            for path in routes.COMPUTE:
                self.assertEqual((await self.ask(path=path))[0], 429, path)
                self.assertEqual((await self.ask(path="/root" + path, root="/root"))[0], 429, path)
            for path in routes.OTHER:
                self.assertEqual((await self.ask(path=path))[0], 200, path)
        asyncio.run(body())

    def test_a_deadline_is_a_429_and_vllm_hears_that_the_client_left(self):
        async def body():
            f = await self.begin()
            self.limits.set("deadline_s", 1)
            for path in ("/v1/completions", "/v1/chat/completions"):  # one begins as a stream: its beginning is held back
                asked = asyncio.ensure_future(self.ask(path))
                other = asyncio.ensure_future(self.ask(path, headers=[(b"x-request-id", b"theirs")]))
                await asyncio.sleep(0.02)
                name = next(h.name for h in f.held.values() if h.name.startswith("ek"))
                pathlib.Path(self.dir, "boards", f"overdue-{os.getpid()}").write_text(f"cmpl-{name}-0-12345678\n")
                await f.tick()
                status, headers, text = await asked
                self.assertEqual((status, len(self.sent)), (429, 2))
                self.assertIn(b"retry-after", headers)
                self.assertIn(b"queue_deadline_s", text)
                self.assertEqual(self.left.pop(), name.encode())
                self.go.set()
                self.assertEqual((await other)[0], 200)  # it was not named
                self.go.clear()
            self.assertEqual(f.board.get("refused_deadline"), 2)
        asyncio.run(body())

    def test_a_drain_refuses(self):
        async def body():
            f = await self.begin()
            self.limits.set("drain", board.REFUSING)
            self.assertEqual((await self.ask())[0], 503)
            self.limits.set("drain", board.HOLDING)
            self.go.set()
            status, headers, _ = await self.ask()  # it came before the drain: served, and the connection ends
            self.assertEqual((status, headers[b"connection"]), (200, b"close"))
            await f.tick()
        asyncio.run(body())


class TestTrim(AroundAnApplication):
    """From the control socket to each worker, by vLLM's collective_rpc: here a FAKE one that calls the workers of this process."""

    def test_reaches_the_workers_once(self):
        class Client:
            asked = []

            async def collective_rpc(self, method):
                self.asked.append(method)
                return [getattr(worker.Worker(), method)()]

        class Torch(vllm_stub.Torch):
            def empty_cache(self):
                self.reserved = self.used

        async def body():
            f = await self.begin()
            f.app = types.SimpleNamespace(state=types.SimpleNamespace(engine_client=Client()))
            self.assertEqual(trims(), 0)
            for _ in range(3):
                await f.tick()
            self.assertEqual((trims(), Client.asked), (0, []))
            own.trim()
            for _ in range(3):
                await f.tick()
            self.assertEqual((trims(), Client.asked, torch.reserved), (1, ["evenkeel_trim"], 3))
            own.trim()
            await f.tick()
            self.assertEqual(trims(), 2)
            with mock.patch.object(Client, "collective_rpc", side_effect=RuntimeError("no such method")):
                own.trim()
                await f.tick()
            self.assertEqual((trims(), f.failed), (2, False))

        def trims():
            page = metrics.page(None, {}, {}, workers.boards(), 'vllm="x"', 0)
            return float(page.split('evenkeel_trims_total{rank="0"} ')[1].split("\n")[0])

        own, torch, workers = control.Control(self.dir), Torch().has(9, 3), board.Reader(self.dir, "worker")
        with mock.patch.object(worker, "_board", board.make(self.dir, "worker")), mock.patch.dict(sys.modules, torch=torch), \
                contextlib.redirect_stderr(io.StringIO()):
            asyncio.run(body())


class TestErrorsOfOurs(AroundAnApplication):
    """At each place where a request passes: it is answered as by vLLM alone, one line says so, and the next one is judged again."""

    # Whose, and what of it raises. Those of a refusal raise while the queue is full, the one of a drain while it holds.
    PLACES = ((front, "path_of"), (front, "is_own"), (front, "own_name"), (front, "Held"), (front.Front, "admit"), (front.Front, "judge"),
              (front.Front, "retry_after"), (front.Front, "drain"), (front.Front, "gap"), (front.Held, "looks_at"), (front.Held, "begins"),
              (front.Held, "piece"), (front.Held, "took"))

    def test_at_each_place(self):
        async def body():
            f = await self.begin()
            self.go.set()
            alone = (200, {b"content-type": b"text/event-stream"}, b"ab")
            full = {"retry_after": ("queued_reqs", 1)}
            for owner, name in self.PLACES:
                said, (cell, value) = io.StringIO(), full.get(name, ("queued_reqs", 0))
                self.limits.set(cell, value)
                self.engine.set("waiting", 1)
                await f.tick()
                f.erred = False
                vars(sys.modules["evenkeel_vllm"])["_said"].clear()
                with self.subTest(place=name), contextlib.redirect_stderr(said):
                    with mock.patch.object(owner, name, side_effect=RuntimeError("injected")) as broken:
                        for _ in range(3):
                            self.assertEqual(await self.ask(), alone)
                        self.assertGreaterEqual(broken.call_count, 3)
                    self.assertEqual(said.getvalue().count("injected"), 1)
                    self.assertEqual(self.sent[0]["type"], "http.response.start")
                    self.assertEqual(await self.ask(), (429, mock.ANY, mock.ANY) if value else alone)
                    self.assertEqual((f.opened_here(), f.failed), (0, False))
        asyncio.run(body())

    def test_of_a_deadline(self):
        """Who could have been refused waits on, and is answered; the tick goes on to the socket."""
        async def body():
            f = await self.begin()
            self.limits.set("deadline_s", 1)
            for owner, name in ((front, "overdue"), (front.Front, "text_deadline"), (front.Front, "retry_after"), (board.Board, "add")):
                self.go.clear()
                listened = mock.AsyncMock()
                f.listen = listened
                asked = asyncio.ensure_future(self.ask())
                await asyncio.sleep(0.02)
                held = next(iter(f.held.values())).name
                pathlib.Path(self.dir, "boards", f"overdue-{os.getpid()}").write_text(f"cmpl-{held}-0\n")
                with self.subTest(place=name):
                    with mock.patch.object(owner, name, side_effect=RuntimeError("injected")):
                        await f.tick()
                    listened.assert_awaited_once()
                    self.go.set()
                    self.assertEqual((await asked)[0], 200)
        with contextlib.redirect_stderr(io.StringIO()):
            asyncio.run(body())

    def test_those_of_vllm_and_of_the_client_are_theirs(self):
        async def breaks(scope, receive, send):
            await receive()
            raise ValueError("theirs")

        async def body():
            f = await self.begin()
            self.admission.app = breaks
            with self.assertRaisesRegex(ValueError, "theirs"):
                await self.ask()
            self.assertEqual((f.erred, f.opened_here()), (False, 0))
        asyncio.run(body())


class TestAccessLog(unittest.TestCase):
    def test_polls_that_are_answered_well_are_left_out(self):
        shape = '%s - "%s %s HTTP/%s" %d'  # uvicorn's
        for args, kept in ((("", "GET", "/metrics", "1.1", 200), False), (("", "GET", "/health", "1.1", 200), False),
                           (("", "GET", "/health", "1.1", 503), True), (("", "POST", "/v1/completions", "1.1", 200), True),
                           (("127.0.0.1:5", "GET", "/metrics", "1.1", 200), True), ((), True)):
            record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, shape if args else "words", args, None)
            with self.subTest(args=args):
                self.assertEqual(bool(front.WithoutPolls().filter(record)), kept)
