"""Stops one thread of another process as a debugger does, while all its other threads go on.

What holds a thread must be the thread of this program that lets it go; and one that ends while it is held is there until it was waited for."""
import contextlib
import ctypes
import functools
import os
import pathlib
import subprocess

DETACH, SEIZE, INTERRUPT = 17, 0x4206, 0x4207
ALSO_THREADS = 0x40000000  # __WALL
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def threads_of(pid, name):
    """All threads with that name."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            if (task / "comm").read_text().strip() == name:
                found.append(int(task.name))
    return found


def thread_of(pid, name):
    """The thread with that name, or 0."""
    return next(iter(threads_of(pid, name)), 0)


def reap(tid):
    with contextlib.suppress(ChildProcessError):
        os.waitpid(tid, os.WNOHANG | ALSO_THREADS)


@contextlib.contextmanager
def held(tid):
    """Whether it is held; it goes on at the end."""
    got = tid > 0 and libc.ptrace(SEIZE, tid, None, None) == 0
    if got:
        libc.ptrace(INTERRUPT, tid, None, None)
    try:
        yield got
    finally:
        if got:
            reap(tid)
            libc.ptrace(DETACH, tid, None, None)


@functools.cache
def allowed():
    sleeper = subprocess.Popen(["sleep", "10"])
    try:
        with held(sleeper.pid) as got:
            return got
    finally:
        sleeper.kill()
        sleeper.wait()
