"""A cable with a delay: two taps, the second one in a network namespace, and a process that carries frames between them, each DELAY ms later and up to
JITTER more, in their order. SIGUSR1 cuts it (frames get lost), SIGUSR2 mends it. wire.py NEAR FAR NAMESPACE DELAY JITTER"""
import collections
import fcntl
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 2, 0x1000


def tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def main():
    near, far, space, delay, jitter = sys.argv[1:]
    ends, draw, whole = [tap(near), tap(far)], random.Random(1), [True]
    subprocess.run(["ip", "link", "set", far, "netns", space], check=True)
    signal.signal(signal.SIGUSR1, lambda *_: whole.__setitem__(0, False))
    signal.signal(signal.SIGUSR2, lambda *_: whole.__setitem__(0, True))
    on_way = {fd: collections.deque() for fd in ends}  # to this end: (when, frame)
    print("ready", flush=True)
    while True:
        due = min((q[0][0] for q in on_way.values() if q), default=None)
        ready = select.select(ends, [], [], None if due is None else max(0, due - time.monotonic()))[0]
        now = time.monotonic()
        for fd in ready:
            to, frame = ends[fd == ends[0]], os.read(fd, 65536)
            if whole[0]:
                last = on_way[to][-1][0] if on_way[to] else 0
                on_way[to].append((max(last, now + (float(delay) + draw.uniform(0, float(jitter))) / 1000), frame))
        for fd, queue in on_way.items():
            while queue and queue[0][0] <= now:
                try:
                    os.write(fd, queue.popleft()[1])
                except OSError:
                    pass  # its end is down, or its queue is full: the frame is lost


main()
