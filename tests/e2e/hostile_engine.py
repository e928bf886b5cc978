#!/usr/bin/env python3
"""A FAKE engine for tests of evenkeeld: it leaves what no engine leaves in its directory and its log, then ends with status 1. Standard library
only. Flags: --model KIND of what it does, and those that evenkeeld gives; --gives WHAT: serves nothing, and gives that as its listening socket."""
import argparse
import array
import json
import os
import pathlib
import socket
import sys
import time

p = argparse.ArgumentParser()
for flag in ("--model", "--control-socket", "--gives", "--port"):
    p.add_argument(flag, default="")
ARGS, _ = p.parse_known_args()
OUT, WORDS = sys.stdout.buffer, os.environ.get("WORDS", "").encode()
SOCKET = pathlib.Path(ARGS.control_socket).name
RUN = pathlib.Path(ARGS.control_socket).parent if ARGS.control_socket else pathlib.Path(".")
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB " + WORDS + b"\n"


def leave(name, make):
    path = RUN / name
    if path.is_symlink() or path.exists():
        path.unlink()
    make(path)


def sparse(path, size, head=b""):
    with open(path, "wb") as f:
        f.write(head)
        f.truncate(size)


def word(**more):
    leave("exit.json", lambda path: path.write_text(json.dumps({"pid": os.getpid(), "code": 78, "why": os.environ.get("WORDS", ""), **more})))


def crowded():
    """Lines whose places in a table by FNV-1a are the same few."""
    lines, n = [], 0
    while len(lines) < 4000:
        n += 1
        line, h = b"a line that is no other one %d\n" % n, 0xcbf29ce484222325
        for c in line:
            h = (h ^ c) * 0x100000001b3 & (1 << 64) - 1
        if (h >> 7) % (1 << 17) < 2048:
            lines.append(line)
    return b"".join(lines)


def play(kind):
    if kind == "words":
        OUT.write(OOM + b"Traceback (most recent call last):\n" + WORDS + b"\nValueError: " + WORDS + b"\n")
        word()
    elif kind == "links":
        for name in ("exit.json", f"{SOCKET}.ring", f"{SOCKET}.before.ring"):
            leave(name, lambda path: path.symlink_to("/dev/zero"))
    elif kind == "fifos":
        for name in ("exit.json", f"{SOCKET}.ring", f"{SOCKET}.before.ring"):
            leave(name, os.mkfifo)
    elif kind == "large":
        leave("exit.json", lambda path: sparse(path, 1 << 34, b'{"pid":1,"code":'))
        leave(f"{SOCKET}.ring", lambda path: sparse(path, 1 << 34))
    elif kind == "deep":
        leave("exit.json", lambda path: path.write_text("[" * 60_000))
    elif kind == "numbers":
        word(code=10**18, launcher=-1, pid=float("1e300"))
    elif kind == "no lines":
        for _ in range(100):
            OUT.write(b"x" * (1 << 20))
    elif kind == "one line":
        OUT.write(b"Error " * 800_000 + b"CUDA out of memory\n")
    elif kind == "lines":
        OUT.write(b"".join(b"%d ValueError: x RuntimeError: y Error in z: failed\n" % i for i in range(90_000)))
    elif kind == "crowded":
        OUT.write(crowded())
    elif kind == "zeros":
        OUT.write(bytes(3_000_000) + OOM)
    elif kind == "odd bytes":
        OUT.write(os.urandom(4_000_000) + OOM)
    elif kind == "frames":
        OUT.write(b'Traceback (most recent call last):\n' + b'  File "x.py", line 99999999999999999999, in y\n    z\n' * 60_000 + OOM)
    elif kind == "brackets":
        OUT.write((b"(" * 3000 + b"[" * 3000 + b"{" * 3000 + b"\n") * 400 + OOM)
    elif kind == "numbers of memory":
        OUT.write(b"".join(b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %s GiB. GPU %s has a total capacity of %s GiB of which %s GiB is free.\n" % ((n,) * 4)
                           for n in (b"9" * 400, b"-1", b"nan", b"1e308", b"1e-308", b"0x1p9999", b"")))
    OUT.flush()


def give():
    """Answers whatever is asked with a descriptor that is not what was asked for."""
    ends = os.pipe()
    other = socket.create_server(("127.0.0.1", 0))
    local = socket.socket(socket.AF_UNIX)
    local.bind(f"\0ek-{os.getpid()}")
    local.listen()
    give = {"pipe": ends[0], "file": os.open("/etc/passwd", os.O_RDONLY), "port": other.fileno(), "local": local.fileno(), "unused": socket.socket().detach()}[ARGS.gives]
    leave(pathlib.Path(ARGS.control_socket).name, lambda path: None)
    control = socket.socket(socket.AF_UNIX)
    control.bind(ARGS.control_socket)
    control.listen()
    while True:
        connection = control.accept()[0]
        with connection:
            data = connection.recv(65536)
            if data.startswith(b"EVENKEEL-FD get"):
                connection.sendmsg([b"OK\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [give] * 3))])
            elif data.startswith(b"EVENKEEL-FD"):
                connection.sendall(b"OK\n")
            else:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            if data.startswith(b"POST /drain"):
                sys.exit(77)


if ARGS.gives:
    give()
play(ARGS.model)
time.sleep(0.3)
sys.exit(1)
