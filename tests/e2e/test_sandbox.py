"""Protects: a server opens no file but those that it was given, and once it serves it starts no program; what it needs goes on working: links as
in Hugging Face's cache, keys and certificates that are replaced, an end with exit.json."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess

import pytest

from bare import Bare
from conftest import MODEL, ROOT, metric, wait_for

COMPLETE = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 4})


def parts(s):
    page = s.metrics()
    return {p: metric(page, "evenkeel_sandbox", part=p) for p in ("files", "calls")}


def landlock():
    import ctypes
    return ctypes.CDLL(None).syscall(444, None, 0, 1) > 0


needs_landlock = pytest.mark.skipif(not landlock(), reason="this kernel has no Landlock")


@needs_landlock
def test_all_threads_have_given_rights_away(tmp_path):
    s = Bare(tmp_path)
    try:
        assert parts(s) == {"files": 1, "calls": 1} and re.search("Sandbox: files by Landlock [1-9]", s.log())
        assert s.ask("/v1/completions", "POST", COMPLETE)[0] == 200
        for task in pathlib.Path(f"/proc/{s.process.pid}/task").iterdir():
            status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
            assert status["Seccomp"].strip() == "2" and status["NoNewPrivs"].strip() == "1", task
    finally:
        assert s.stop() == 0
    assert json.loads((tmp_path / "exit.json").read_text())["code"] == 0


@needs_landlock
def test_a_file_elsewhere_cannot_be_opened(tmp_path):
    """The reload of keys opens a path again: a link to a file outside is refused by the kernel, a file renamed into the folder is not."""
    keys, elsewhere = tmp_path / "keys", tmp_path / "elsewhere"
    keys.mkdir()
    elsewhere.mkdir()
    (elsewhere / "others").write_text("other sk-other\n")
    (keys / "k").write_text("one sk-one\n")
    s = Bare(tmp_path_of(tmp_path, "run"), "--api-key-file", keys / "k")
    try:
        (keys / "k").unlink()
        (keys / "k").symlink_to(elsewhere / "others")
        s.process.send_signal(signal.SIGHUP)
        wait_for("refused", lambda: "nothing was changed" in s.log())
        assert "Permission denied" in s.log()
        assert s.ask("/v1/models", headers={"Authorization": "Bearer sk-one"})[0] == 200
        (keys / "new").write_text("two sk-two\n")
        os.rename(keys / "new", keys / "k")
        s.process.send_signal(signal.SIGHUP)
        wait_for("taken", lambda: s.ask("/v1/models", headers={"Authorization": "Bearer sk-two"})[0] == 200)
    finally:
        assert s.stop() == 0


def tmp_path_of(tmp_path, name):
    (tmp_path / name).mkdir()
    return tmp_path / name


@pytest.mark.parametrize("flags", [(), ("--engine-process",)])
def test_only_a_child_opens_what_is_parsed(tmp_path, flags):
    """Neither the server nor an engine's process does: they read what the child has handed back, and map the weights."""
    library = tmp_path / "opened.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, ROOT / "tests/e2e/opened.c"], check=True)
    s = Bare(tmp_path, *flags, env={"LD_PRELOAD": str(library), "PATH": os.environ["PATH"], "ASAN_OPTIONS": "verify_asan_link_order=0"})
    try:
        if "Sandbox: off" in s.log():
            pytest.skip("a build with sanitizers has no child")
        assert s.ask("/v1/completions", "POST", COMPLETE)[0] == 200
        opened = {}
        for pid, name in re.findall(r"^opened (\d+) (\S+)$", s.log(), re.M):
            opened.setdefault(int(pid), set()).add(name)
        parsed = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
        child = [pid for pid, names in opened.items() if names & parsed]
        assert len(child) == 1 and child[0] != s.process.pid and opened[child[0]] == parsed | {"model.safetensors"}, opened
        assert opened[s.process.pid] == {"model.safetensors"} and len(opened) == 2 + len(flags), opened
    finally:
        s.stop()


@needs_landlock
def test_a_model_of_links(tmp_path):
    """As Hugging Face's cache has it: each file is a link into another directory."""
    blobs, snapshot = tmp_path_of(tmp_path, "blobs"), tmp_path_of(tmp_path, "snapshot")
    for f in pathlib.Path(MODEL).iterdir():
        (blobs / f"blob-{f.name}").write_bytes(f.read_bytes())
        (snapshot / f.name).symlink_to(blobs / f"blob-{f.name}")
    s = Bare(tmp_path_of(tmp_path, "run"), model=snapshot)
    try:
        assert parts(s) == {"files": 1, "calls": 1}
        assert s.ask("/v1/completions", "POST", COMPLETE)[0] == 200
    finally:
        assert s.stop() == 0


USER, OTHER = 61234, 61235  # of nobody


@pytest.mark.skipif(os.geteuid() != 0, reason="only root asks as somebody else")
def test_the_control_socket_is_for_the_user_that_started_it(tmp_path):
    """A unit with a user of its own: evenkeeld names its own uid. In front of it is the directory; here it is open to all."""
    def asks(uid):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(Exception):
                os.setgroups([])
                os.setgid(USER)
                os.setuid(uid)
                os._exit(b"max_num_running_seqs" not in s.local("/v1/runtime_config")[2])
            os._exit(1)
        return os.waitpid(child, 0)[1] == 0
    for folder in (tmp_path, *(p for p in tmp_path.parents if p.name.startswith(("pytest-", "popen-")))):
        folder.chmod(0o755)
    for named, mode, good in ((None, 0o600, []), (USER, 0o666, [USER])):
        s = Bare(tmp_path_of(tmp_path, str(named)), env={"EVENKEEL_CONTROL_UID": str(named)} if named else {})
        try:
            (tmp_path / str(named)).chmod(0o755)
            assert s.control.stat().st_mode & 0o777 == mode
            assert [uid for uid in (USER, OTHER) if asks(uid)] == good
        finally:
            assert s.stop() == 0
        ring, end = (s.run / name for name in ("control.sock.ring", "exit.json"))
        assert ring.stat().st_mode & 0o777 == (0o644 if named else 0o600) and end.stat().st_mode & 0o777 == 0o644


def test_off(tmp_path):
    s = Bare(tmp_path, "--no-sandbox")
    try:
        assert parts(s) == {"files": 0, "calls": 0} and "Sandbox: off" in s.log()
        assert "Seccomp:\t0" in open(f"/proc/{s.process.pid}/status").read() or os.environ.get("SECCOMP_OUTSIDE")
    finally:
        assert s.stop() == 0
