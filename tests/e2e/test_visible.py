"""Protects: what people and Prometheus see: valid pages of metrics, the status page, the API."""
import json
import re
import shutil
import subprocess

import pytest

from conftest import BUILD, free_port, get, wait_for


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


def test_what_a_failure_says(tmp_path):
    """Each sentence once: the evidence, what was done with what to type, and what helps; on the page as in the API."""
    page = free_port(19464)
    daemon = subprocess.Popen([BUILD / "evenkeeld", "--model", tmp_path / "nothing", "--port", str(free_port(18000)), "--listen", f"127.0.0.1:{page}",
                               "--run-dir", tmp_path, "--state-dir", tmp_path / "state"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        failure = wait_for("it failed", lambda: json.loads(get(page, "/api/v1/servers/main/failures")[1])["failures"])[0]
        assert failure["class"] == "CONFIG" and failure["why"].count("there is no such file") == 1, failure
        assert re.fullmatch(r"not started again for \d+ (s|min), or until evenkeelctl -s main restart", failure["next"]), failure
        text = get(page, "/")[1].decode()
        assert f"<b>Done:</b> {failure['next']}.</p>" in text and 'data-reason="BREAKER_OPEN"' in text
        said = subprocess.run([BUILD / "evenkeelctl", "--socket", tmp_path / "evenkeeld.sock", "status"], capture_output=True, text=True, timeout=60).stdout
        assert said.splitlines()[1].split()[:6] == ["main", "evenkeel", "breaker_open", "act", "init", "-"], said
    finally:
        daemon.terminate()
        daemon.wait(60)
