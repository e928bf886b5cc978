"""Protects: what people and Prometheus see: valid pages of metrics, the status page, the API."""
import shutil
import subprocess

import pytest

from conftest import get, wait_for


@pytest.mark.parametrize("which", ["port", "page"])
def test_metrics_pages_parse(shared, which):
    text = shared.metrics(getattr(shared, which))
    done = subprocess.run([shutil.which("promtool"), "check", "metrics"], input=text, capture_output=True, text=True)
    ours = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("evenkeel_") or "error" in line.lower()]
    assert not ours, ours
    assert len(text) < 256 * 1024


def test_status_page(shared):
    status, body = get(shared.page, "/")
    assert status == 200 and b"s1" in body and b"http://" not in body.split(b"</head>")[0]


def test_api(shared):
    assert shared.server()["ready"]
    wait_for("limits are read back", lambda: shared.server()["limits"]["max_num_running_seqs"]["value"] >= 1)
    history = shared.api("/api/v1/servers/s1/history")
    assert "kv_usage" in history["columns"]
    assert get(shared.page, "/api/v1/servers/none/decisions")[0] == 404
