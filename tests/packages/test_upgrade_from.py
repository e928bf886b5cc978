"""Protects: a machine that runs released packages takes today's by one apt command: nobody is refused, and configuration, pins and the keys
of clients are as they were. OLD is a folder of the old packages (tools/old-debs.sh makes one), DEBS of the new ones; without OLD it
is skipped. One machine lives through all of it, in this order."""
import os
import pathlib

import pytest

import test_life
from test_life import ANSWER, PARTS, Load, booted, newer, ready, server, wait

OLD = pathlib.Path(os.environ.get("OLD", "/nowhere")).resolve()
KEY = "sk-of-the-team-0123456789"
ASK = f"{ANSWER} -H 'Authorization: Bearer {KEY}'"
DAEMON = """servers:
  tiny:
    mode: advise
    poll_s: 0.5
    window_s: 20
    limits: {max_num_running_seqs: {min: 2, max: 16}}
"""
SERVER = """model: /usr/share/evenkeel/models/evenkeel-tiny
served-model-name: evenkeel-tiny
port: 8000
max-num-seqs: 16
watermark: 0.02
node-rank: 0
"""


@pytest.fixture(scope="module")
def m():
    if not list(OLD.glob("evenkeeld_*.deb")):
        pytest.skip("OLD names no folder of old packages (make check-upgrade)")
    assert list(test_life.DEBS.glob("evenkeeld_*.deb")), f"no packages in {test_life.DEBS}: make deb"
    with booted(debs=test_life.DEBS, old=OLD) as machine:
        yield machine


def test_the_old_one_serves(m):
    m.run("apt-get install -y --no-install-recommends " + " ".join(f"/root/old/{p.name}" for n in [*PARTS, "evenkeel-model-tiny"] for p in OLD.glob(f"{n}_*.deb")), timeout=300)
    (m.root / "etc/evenkeel/servers/tiny.yaml").write_text(SERVER)
    with open(m.root / "etc/evenkeel/evenkeeld.yaml", "a") as f:
        f.write(DAEMON)
    m.run(f"install -d -m 0700 /etc/credstore && (umask 077; echo 'team {KEY}' >/etc/credstore/evenkeel.api-keys) && systemctl restart evenkeeld")
    assert ready(m, 40)["mode"] == "advise"
    assert "text" in m.run(ASK).stdout
    m.run("evenkeelctl limits pin max_num_running_seqs=5 --reason 'before the upgrade'")
    assert "5" in m.run("evenkeelctl limits get").stdout


def test_upgrade(m):
    newer(m, "0.1.0+new1")
    before, main, mine = ready(m)["pid"], m.show("evenkeeld", "MainPID"), m.run("cat /etc/evenkeel/evenkeeld.yaml").stdout
    explained = m.run("evenkeelctl explain").stdout
    assert "before the upgrade" in explained, explained
    load = Load(m, 4, 15, key=KEY)
    m.run("apt-get install -y --no-install-recommends -o Dpkg::Options::=--force-confold /root/new/*.deb", timeout=300)  # "keep mine"
    wait("the server is the new one", lambda: server(m).get("ready") and server(m)["pid"] != before, 60)
    counts = load.counts()
    print(f"\nupgrade under load: {counts}")
    assert counts["ok"] > 0 and not any(counts[k] for k in ("refused", "errors_5xx", "broken", "other")), counts
    assert m.show("evenkeeld", "MainPID") != main and m.show("evenkeeld", "ActiveState") == "active"
    assert "0.1.0+new1" in m.run("dpkg-query -W evenkeeld").stdout
    assert m.run("cat /etc/evenkeel/evenkeeld.yaml").stdout == mine and (m.root / "etc/evenkeel/servers/tiny.yaml").read_text() == SERVER


def test_what_was_said_holds(m):
    assert ready(m)["mode"] == "advise"
    assert "text" in m.run(ASK).stdout
    assert "401" in m.run(ANSWER.replace("-sf", "-s -o /dev/null -w '%{http_code}'")).stdout
    limit = server(m)["limits"]["max_num_running_seqs"]
    assert limit["value"] == 5 and limit["pinned"] is True, limit
    assert "before the upgrade" in m.journal(), "0.1.0 kept its decisions there alone"
    m.run("test ! -e /var/lib/evenkeel/state.json.bad && ls /var/lib/evenkeel/state.json")
    assert "--node-rank is accepted and ignored" in m.journal()


def test_restarts_with_it(m):
    pid = server(m)["pid"]
    m.run("evenkeelctl restart --wait", timeout=120)
    assert ready(m)["pid"] != pid and server(m)["limits"]["max_num_running_seqs"]["value"] == 5
    assert "text" in m.run(ASK).stdout
    assert not m.run("systemctl --failed --no-legend").stdout
