"""Protects: README's own commands do what README says, typed as they stand on a machine where the programs are built."""
import os
import re
import signal
import subprocess

import pytest

from conftest import BUILD, ROOT, wait_for
from demo import free_port


def commands(heading):
    """Of the first block of shell below that heading: its commands, joined where a line goes on, without comments."""
    text = (ROOT / "README.md").read_text().split(f"\n## {heading}\n", 1)[1]
    block = re.search(r"```sh\n(.*?)```", text, re.S).group(1)
    return [re.sub(r"\s+#.*$", "", line) for line in block.replace("\\\n", " ").splitlines()]


@pytest.fixture
def typed(tmp_path):
    """Runs a command of README; only ports, and where sockets and builds lie, are other ones."""
    port, page = free_port(18000), free_port(19464)
    env = {**os.environ, "EVENKEEL_SOCKET": str(tmp_path / "evenkeeld.sock")}
    started = []

    def run(command, stay=False):
        command = command.replace("build/release/", f"{BUILD}/").replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        command = command.replace("--port 8000", f"--port {port} --listen 127.0.0.1:{page} --run-dir {tmp_path} --state-dir {tmp_path}/state "
                                                f"--socket {tmp_path}/evenkeeld.sock")
        if stay:
            log = open(tmp_path / "log", "wb")
            started.append(subprocess.Popen(command.split(), cwd=ROOT, env=env, stdout=log, stderr=log))
            return None
        return subprocess.run(["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)

    yield run
    for p in started:
        p.send_signal(signal.SIGTERM)
        p.wait(60)


def test_serve_a_model(typed):
    make, serve, status, *ask = commands("Serve a model")
    assert make == "make" and "evenkeeld" in serve and len(ask) == 1, "the block is another one: say here what it does"
    typed(serve, stay=True)
    wait_for("a ready server", lambda: " ready " in typed(status).stdout, 60)
    answer = typed(ask[0].replace("curl ", "curl --fail-with-body -sS ", 1))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.rstrip().endswith("data: [DONE]") and '"delta"' in answer.stdout
