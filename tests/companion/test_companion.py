"""Protects: the companion without a vLLM. Limits and their sentences, the boards, what the scheduler part obeys and counts, an error of ours
that ends nothing, refusals before a stream, the control socket. vLLM's classes are FAKES here (vllm_stub.py); a real vLLM is in
tests/vllm/test_companion.py. Standard library alone: python3 -m unittest discover tests/companion"""
import asyncio
import contextlib
import io
import json
import logging
import os
import pathlib
import socket
import socketserver
import sys
import tempfile
import threading
import time
import types
import unittest
from http.server import BaseHTTPRequestHandler
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "supervisor/companion"), str(pathlib.Path(__file__).parent)]
import routes  # noqa: E402
import vllm_stub  # noqa: E402
from evenkeel_vllm import VERSION, board, control, front, limits, metrics, scheduler, worker  # noqa: E402

vllm_stub.install()


class TestVersion(unittest.TestCase):
    def test_is_the_one_of_all_others(self):
        self.assertEqual(VERSION, (ROOT / "VERSION").read_text().strip())


class InDirectory(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = temporary.name
        os.environ["EVENKEEL_COMPANION_DIR"] = self.dir
        self.addCleanup(os.environ.pop, "EVENKEEL_COMPANION_DIR")
        self.addCleanup(os.environ.pop, "EVENKEEL_COMPANION_OWN", None)
        os.makedirs(self.dir + "/boards")


class FakeTorch:
    """Of one device, with PyTorch's keys: a FAKE; the real allocator is in tools/gpu-companion.py."""

    def __init__(self):
        self.cuda, self.peak = self, 0

    def is_available(self):
        return True

    is_initialized = is_available

    def device_count(self):
        return 1

    def memory_stats(self, _):
        return {"reserved_bytes.all.current": self.reserved, "allocated_bytes.all.current": self.used, "allocated_bytes.all.peak": self.peak}

    def has(self, reserved, used):
        self.reserved, self.used, self.peak = reserved, used, max(self.peak, used)
        return self


class TestWorkerFigures(InDirectory):
    def look(self, torch):
        worker.figures(self.to, torch)
        return [self.to.get(name) for name in ("reserved", "used", "used_high")]

    def setUp(self):
        super().setUp()
        self.to = board.make(self.dir, "worker")

    def test_outside_weights_and_cache_once_the_engine_is_built(self):
        torch = FakeTorch()
        self.assertEqual(self.look(torch.has(70, 68)), [70, 68, 68])
        board.make(self.dir, "engine")
        self.assertEqual(self.look(torch.has(74, 73)), [0, 0, 0])  # in the midst of a step
        self.assertEqual(self.look(torch.has(76, 68)), [7, 0, 5])
        self.assertEqual(self.look(torch.has(79, 70)), [10, 2, 5])
        page = metrics.page(None, {}, {}, {os.getpid(): self.to}, 'vllm="x"', 0)
        self.assertIn("evenkeel_devpool_reserved_bytes 10\n", page)
        self.assertIn('item="reserved"} 79\n', page)

    def test_pieces_are_seen_beside_a_large_cache(self):
        gib = 1 << 30
        torch = FakeTorch().has(71 * gib, 70 * gib)
        board.make(self.dir, "engine")
        self.look(torch)
        reserved, _, high = self.look(torch.has(79 * gib, 71 * gib))
        self.assertGreater(1 - high / reserved, 0.85)  # of all that it holds it would be 0.1

    def test_another_engine_says_nothing(self):
        open(board.path_of(self.dir, "engine", 1), "wb").close()
        self.assertEqual(self.look(FakeTorch().has(70, 68)), [70, 68, 68])


class TestLimits(unittest.TestCase):
    def setUp(self):
        self.l = limits.Limits({"max_num_running_seqs": limits.Row(16, 16, 16, 1), "max_num_batched_tokens": limits.Row(2048, 2048, 2048, 1),
                                "queue_deadline_s": limits.Row(0, 0, 0, 0)})

    def test_refused_as_a_whole_with_field_bound_and_remedy(self):
        for body, status, param, says in (
            ([], 400, "", "JSON object"),
            ({}, 400, "", "names no limit"),
            ({"max_num_running_seqs": 17}, 400, "max_num_running_seqs", "above its ceiling 16: lower it, or restart the server with a larger --max-num-seqs"),
            ({"max_num_running_seqs": 0}, 400, "max_num_running_seqs", "below its least value 1"),
            ({"max_num_running_seqs": 1.5}, 400, "max_num_running_seqs", "whole number"),
            ({"max_num_running_seqs": True}, 400, "max_num_running_seqs", "whole number"),
            ({"max_num_running_seqs": float("nan")}, 400, "max_num_running_seqs", "whole number"),
            ({"max_num_running_seqs": 8, "generation": 3}, 409, "generation", "read them again"),
            ({"max_num_running_seqs": 8, "max_num_batched_tokens": 4}, 400, "max_num_batched_tokens", "each running sequence needs one token"),
            ({"max_num_running_seqs": 8, "reason": "x" * 96}, 400, "reason", "shorter than 96"),
            ({"max_num_running_seqs": 8, "expires_in_s": "soon"}, 400, "expires_in_s", "number"),
            ({"watermark": 0.1}, 400, "watermark", "This vLLM cannot change"),
            ({"nonsense": 1}, 400, "nonsense", "There is no limit"),
        ):
            with self.subTest(body=body), self.assertRaises(limits.Refused) as got:
                self.l.apply(body, 1.0)
            self.assertEqual((got.exception.status, got.exception.param), (status, param))
            self.assertIn(says, str(got.exception))
            self.assertEqual((self.l.generation, self.l.rows["max_num_running_seqs"].value), (0, 16))

    def test_a_change_and_its_end(self):
        self.l.apply({"max_num_running_seqs": 4, "expires_in_s": 10, "origin": "evenkeeld", "reason": "harm"}, 100.0)
        seen = self.l.as_json(103.0)
        self.assertEqual((seen["max_num_running_seqs"], seen["generation"], seen["origin"], seen["expires_in_s"]), (4, 1, "evenkeeld", 7.0))
        self.assertEqual(seen["changed_s_ago"]["max_num_running_seqs"], 3.0)
        self.assertFalse(self.l.expire(109.9))
        self.assertTrue(self.l.expire(110.0))
        self.assertEqual((self.l.rows["max_num_running_seqs"].value, self.l.generation), (16, 2))

    def test_what_is_given_at_the_start_is_brought_inside(self):
        self.assertEqual(self.l.begin("max_num_running_seqs=99,queue_deadline_s=5,junk,x=1"), ["junk", "x=1"])
        self.assertEqual([self.l.rows[n].value for n in ("max_num_running_seqs", "queue_deadline_s")], [16, 5])


class TestScheduler(InDirectory):
    def build(self, asynchronous=True):
        s = scheduler.build(vllm_config=vllm_stub.config(asynchronous))
        self.limits = board.make(self.dir, "limits")
        return s, s._keel.board

    def step(self, s, out=None):
        out = out or s.schedule()
        s.update_from_output(out, None)
        return out

    def test_the_class_that_vllm_would_have_taken(self):
        self.assertIsInstance(self.build(True)[0], vllm_stub.AsyncScheduler)
        self.assertNotIsInstance(self.build(False)[0], vllm_stub.AsyncScheduler)

    def test_limits_are_obeyed_and_nobody_is_cut(self):
        s, b = self.build()
        for i in range(6):
            s.add_request(vllm_stub.Request(f"r{i}"))
        self.step(s)
        self.assertEqual(b.get("running"), 4)  # none has been said yet: vLLM's own
        for cell, value in (("running_seqs", 2), ("batched_tokens", 16), ("watermark", 0.051), ("prefill_chunk", 8)):
            self.limits.set(cell, value)
        s._keel.look_again = 0
        self.step(s)
        self.assertEqual((len(s.running), s.max_num_active_reqs, s.max_num_scheduled_tokens), (4, 2, 16))
        self.assertEqual((s.kv_cache_manager.watermark_blocks, s.scheduler_config.long_prefill_token_threshold), (6, 8))
        self.assertEqual((b.get("waiting"), b.get("held_limit"), b.get("waiting_tokens")), (2, 2, 16))
        s.finish_requests(["r0", "r1", "r2"], None)
        self.step(s)
        self.assertEqual(len(s.running), 2)
        self.limits.set("running_seqs", 99)  # never above what it began with
        self.step(s)
        self.assertEqual(s.max_num_active_reqs, 4)

    def test_a_long_prompt_comes_in_chunks_of_the_live_limit(self):
        s, _ = self.build()
        self.limits.set("running_seqs", 4)
        for name, prompt in (("short", 1), ("long", 100)):
            s.add_request(vllm_stub.Request(name, prompt=prompt))
        seen = []
        for chunk, steps in ((8, 3), (0, 1), (5, 2)):  # none: as much as a step has
            self.limits.set("prefill_chunk", chunk)
            seen += [self.step(s).num_scheduled_tokens["long"] for _ in range(steps)]
        self.assertEqual(seen, [8, 8, 8, 63, 5, 5])

    def test_engines_of_data_parallelism_share_sequences(self):
        for seqs, engines in ((5, 2), (16, 2), (7, 3), (3, 3)):
            self.assertEqual(sum(scheduler.share(seqs, engines, i) for i in range(engines)), seqs)
            self.assertEqual(sum(scheduler.share(seqs, engines, i) for i in range(engines, 2 * engines)), seqs)  # on another node
        self.assertEqual([scheduler.share(1, 3, i) for i in range(3)], [1, 1, 1])
        self.assertEqual((scheduler.share(5, 1, 0), scheduler.share(0, 2, 1), scheduler.share(5, 0, 0)), (5, 0, 5))
        config = vllm_stub.config()
        config.parallel_config = types.SimpleNamespace(data_parallel_index=1, data_parallel_rank=0)
        s = scheduler.build(vllm_config=config)
        limits_ = board.make(self.dir, "limits")
        for cell, value in (("running_seqs", 5), ("engines", 2)):
            limits_.set(cell, value)
        self.step(s)
        self.assertEqual(s.max_num_active_reqs, 2)

    def test_an_older_vllm_may_not_run_more_than_it_allows(self):
        vllm_stub.AsyncScheduler.slots = "max_num_running_reqs"
        self.addCleanup(setattr, vllm_stub.AsyncScheduler, "slots", "max_num_active_reqs")
        s, b = self.build()
        for i in range(4):
            s.add_request(vllm_stub.Request(f"r{i}"))
        self.limits.set("running_seqs", 4)
        self.step(s)
        self.limits.set("running_seqs", 1)
        self.step(s)
        self.assertEqual(s.max_num_running_reqs, 4)
        s.finish_requests(["r0", "r1"], None)
        self.step(s)
        self.assertEqual(s.max_num_running_reqs, 2)

    def test_counts(self):
        s, b = self.build()
        s.add_request(vllm_stub.Request("a", prompt=32, arrival=time.time() - 5))
        first = s.schedule()
        self.assertGreater(b.get("step_since"), 0)
        self.step(s, first)
        self.assertEqual((b.get("steps"), b.get("step_since")), (1, 0))
        s._preempt_request(s.requests["a"], 0.0)
        self.assertEqual(b.get("preemptions"), 1)  # when it happens
        self.assertEqual(b.get("recomputed_tokens"), 0)
        s._keel.publish()
        self.assertEqual((b.get("waiting_preempted"), b.get("oldest_new_arrival")), (1, 0))
        self.assertAlmostEqual(time.time() - b.get("oldest_arrival"), 5, delta=1)
        s.requests["a"].num_computed_tokens = 24  # found in the prefix cache
        self.step(s)
        self.assertEqual(b.get("recomputed_tokens"), 8)
        self.assertEqual(s._keel.lost, {})
        s._preempt_request(s.requests["a"], 0.0)
        s.finish_requests(["a"], None)  # its client left while it waited
        self.assertEqual((b.get("running"), b.get("waiting")), (0, 0))
        self.step(s)
        self.assertEqual(s._keel.lost, {})

    def test_who_is_overdue(self):
        s, b = self.build()
        self.limits.set("running_seqs", 1)
        self.limits.set("deadline_s", 2)
        for name, age in (("runs", 9), ("old", 5), ("new", 1)):
            s.add_request(vllm_stub.Request(name, arrival=time.time() - age))
        self.step(s)
        self.assertEqual(front.overdue(self.dir, {os.getpid(): b}), ["old"])
        s.finish_requests(["old"], None)
        s._keel.told_at = 0
        self.step(s)
        self.assertEqual(front.overdue(self.dir, {os.getpid(): b}), [])

    def test_an_error_of_ours_ends_nothing(self):
        s, b = self.build()
        self.limits.set("running_seqs", 1)
        s.add_request(vllm_stub.Request("a"))
        self.step(s)
        s._keel.pool.get_num_free_blocks = None
        self.assertEqual(self.step(s).num_scheduled_tokens, {"a": 1})
        self.assertTrue(s._keel.failed)
        self.assertEqual(s.max_num_active_reqs, 4)  # as vLLM began
        self.assertEqual(self.step(s).num_scheduled_tokens, {"a": 1})

    def test_what_is_missing_switches_it_off(self):
        finish = vllm_stub.Scheduler.finish_requests
        del vllm_stub.Scheduler.finish_requests
        self.addCleanup(setattr, vllm_stub.Scheduler, "finish_requests", finish)
        self.assertIs(type(scheduler.build(vllm_config=vllm_stub.config())), vllm_stub.AsyncScheduler)


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

        class Torch(FakeTorch):
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


class TestControl(InDirectory):
    def setUp(self):
        super().setUp()
        engine = board.make(self.dir, "engine")
        for cell, value in (("ceiling_seqs", 16), ("ceiling_tokens", 2048), ("has_watermark", 1), ("blocks", 100), ("preemptions", 3)):
            engine.set(cell, value)
        clear, board.clear = board.clear, lambda _: None  # this process has all the roles
        os.environ["EVENKEEL_START_LIMITS"] = "max_num_running_seqs=8"
        self.control = control.serve(self.dir)
        board.clear = clear
        self.addCleanup(os.environ.pop, "EVENKEEL_START_LIMITS")
        self.addCleanup(self.end)

    def end(self):
        lock, own = control._kept[-2:]
        own.closed = True
        own.watcher.join()
        own.server.shutdown()
        own.server.server_close()
        os.close(lock)
        control._kept.clear()

    def ask(self, method, path, body=None):
        peer = control.Beside(self.dir + "/control.sock")
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        peer.request(method, path, raw)
        answer = peer.getresponse()
        text = answer.read().decode()
        peer.close()
        return answer.status, json.loads(text) if text.startswith("{") else text

    def test_limits(self):
        status, seen = self.ask("GET", "/v1/runtime_config")
        self.assertEqual((status, seen["max_num_running_seqs"], seen["ceiling"]["max_num_running_seqs"], seen["generation"]), (200, 8, 16, 0))
        status, seen = self.ask("PATCH", "/v1/runtime_config", {"max_num_running_seqs": 4, "generation": 0})
        self.assertEqual((status, seen["max_num_running_seqs"], seen["generation"]), (200, 4, 1))
        self.assertEqual(self.control.board.get("running_seqs"), 4)
        for body, status in ((b"{", 400), (b"[]", 400), ({"max_num_running_seqs": 99}, 400), ({"max_num_running_seqs": 2, "generation": 9}, 409)):
            self.assertEqual(self.ask("PATCH", "/v1/runtime_config", body)[0], status)
        self.assertEqual(self.control.board.get("running_seqs"), 4)

    def test_engines_that_come_later_raise_the_ceiling(self):
        def another():
            b = board.Board(f"{self.dir}/boards/engine-{pids.pop()}", "engine", write=True)
            b.set("ceiling_seqs", 16)
            self.assertEqual(self.ask("GET", "/v1/runtime_config")[1]["ceiling"]["max_num_running_seqs"], seen)  # not whole yet
            b.set("ceiling_tokens", 2048)
            return self.ask("GET", "/v1/runtime_config")[1]

        pids, seen = [1, os.getppid()], 16  # processes that live
        out = another()
        self.assertEqual((out["max_num_running_seqs"], out["ceiling"]["max_num_running_seqs"]), (8, 32))  # as it was asked for at the start
        self.assertEqual((self.control.board.get("running_seqs"), self.control.board.get("engines")), (8, 2))
        self.ask("PATCH", "/v1/runtime_config", {"max_num_running_seqs": 32})
        seen = 32
        out = another()
        self.assertEqual((out["max_num_running_seqs"], out["ceiling"]["max_num_running_seqs"], out["start"]["max_num_running_seqs"]), (48, 48, 48))

    def test_metrics_have_known_names(self):
        text = self.ask("GET", "/metrics")[1]
        self.assertIn('evenkeel_preemptions_total{reason="recompute"} 3\n', text)
        self.assertIn('evenkeel_limit{limit="max_num_running_seqs"} 8\n', text)
        names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line and line[0] != "#"}
        self.assertLessEqual(names, set(metrics.NAMES))

    def test_drain_resume_and_what_is_wrong(self):
        self.assertEqual(self.ask("POST", "/drain", {"deadline_s": 5, "mode": "hold"})[1]["state"], "draining")
        self.assertEqual(self.control.board.get("drain"), board.HOLDING)
        self.assertEqual(self.ask("POST", "/resume")[1]["state"], "serving")
        for body in ({"deadline_s": -1}, {"mode": "x"}, {"exit": 1}):
            self.assertEqual(self.ask("POST", "/drain", body)[0], 400)
        self.assertEqual(self.ask("POST", "/trim", {})[0], 200)
        self.assertEqual(self.control.board.get("trim"), 1)

    def test_vllm_does_not_listen_yet(self):
        self.assertEqual(self.ask("GET", "/readyz")[0], 503)
        self.assertEqual(self.ask("GET", "/v1/models")[0], 503)

    def test_what_is_passed_on_is_known_as_evenkeelds_own(self):
        class Vllm(BaseHTTPRequestHandler):
            def do_POST(self):
                seen.append(([(k.lower().encode(), v.encode()) for k, v in self.headers.items()], self.rfile.read(2)))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_):
                return

            def address_string(self):
                return "api.sock"

        seen = []
        with socketserver.UnixStreamServer(self.dir + "/api.sock", Vllm) as api:
            threading.Thread(target=api.handle_request).start()
            self.assertEqual(self.ask("POST", "/v1/completions", {}), (200, "ok"))
        headers, body = seen[0]
        self.assertEqual(body, b"{}")
        self.assertTrue(front.is_own({"headers": headers}))
        self.assertFalse(front.is_own({"headers": [h for h in headers if h[0] != b"x-evenkeel-own"]}))

    def verb(self, line, fd=-1):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(self.dir + "/control.sock")
            socket.send_fds(peer, [line], [fd] if fd >= 0 else [])
            text, fds, _, _ = socket.recv_fds(peer, 100, 1)
            return text.decode(), fds

    def test_the_listening_socket_goes_in_and_out(self):
        self.assertTrue(self.verb(b"EVENKEEL-FD get listen\n")[0].startswith("ERR"))
        with open("/dev/null") as file:
            self.assertIn("no listening", self.verb(b"EVENKEEL-FD put listen\n", file.fileno())[0])
        with socket.socket() as idle:
            self.assertIn("no listening", self.verb(b"EVENKEEL-FD put listen\n", idle.fileno())[0])
        with socket.create_server(("127.0.0.1", 0)) as ours:
            self.assertEqual(self.verb(b"EVENKEEL-FD put listen\n", ours.fileno())[0], "OK\n")
            self.assertIn("already", self.verb(b"EVENKEEL-FD put listen\n", ours.fileno())[0])
            text, fds = self.verb(b"EVENKEEL-FD get listen\n")
            with socket.socket(fileno=fds[0]) as theirs:
                self.assertEqual((text, theirs.getsockname()), ("OK\n", ours.getsockname()))
        self.assertIn("unknown verb", self.verb(b"EVENKEEL-FD frobnicate\n")[0])
        self.control.listen.close()

    def test_a_removed_socket_is_there_again(self):
        """Not one that has taken its name."""
        path = self.dir + "/control.sock"
        for _ in range(2):
            os.unlink(path)
            end = time.monotonic() + 20
            while not os.path.exists(path) and time.monotonic() < end:
                time.sleep(0.02)
            self.assertEqual(self.ask("GET", "/livez")[0], 200)
            self.assertEqual((os.stat(path).st_mode & 0o777, sorted(os.listdir(self.dir))), (0o660, ["boards", "companion.lock", "control.sock"]))
        self.control.closed = True
        self.control.watcher.join()
        own = self.control.server
        os.unlink(path)
        pathlib.Path(path).touch()
        self.control.keep_socket()
        self.assertIs(self.control.server, own)
        self.assertTrue(pathlib.Path(path).is_file())

    def test_two_companions(self):
        with self.assertRaisesRegex(OSError, "another companion's"):
            control.serve(self.dir)


class TestASocketThatIsThere(InDirectory):
    """What a process that was killed has left is removed; all else stays, and vLLM goes on without us after one sentence."""

    def bound(self, name):
        there = socket.socket(socket.AF_UNIX)
        self.addCleanup(there.close)
        there.bind(f"{self.dir}/{name}")
        return there

    def begin(self):
        """As vLLM does it; what is said."""
        said = io.StringIO()
        vars(sys.modules["evenkeel_vllm"])["_said"].clear()
        with contextlib.redirect_stderr(said), mock.patch.object(sys, "orig_argv", ["vllm", "serve", "m"]):
            control.plugin()
        return said.getvalue()

    def left_alone(self, name, says):
        before = os.lstat(f"{self.dir}/{name}")
        mark = pathlib.Path(self.dir, "boards", "engine-1")
        mark.touch()
        said = self.begin()
        self.assertEqual(said.count("\n"), 1)
        self.assertIn("the companion is off", said)
        self.assertIn(f"{self.dir}/{name}", said)
        self.assertIn(says, said)
        self.assertEqual((control._kept, mark.exists()), ([], True))  # the boards are the others' too
        self.assertEqual(os.lstat(f"{self.dir}/{name}").st_ino, before.st_ino)

    def test_somebody_listens(self):
        for name in ("control.sock", "api.sock"):
            with self.subTest(name=name):
                there = self.bound(name)
                there.listen(0)
                self.left_alone(name, "another process listens")
                fill = [socket.socket(socket.AF_UNIX) for _ in range(4)]
                for each in fill:  # until it takes no more
                    self.addCleanup(each.close)
                    each.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        each.connect(f"{self.dir}/{name}")
                self.left_alone(name, "another process listens")
                there.close()
                os.unlink(f"{self.dir}/{name}")

    def test_of_another_user(self):
        self.bound("api.sock")
        uid = os.geteuid()
        with mock.patch.object(os, "geteuid", return_value=uid + 1):
            self.left_alone("api.sock", f"a socket of user {uid},")

    def test_no_socket_at_all(self):
        pathlib.Path(self.dir, "precious").write_text("1")
        for make in (lambda path: pathlib.Path(path).write_text("x"), lambda path: os.symlink(f"{self.dir}/precious", path), os.mkdir):
            make(f"{self.dir}/control.sock")
            self.left_alone("control.sock", "is no socket")
            os.rename(f"{self.dir}/control.sock", tempfile.mkdtemp(dir=self.dir) + "/away")

    def test_left_by_a_process_that_was_killed(self):
        for name in ("control.sock", "api.sock"):
            self.bound(name).close()
        self.assertEqual(self.begin(), "")
        lock, own = control._kept
        server = own.server
        peer = control.Beside(f"{self.dir}/control.sock")
        self.addCleanup(peer.close)
        peer.request("GET", "/livez")
        self.assertEqual(peer.getresponse().read(), b'{"status": "ok"}')
        self.assertFalse(os.path.exists(f"{self.dir}/api.sock"))
        own.closed = True
        own.watcher.join()  # it would open the name again
        server.shutdown()
        server.server_close()
        os.close(lock)
        control._kept.clear()


if __name__ == "__main__":
    unittest.main()
