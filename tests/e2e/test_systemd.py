"""Protects: servers that systemd starts. evenkeeld talks to a fake systemd on a private bus (fake_systemd.py); the real one, with its
permissions, is in tests/packages."""
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from conftest import BUILD, free_port, wait_for
from test_supervisor import FAKE, Fakes

HERE = pathlib.Path(__file__).parent


class Systemd:
    def __init__(self, folder):
        self.folder, self.process = folder, None
        folder.mkdir()

    def start(self):
        self.process = subprocess.Popen([sys.executable, HERE / "fake_systemd.py", self.folder], stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("unix:")
        return self

    def units(self, **units):
        (self.folder / "units.json").write_text(json.dumps(units))

    def calls(self):
        log = self.folder / "calls.log"
        return log.read_text().splitlines() if log.exists() else []

    def end(self):
        if self.process:
            self.process.terminate()
            self.process.wait(60)
        self.process = None


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    s = Systemd(tmp_path / "systemd")
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={s.folder}/bus")
    yield s
    s.end()


@pytest.fixture
def run(tmp_path, systemd):
    """A function that starts evenkeeld with servers NAME=(flags, lines), each a unit evenkeel-managed@NAME.service."""
    made = []

    def make(restart="no", start=True, units=None, **servers):
        f = Fakes(tmp_path, {n: (None, f"    launcher: systemd\n    port: {free_port(27000 + 7 * i)}\n    args: {json.dumps(flags)}\n{more}")
                             for i, (n, (flags, more)) in enumerate(servers.items())})
        systemd.units(**({f"evenkeel-managed@{n}.service": {"command": [str(FAKE)], "env_file": f"{tmp_path}/r/.units/{n}.env", "restart": restart}
                          for n in servers} if units is None else units))
        if start:
            systemd.start()
        made.append(f)
        return f.start()

    yield make
    for f in made:
        f.end()


def test_starts_by_systemd_and_knows_how_it_ended(run, systemd):
    f = run(a=(["--load", "2", "--model", "with space and 'quote'"], "    env: {FOO: \"a $b\"}\n")).ready()
    pid = f.all()["a"]["pid"]
    assert f"--model\0with space and 'quote'\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    assert "FOO=a $b\0" in pathlib.Path(f"/proc/{pid}/environ").read_text()
    assert f.reasons("a")[:2] == ["READY", "STARTED"]
    os.kill(pid, signal.SIGSEGV)
    wait_for("another process", lambda: f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"], 60)
    assert "Signal 11" in f.decisions("a", "CRASH")[0]["why"]
    assert [c.split()[0] for c in systemd.calls()].count("StartUnit") == 2


def test_what_systemd_reads_is_apart_from_what_servers_write(run, systemd, tmp_path):
    """PID 1 reads that file as root: not from a directory of the server's, and never through a link that it left."""
    secret = tmp_path / "secret"
    secret.write_text("SECRET=1\n")
    (tmp_path / "r" / "a").mkdir(parents=True, exist_ok=True)
    for name in ("unit.env", "unit.env.new"):
        (tmp_path / "r" / "a" / name).symlink_to(secret)
    run(a=(["--load", "2"], "")).ready()
    assert secret.read_text() == "SECRET=1\n"
    units = tmp_path / "r" / ".units"
    assert units.stat().st_mode & 0o777 == 0o700 and (units / "a.env").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "r" / "a" / "unit.env").is_symlink()
    unit = (pathlib.Path(__file__).parents[2] / "packaging/systemd/evenkeel-managed@.service.in").read_text()
    assert "EnvironmentFile=/run/evenkeel/.units/%i.env" in unit and "TemporaryFileSystem=/run/evenkeel:ro\nBindPaths=/run/evenkeel/%i\n" in unit
    # Where evenkeeld says that its prefixes go.
    assert "StateDirectory=evenkeel-managed/%i\nStateDirectoryMode=0700\n" in unit
    assert "--prefix-file /var/lib/evenkeel-managed/a/cache" in (units / "a.env").read_text()


def test_the_kernel_that_kills_for_memory_is_named(run, systemd):
    f = run(a=([], "")).ready()
    (systemd.folder / "oom").touch()
    os.kill(f.all()["a"]["pid"], signal.SIGKILL)
    assert "HOST_OOM" in wait_for("a crash", lambda: f.decisions("a", "CRASH"))[0]["why"]


def test_drain_stop_and_kill_go_through_the_unit(run, systemd):
    f = run(a=(["--load", "1"], ""), b=(["--load", "4"], "    hang_s: 2\n    drain_deadline_s: 1\n")).ready()
    pid = f.all()["a"]["pid"]
    assert f.ask("POST", "/api/v1/servers/a/restart")[0] == 202  # drains and exits by itself
    wait_for("another process", lambda: f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"], 60)
    hung = f.all()["b"]["pid"]
    os.kill(hung, signal.SIGUSR1)
    wait_for("hang seen", lambda: "HANG_NOPROGRESS" in f.reasons("b"), 60)
    wait_for("another process", lambda: f.all()["b"]["pid"] not in (0, hung) and f.all()["b"]["ready"], 60)
    assert any(c.startswith("KillUnit") and "9" in c for c in systemd.calls())
    pids = [s["pid"] for s in f.all().values()]
    f.process.terminate()
    f.process.wait(60)
    wait_for("both gone", lambda: not any(pathlib.Path(f"/proc/{p}").exists() for p in pids))


def test_the_next_evenkeeld_takes_it_over(run, systemd):
    f = run(a=(["--load", "2"], "")).ready()
    pid = f.all()["a"]["pid"]
    f.process.kill()
    f.process.wait()
    f.start().ready()
    assert f.all()["a"]["pid"] == pid and f.all()["a"]["adopted"] and "ADOPTED" in f.reasons("a")
    os.kill(pid, signal.SIGTERM)  # exit status 0 that nobody asked for: systemd still knows it
    wait_for("another process", lambda: f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"], 60)


def test_without_a_bus_it_holds_and_says_so(run, systemd):
    f = run(start=False, a=([], ""))
    said = wait_for("it is said", lambda: f.decisions("a", "NO_SYSTEMD"))[0]["why"]
    assert "D-Bus" in said and f.all()["a"]["state"] == "backoff"
    systemd.start()
    wait_for("ready", lambda: f.all()["a"]["ready"], 60)
    assert len(f.decisions("a", "NO_SYSTEMD")) == 1 and not f.decisions("a", "CRASH")
    pid = f.all()["a"]["pid"]
    systemd.end()  # the bus goes while it serves: nothing happens to it
    f.ready()
    assert f.all()["a"]["pid"] == pid


@pytest.mark.parametrize("restart, units, deny, says", [("on-failure", None, False, "Restart=on-failure"), ("no", {}, False, "no such unit"),
                                                        ("no", None, True, "Permission denied")])
def test_what_only_an_operator_can_mend_opens_the_breaker(run, systemd, restart, units, deny, says):
    if deny:
        (systemd.folder / "deny").touch()
    f = run(restart=restart, units=units, a=([], ""))
    wait_for("breaker", lambda: f.all()["a"]["state"] == "breaker_open")
    assert says in f.decisions("a", "CRASH")[0]["why"]
    assert [c.split()[0] for c in systemd.calls()].count("StartUnit") == (1 if deny else 0)


@pytest.mark.parametrize("keys, says", [("launcher: systemd, command: [x]", "leave out command"), ("model: m, unit: x.service", "needs launcher: systemd"),
                                        ("launcher: systemd, attach: 'http://127.0.0.1:1'", "leave out attach"),
                                        ("launcher: systemd, unit: x.socket", "no name of a .service"), ("launcher: systemd, unit: a/b.service", "no name of"),
                                        ("launcher: docker, model: m", "launcher")])
def test_what_the_configuration_may_say(tmp_path, keys, says):
    (tmp_path / "c.yaml").write_text(f"servers: {{a: {{{keys}}}}}\n")
    done = subprocess.run([BUILD / "evenkeeld", "--config", tmp_path / "c.yaml", "--check-config"], capture_output=True, text=True, timeout=60)
    assert done.returncode in (2, 78) and says in done.stderr, done
