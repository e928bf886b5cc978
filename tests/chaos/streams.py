"""Clients whose answers are known. Each asks one request after the other on a connection of its own and writes down how it ended.

How a request may end: `done` (its text is compared), `cut` (the connection ended without an end of the answer), `error` (an event in the
stream says so), `status` (another one than 200), `refused` (nobody listens), `late` (no byte for as long as a client is patient)."""
import http.client
import json
import random
import socket
import threading
import time


class Ended:
    """One request: when it began and ended, how, and how far its text came."""
    __slots__ = ("began", "ended", "how", "said", "text", "number")

    def __init__(self, number):
        self.number, self.began, self.ended, self.how, self.said, self.text = number, time.monotonic(), None, None, "", ""

    def end(self, how, said=""):
        self.ended, self.how, self.said = time.monotonic(), how, said
        return self

    def short(self):
        return f"{self.how} after {self.ended - self.began:.2f} s and {len(self.text)} letters{': ' + self.said if self.said else ''}"


def ask(port, number, body, patience_s):
    """One streamed request from its connection to its end; never raises for what a server does."""
    r = Ended(number)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience_s)
    try:
        connection.connect()
    except ConnectionRefusedError:
        return r.end("refused")
    except OSError as error:
        return r.end("cut", f"no connection: {error}")
    try:
        connection.request("POST", "/v1/completions", json.dumps(dict(body, stream=True)), {"Content-Type": "application/json", "Connection": "close"})
        answer = connection.getresponse()
        if answer.status != 200:
            return r.end("status", f"{answer.status} {answer.read(300).decode(errors='replace')}")
        for line in answer:
            if line.startswith(b"data: [DONE]"):
                return r.end("done")
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                return r.end("error", str(event["error"].get("message"))[:200])
            for choice in event.get("choices", []):
                r.text += choice.get("text") or ""
                if choice.get("finish_reason") in ("abort", "error"):
                    return r.end("error", f"finish_reason {choice['finish_reason']}")
        return r.end("cut", "it ended without [DONE]")
    except TimeoutError:
        return r.end("late", f"nothing for {patience_s:.0f} s")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return r.end("cut", repr(error)[:120])
    finally:
        connection.close()


class Clients:
    """n clients until end(); `ended` is complete when they have ended."""

    def __init__(self, port, n, pool, seed, patience_s):
        self.port, self.pool, self.patience_s, self.over = port, pool, patience_s, False
        self.ended, self.lock = [], threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(random.Random(f"{seed} {i}"),), daemon=True) for i in range(n)]
        for t in self.threads:
            t.start()

    def run(self, rng):
        while not self.over:
            number = rng.randrange(len(self.pool))
            r = ask(self.port, number, self.pool[number]["body"], self.patience_s)
            with self.lock:
                self.ended.append(r)
            if r.how != "done":
                time.sleep(0.1)

    def end(self, seconds):
        """Asks nothing new; True when all that was asked has an end."""
        self.over, end = True, time.monotonic() + seconds
        for t in self.threads:
            t.join(max(0.0, end - time.monotonic()))
        return not any(t.is_alive() for t in self.threads)


def slow_reader(port, seconds, bytes_a_second=200):
    """A client that reads almost nothing of a long answer, then goes without a word."""
    body = json.dumps({"model": "tiny", "prompt": "slow", "max_tokens": 1500, "ignore_eos": True, "stream": True})
    with socket.create_connection(("127.0.0.1", port), 10) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        s.settimeout(1)
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if not s.recv(max(1, bytes_a_second // 10)):
                    return
            except TimeoutError:
                pass
            time.sleep(0.1)


def vanish(port, after_s):
    """A client that is reset in the middle of its answer."""
    body = json.dumps({"model": "tiny", "prompt": "gone", "max_tokens": 1500, "ignore_eos": True, "stream": True})
    with socket.create_connection(("127.0.0.1", port), 10) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        time.sleep(after_s)
