"""Protects: nothing that /openapi.json allows, and nothing near it, makes the server fail (5xx)."""
import os
import pathlib
import subprocess
import sys

from conftest import Appliance


SHARE, DAY = (int(os.environ.get(f"EVENKEEL_{v}", n)) for v, n in (("SHARE", "1"), ("DAY", "0")))
EXAMPLES = 60 // SHARE  # of each operation; `make check` has a share
PHASES = ["examples,fuzzing", "coverage", "stateful"]  # and of these one each day


def test_schemathesis(tmp_path):
    a = Appliance(tmp_path, ["--max-model-len", "256"]).start().ready()
    try:
        tool = pathlib.Path(sys.executable).parent / "schemathesis"
        done = subprocess.run([tool, "run", f"http://127.0.0.1:{a.port}/openapi.json", "--checks", "not_a_server_error",
                               "--max-examples", str(EXAMPLES), "--workers", "1", "--generation-deterministic",
                               "--phases", PHASES[DAY % 3] if SHARE > 1 else ",".join(PHASES)],
                              capture_output=True, text=True, timeout=400, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-4000:]
        assert a.server()["ready"]
    finally:
        a.destroy()
