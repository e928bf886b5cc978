"""Protects: the control socket of the companion without a vLLM, and what it does where something is in its place."""
import contextlib
import io
import json
import os
import pathlib
import socket
import socketserver
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler
from unittest import mock

from directory import InDirectory  # first: it makes the others known
from evenkeel_vllm import board, control, front, metrics


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
