"""A plug-in of pytest for tools/check.sh: appends to the file named by TIMES what each test took, as tools/run-tests.sh does.

"processor-ms wall-ms name" per test; the processors' time is this process's and that of the processes that it has waited for, so a
server that a module's tests share is counted with the last of them.
"""
import os
import time

import pytest


def processors_s():
    """What this process and its ended children have computed, in seconds."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    began, computed = time.monotonic(), processors_s()
    result = yield
    if path := os.environ.get("TIMES"):
        took, computed = time.monotonic() - began, processors_s() - computed
        with open(path, "a") as f:
            f.write(f"{computed * 1000:.0f} {took * 1000:.0f} {item.nodeid.removeprefix('tests/').replace(' ', '_')[:90]}\n")
    return result
