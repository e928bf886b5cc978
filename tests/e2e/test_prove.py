"""Protects: what would be started next is asked in processes of its own; a client that asks for something else meanwhile is told, each
request is done once, and evenkeeld lives."""
import os
import subprocess
import time

import pytest

from conftest import BUILD, Appliance, wait_for

SLOW = f"""#!/bin/sh
case " $* " in *" --dry-run "*) echo $$ >> "$ASKED"; sleep 1; [ "$(wc -l < "$ASKED")" != "$REFUSE" ] || {{ echo "evenkeel-server error: its model is away" >&2; exit 78; }};; esac
exec {BUILD}/evenkeel-server "$@"
"""


@pytest.fixture
def slow(tmp_path, monkeypatch, request):
    """One server whose dry run takes a second, and the file with a line for each."""
    asked, program = tmp_path / "asked", tmp_path / "bin/evenkeel-server"
    monkeypatch.setenv("ASKED", str(asked))
    monkeypatch.setenv("REFUSE", "2" if "refused" in request.node.name else "0")
    program.parent.mkdir()
    program.write_text(SLOW)
    program.chmod(0o755)
    a = Appliance(tmp_path)
    a.config.write_text(a.config.read_text().replace(f"{BUILD}/evenkeel-server", str(program)))
    yield a.start().ready(), asked
    a.destroy()


def begin(a, *words):
    return subprocess.Popen([BUILD / "evenkeelctl", "--socket", a.run / "evenkeeld.sock", *words], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def count(asked):
    return len(asked.read_text().splitlines()) if asked.exists() else 0


def test_another_request_while_the_next_start_is_asked(slow):
    """A restart and then a roll: the answer to the first was sent from inside the second, which was done twice, with two questions; the
    end of the second of these ended evenkeeld."""
    a, asked = slow
    pid = a.server()["pid"]
    first = begin(a, "restart")
    wait_for("asked", lambda: count(asked) == 1)
    second = begin(a, "roll")
    out, err = first.communicate(timeout=60)
    assert first.returncode == 1 and "something else happened to it meanwhile" in err, (out, err)
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, (out, err)
    wait_for("restarted in its turn", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid))
    assert a.process.poll() is None
    said = [d["why"] for d in a.decisions()]
    assert sum("restart in its turn, which is now" in w for w in said) == 1, said
    assert count(asked) == 3  # the restart's, the roll's, and before the roll's turn once more


def test_a_restart_while_a_roll_is_asked(slow):
    """The other order, in which chaos saw it first: the second of two dry runs ended evenkeeld some milliseconds after the next server's begin."""
    a, asked = slow
    pid = a.server()["pid"]
    first = begin(a, "roll")
    wait_for("asked", lambda: count(asked) == 1)
    second = begin(a, "restart")
    out, err = first.communicate(timeout=60)
    assert first.returncode == 1 and "something else happened to it meanwhile" in err, (out, err)
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, (out, err)
    wait_for("restarted", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid))
    assert a.process.poll() is None and count(asked) == 2
    assert sum(d["why"].startswith("Operator") for d in a.decisions()) == 1, a.decisions()


def test_many_requests_while_the_next_start_is_asked(slow):
    """Each is answered once, the last one is done, and no process is left behind."""
    a, asked = slow
    pid = a.server()["pid"]
    requests = []
    for i in range(12):
        requests.append(begin(a, "restart" if i % 2 else "roll"))
        time.sleep(0.03)
    done = [(p.communicate(timeout=60), p.returncode) for p in requests]
    assert a.process.poll() is None and [rc for _, rc in done].count(0) >= 1, done
    assert all(rc == 0 or "meanwhile" in said[1] or "is draining" in said[1] or "is starting" in said[1] for said, rc in done), done
    wait_for("restarted", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid))
    wait_for("all are ended", lambda: not [p for p in asked.read_text().split() if os.path.exists(f"/proc/{p}")])


def test_a_roll_that_is_refused_later(slow):
    """When its turn comes the next start is asked again; --wait went on until its time was over."""
    a, asked = slow
    pid = a.server()["pid"]
    waits = begin(a, "rolling-restart", "--wait", "--timeout", "60")
    out, err = waits.communicate(timeout=60)
    assert waits.returncode == 1 and "its next start would fail: its model is away" in err, (out, err)
    assert count(asked) == 2 and a.server()["pid"] == pid and a.server()["ready"]
    assert "its model is away" in a.server()["restart_refused"] and "restart_waits" not in a.server()
    a.ctl("restart", "--wait")
    assert a.server()["pid"] != pid and "restart_refused" not in a.server()
