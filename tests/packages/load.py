#!/usr/bin/env python3
"""Clients that open a connection per request and count what became of each: load.py PORT CLIENTS SECONDS [MAX_TOKENS [KEY]].
Prints JSON."""
import http.client
import json
import sys
import threading
import time

port, clients, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
tokens = int(sys.argv[4]) if len(sys.argv) > 4 else 24
HEADERS = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {sys.argv[5]}"} if len(sys.argv) > 5 else {})
BODY = json.dumps({"model": "evenkeel-tiny", "prompt": "Once upon a time", "max_tokens": tokens, "stream": True, "ignore_eos": True}).encode()
counts = {"ok": 0, "refused": 0, "errors_5xx": 0, "broken": 0, "other": 0}
longest, lock, said = 0.0, threading.Lock(), []
end = time.monotonic() + seconds


def one():
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.connect()
    except OSError as error:
        said.append(str(error))
        return "refused"
    try:
        connection.request("POST", "/v1/completions", BODY, HEADERS)
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as error:
        said.append(repr(error))
        return "broken"
    finally:
        connection.close()
    if answer.status >= 500:
        said.append(f"{answer.status} {text[:200]!r}")
        return "errors_5xx"
    return "ok" if answer.status == 200 and b"[DONE]" in text else "other"


def work():
    global longest
    first = True  # each asks once, however busy the machine is
    while first or time.monotonic() < end:
        first, begin = False, time.monotonic()
        what = one()
        with lock:
            counts[what] += 1
            longest = max(longest, time.monotonic() - begin)
        if what != "ok":
            time.sleep(0.05)


threads = [threading.Thread(target=work) for _ in range(clients)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(json.dumps({**counts, "longest_s": round(longest, 2), "said": said[:5]}))
