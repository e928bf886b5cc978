"""Protects: a server with `user:` is another user than evenkeeld, has its own directory and nothing of evenkeeld's rights, and what it leaves there
leads evenkeeld nowhere. With launcher: systemd the unit must be what the configuration says."""
import json
import os
import pathlib
import pwd
import shutil
import socket
import subprocess
import tempfile

import pytest

from conftest import BUILD, Appliance, for_all, get, wait_for
from test_systemd import run, systemd  # noqa: F401

USER = "nobody"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as other users")


@pytest.fixture
def folder():
    """One that every user may pass through, unlike pytest's."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="evenkeel-user-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def a(folder):
    a = Appliance(folder, extra=f"    user: {USER}\n", **for_all(folder)).start()
    yield a
    a.destroy()


def status_of(pid):
    return dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)


def variables(pid):
    return dict(v.split("=", 1) for v in pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in v)


@needs_root
def test_it_runs_as_that_user(a, folder):
    a.ready()
    user, pid = pwd.getpwnam(USER), a.server()["pid"]
    said = status_of(pid)
    assert said["Uid"].split() == [str(user.pw_uid)] * 4 and said["Gid"].split() == [str(user.pw_gid)] * 4
    assert set(map(int, said["Groups"].split())) == set(os.getgrouplist(USER, user.pw_gid))
    assert int(said["CapEff"], 16) == int(said["CapPrm"], 16) == int(said["CapAmb"], 16) == 0
    assert variables(pid)["HOME"] == user.pw_dir and variables(pid)["USER"] == USER
    own = (folder / "s1").stat()
    assert (own.st_uid, own.st_mode & 0o777) == (user.pw_uid, 0o700)
    assert (folder / ".s1.pid").stat().st_uid == 0 and not (folder / "s1" / "pid").exists()
    status, body = get(a.port, "/v1/models")
    assert status == 200 and b"tiny" in body
    a.process.kill()  # evenkeeld's end is not its: the next one takes it over
    a.process.wait()
    a.start().ready()
    assert a.server()["pid"] == pid and a.server()["adopted"]
    a.ctl("restart")
    wait_for("it is restarted", lambda: (s := a.server())["ready"] and s["pid"] != pid, 60)
    assert a.stop() == 0
    assert json.loads((folder / "s1" / "exit.json").read_text())["code"] in (0, 77)
    assert (folder / "s1" / "exit.json").stat().st_uid == user.pw_uid


@needs_root
def test_a_link_that_it_leaves_leads_nowhere(a, folder):
    """Instead of its control socket: evenkeeld would tell another program of root's what it tells a server, and take it for the server."""
    a.ready()
    pid = a.server()["pid"]
    a.process.kill()
    a.process.wait()
    control = folder / "s1" / "control.sock"
    control.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(folder / "other.sock"))
        other.listen()
        other.settimeout(60)
        control.symlink_to(folder / "other.sock")
        a.start()
        came, _ = other.accept()  # it looked who answers
        came.settimeout(60)
        assert came.recv(100) == b""  # and left without a word
        came.close()
        wait_for("it is known by its process alone", lambda: a.server()["pid"] == pid)
        assert a.server()["state"] == "starting" and not a.server()["ready"]  # until its start deadline
    os.kill(pid, 9)
    wait_for("another one", lambda: (s := a.server())["ready"] and s["pid"] != pid, 60)
    assert not control.is_symlink()


@needs_root
def test_what_another_user_left_is_removed(folder):
    (folder / "s1").mkdir()
    (folder / "s1" / "control.sock.ring").write_text("of root")
    a = Appliance(folder, extra=f"    user: {USER}\n", **for_all(folder)).start()
    try:
        a.ready()
        assert {p.owner() for p in (folder / "s1").iterdir()} == {USER}
    finally:
        a.destroy()


@needs_root
def test_without_the_key_it_is_roots_again(folder):
    """Its directory too: nobody but that directory's owner is believed to be the server."""
    a = Appliance(folder, extra=f"    user: {USER}\n", **for_all(folder)).start()
    try:
        a.ready()
        assert a.stop() == 0 and (folder / "s1").owner() == USER
        (folder / "s1" / "control.sock").symlink_to(folder / "other.sock")
        a.config.write_text(a.config.read_text().replace(f"    user: {USER}\n", ""))
        a.start().ready()
        assert (folder / "s1").owner() == "root" and not (folder / "s1" / "control.sock").is_symlink()
        assert status_of(a.server()["pid"])["Uid"].split() == ["0"] * 4
    finally:
        a.destroy()


def check(folder, keys, before=(), build=BUILD):
    (folder / "c.yaml").write_text(f"run_dir: {folder}\nstate_dir: {folder}\nservers: {{a: {{port: 1, {keys}}}}}\n")
    return subprocess.run([*before, build / "evenkeeld", "--config", folder / "c.yaml", "--check-config"], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("keys, says", [
    ("command: [x], user: dynamic", "set launcher: systemd"),
    ("attach: 'http://127.0.0.1:1', user: nobody", "leave out user"),
    ("engine: vllm, launcher: systemd, user: no-such-user-here", "there is no user 'no-such-user-here'|useradd --system --no-create-home no-such-user-here"),
    ("command: [x], user: root", "name another user|only an evenkeeld that runs as root")])
def test_what_cannot_be_is_said(folder, keys, says):
    done = check(folder, keys)
    assert done.returncode in (2, 78) and any(s in done.stderr for s in says.split("|")), done


@needs_root
def test_without_the_right_to_it_is_refused(folder):
    build, as_user = for_all(folder)["build"], ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    for before, user in ((as_user, "daemon"), (["setpriv", "--bounding-set=-setuid"], USER)):
        done = check(folder, f"command: [x], user: {user}", before, build)
        assert done.returncode in (2, 78) and "only an evenkeeld that runs as root" in done.stderr, (before, done)


@pytest.mark.parametrize("user, unit, says", [(USER, {"user": USER}, None), (USER, {"user": "evenkeel"}, "it has User=evenkeel"),
                                              (USER, {"user": USER, "dynamic": True}, "DynamicUser=yes"), ("dynamic", {"dynamic": True}, None),
                                              ("dynamic", {}, "no DynamicUser=yes")])
def test_a_unit_is_what_the_configuration_says(run, systemd, tmp_path, user, unit, says):  # noqa: F811
    from test_supervisor import FAKE
    units = {"evenkeel-managed@a.service": {"command": [str(FAKE)], "env_file": f"{tmp_path}/r/.units/a.env", **unit}}
    f = run(a=(["--load", "2"], f"    engine: vllm\n    companion: off\n    user: {user}\n"), units=units)
    if says:
        said = wait_for("it is refused", lambda: [d for d in f.decisions_all("a") if says in d["why"]])
        assert "systemctl edit" in said[0]["why"] and not any(c.startswith("StartUnit") for c in systemd.calls())
    else:
        wait_for("it is started", lambda: any(c.startswith("StartUnit") for c in systemd.calls()))
