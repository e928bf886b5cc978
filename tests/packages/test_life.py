"""Protects: what apt installs works as a service from the first start to the last file. One machine lives through all of it, in this order."""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import time

import pytest

from machine import Impossible, Machine

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEBS = pathlib.Path(os.environ.get("DEBS", ROOT / "build/deb"))
LOWER = os.environ.get("MACHINE_ROOT", "/")
PARTS = ["evenkeel", "evenkeel-server", "evenkeeld", "evenkeel-tools", "evenkeel-monitoring"]
ANSWER = "curl -sf --max-time 20 http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' " \
         "-d '{\"model\": \"evenkeel-tiny\", \"prompt\": \"Once\", \"max_tokens\": 4, \"temperature\": 0}'"


RUNNING = "curl -s http://127.0.0.1:8000/metrics | grep '^vllm:num_requests_running{'"


def debs(names, folder="/root/debs"):
    return " ".join(f"{folder}/{p.name}" for n in names for p in DEBS.glob(f"{n}_*.deb"))


def wait(what, condition, seconds=20.0):
    end, last = time.monotonic() + seconds, None
    while time.monotonic() < end:
        last = condition()
        if last:
            return last
        time.sleep(0.1)
    pytest.fail(f"{what}: not within {seconds} s (last: {last!r})")


@contextlib.contextmanager
def booted(**folders):
    """A machine that has booted, with each folder's packages below /root/NAME; the test is skipped where there can be none."""
    try:
        machine = Machine(LOWER)
    except Impossible as why:
        pytest.skip(str(why))
    try:
        try:
            machine.boot()
        except Impossible as why:
            pytest.skip(str(why))
        for name, folder in folders.items():
            shutil.copytree(folder, machine.root / "root" / name, ignore=lambda _, names: [n for n in names if not n.endswith(".deb")])
        yield machine
    finally:
        machine.destroy()


@pytest.fixture(scope="module")
def m():
    assert list(DEBS.glob("evenkeeld_*.deb")), f"no packages in {DEBS}: make deb"
    with booted(debs=DEBS) as machine:
        machine.before = files(machine)
        yield machine


def files(m):
    """What an installation could leave behind."""
    text = m.run("find /etc /usr /lib /var /run /opt /srv -xdev 2>/dev/null | grep -vE "
                 "'^/(var/(log|cache|tmp|lib/(dpkg|apt|systemd|private|prometheus))|run/(user|systemd|udev|log|dbus)|etc/(passwd|group|g?shadow|subg?uid)-?$|etc/.pwd.lock|usr/share/mime|var/lib/(man-db|PackageKit))'").stdout
    return set(text.splitlines())


def server(m, name="tiny"):
    said = m.run("evenkeelctl --json status", check=False)
    found = [s for s in json.loads(said.stdout)["servers"] if s["name"] == name] if said.returncode == 0 else []
    return found[0] if found else {}


def ready(m, seconds=20):
    return wait("tiny is ready", lambda: server(m).get("ready") and server(m), seconds)


class Load:
    """Clients in the machine's network; they need nothing of its files."""

    def __init__(self, m, clients, seconds, tokens=24, key=None):
        self.process = subprocess.Popen(["nsenter", "-t", str(m.leader), "-n", "python3", ROOT / "tests/packages/load.py", "8000", str(clients), str(seconds),
                                         str(tokens), *([key] if key else [])], stdout=subprocess.PIPE, text=True)
        time.sleep(0.5)

    def counts(self):
        return json.loads(self.process.communicate(timeout=120)[0])


def test_installs_and_says_what_to_do_next(m):
    m.run(f"apt-get install -y --no-install-recommends {debs(PARTS)}")
    assert m.show("evenkeeld", "ActiveState") == "active"
    assert m.show("evenkeeld", "User") == "evenkeel" and m.show("evenkeel.service", "ActiveState") == "active"
    assert "No server is configured" in m.show("evenkeeld", "StatusText")
    assert "/etc/evenkeel/servers" in m.run("evenkeelctl status").stdout
    assert "Nothing to serve yet" in m.run("curl -s http://127.0.0.1:9464/").stdout
    assert m.run("systemctl is-enabled evenkeeld").stdout.strip() == "enabled"
    assert not m.run("systemctl --failed --no-legend").stdout
    status = m.run(f"cat /proc/{m.show('evenkeeld', 'MainPID')}/status").stdout
    said = m.run("setpriv --reuid nobody --regid nogroup --clear-groups evenkeelctl status", check=False)
    assert said.returncode == 3 and "not open to this user" in said.stderr
    assert "CapEff:\t0000000000000000" in status and "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status


def test_serves_as_soon_as_a_model_is_there(m):
    m.run(f"apt-get install -y --no-install-recommends {debs(['evenkeel-model-tiny'])}")
    ready(m)
    assert "text" in m.run(ANSWER).stdout
    wait("the status says so", lambda: m.show("evenkeeld", "StatusText") == "1 of 1 servers ready")


def test_start_waits_until_the_model_answers(m):
    m.run("systemctl stop evenkeeld")
    begin = time.monotonic()
    m.run("systemctl start evenkeeld && " + ANSWER)
    took = time.monotonic() - begin
    print(f"\ncold start of the service to the first answer: {took:.2f} s")
    assert took < 10, took  # the goal of 1.5 s is measured on a quiet machine; the answer above is the test
    assert server(m)["ready"]


def test_reload_good_and_bad(m):
    pid = server(m)["pid"]
    m.run("printf 'servers:\\n  tiny:\\n    mode: advise\\n' >>/etc/evenkeel/evenkeeld.yaml && systemctl reload evenkeeld")
    assert server(m)["mode"] == "advise" and server(m)["pid"] == pid
    m.run("cp /etc/evenkeel/evenkeeld.yaml /root/good.yaml; echo 'lissten: x' >>/etc/evenkeel/evenkeeld.yaml")
    done = m.run("systemctl reload evenkeeld", check=False)
    assert done.returncode != 0
    assert "did you mean 'listen'" in m.journal()
    assert m.show("evenkeeld", "ActiveState") == "active" and server(m)["mode"] == "advise" and server(m)["pid"] == pid
    m.run("cp /root/good.yaml /etc/evenkeel/evenkeeld.yaml && systemctl reload evenkeeld")


def test_the_package_tests_of_debian(m):
    """What autopkgtest runs, in this machine."""
    shutil.copy(ROOT / "packaging/debian/tests/serves", m.root / "root/serves")
    m.run("sh -e /root/serves")


WEBHOOK = r"""
import http.server
class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print(self.rfile.read(int(self.headers["Content-Length"])).decode(), flush=True)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", 9999), Hook).handle_request()
"""


def test_prometheus_scrapes_and_an_alert_reaches_a_webhook(m):
    """The example configuration of evenkeel-monitoring with Debian's own Prometheus and Alertmanager, as units beside ours."""
    if m.run("command -v prometheus prometheus-alertmanager", check=False).returncode:
        pytest.skip("this root folder has no Prometheus and Alertmanager; the copy of the running system has")
    ready(m)
    (m.root / "root/webhook.py").write_text(WEBHOOK)
    m.run("cp -r /usr/share/evenkeel/alerts /mnt/ && sed -i 's/interval: [0-9]*s$/interval: 1s/; s|/usr/share/evenkeel|/mnt|' /mnt/alerts/*.yml && "
          "cp /mnt/alerts/prometheus.example.yml /etc/prometheus/prometheus.yml && printf "
          "'route: {receiver: hook, group_wait: 0s}\\nreceivers:\\n  - name: hook\\n    webhook_configs: [{url: \"http://127.0.0.1:9999/\"}]\\n' >/etc/prometheus/alertmanager.yml && "
          "rm -rf /var/lib/prometheus/metrics2 && install -d -o prometheus -g prometheus /var/lib/prometheus/metrics2 && "
          "echo 'ARGS=--cluster.listen-address=' >/etc/default/prometheus-alertmanager && systemctl start prometheus-alertmanager")
    hook = m.start("python3 /root/webhook.py")
    wait("Alertmanager is ready", lambda: m.run("curl -sf http://127.0.0.1:9093/-/ready", check=False).returncode == 0)
    # Prometheus finds its Alertmanager after 5 s, and an alert that found none is sent again after a minute by default.
    m.run("echo 'ARGS=--rules.alert.resend-delay=2s' >/etc/default/prometheus; systemctl start prometheus")

    def query(text):
        said = m.run(f"curl -s http://127.0.0.1:9090/api/v1/query --data-urlencode 'query={text}'", check=False).stdout
        return [r["value"][1] for r in json.loads(said)["data"]["result"]] if said.startswith("{") else []

    wait("both are scraped", lambda: query('up{job=~"evenkeel.*"}') == ["1", "1"], 30)
    assert query('evenkeel_supervisor_server_ready{server="tiny"}') == ["1"] and query("count(vllm:num_requests_running)") == ["1"]
    said = hook.communicate(timeout=60)[0]
    assert "EvenkeelDeadMan" in said and "runbook" in said, said
    m.run("systemctl stop prometheus prometheus-alertmanager")


def test_keys_come_as_a_credential(m):
    m.run("install -d -m 0700 /etc/credstore && (umask 077; echo 'team sk-of-the-team-0123456789' >/etc/credstore/evenkeel.api-keys) && systemctl restart evenkeeld")
    ready(m)
    assert "401" in m.run(ANSWER.replace("-sf", "-s -o /dev/null -w '%{http_code}'")).stdout
    assert "text" in m.run(ANSWER + " -H 'Authorization: Bearer sk-of-the-team-0123456789'").stdout
    assert "sk-of-the-team" not in m.run("cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; evenkeelctl --json status; journalctl -u evenkeeld",
                                         check=False).stdout
    m.run("rm -r /etc/credstore && systemctl restart evenkeeld && " + ANSWER)


def test_kill_of_evenkeeld_is_not_felt(m):
    pid, main = ready(m)["pid"], m.show("evenkeeld", "MainPID")
    load = Load(m, 4, 5)
    m.run(f"kill -KILL {main}")
    wait("systemd starts it again", lambda: m.show("evenkeeld", "MainPID") not in ("0", main) and m.show("evenkeeld", "ActiveState") == "active")
    ready(m)
    counts = load.counts()
    assert server(m)["pid"] == pid, "the server went on"
    assert counts["ok"] > 0 and not any(counts[k] for k in ("refused", "errors_5xx", "broken", "other")), counts
    assert m.show("evenkeeld", "NRestarts") == "1"


def test_hang_of_evenkeeld_is_ended_by_the_watchdog(m):
    m.run("mkdir -p /run/systemd/system/evenkeeld.service.d && printf '[Service]\\nWatchdogSec=2\\n' >/run/systemd/system/evenkeeld.service.d/test.conf && "
          "systemctl daemon-reload && systemctl kill --kill-whom=main -s USR1 evenkeeld")
    pid = ready(m)["pid"]
    main = wait("the next one is there", lambda: m.show("evenkeeld", "ActiveState") == "active" and m.show("evenkeeld", "MainPID"))
    time.sleep(2.5)  # it feeds the watchdog
    assert m.show("evenkeeld", "MainPID") == main
    m.run(f"kill -STOP {main}")
    wait("it is replaced", lambda: m.show("evenkeeld", "MainPID") not in ("0", main) and m.show("evenkeeld", "ActiveState") == "active", 15)
    assert ready(m)["pid"] == pid
    assert "watchdog" in m.journal().lower()
    m.run("rm /run/systemd/system/evenkeeld.service.d/test.conf && systemctl daemon-reload && systemctl kill --kill-whom=main -s USR1 evenkeeld")
    wait("the next one is there", lambda: m.show("evenkeeld", "ActiveState") == "active" and server(m).get("ready"))


def test_kill_of_the_server_refuses_nobody(m):
    pid = ready(m)["pid"]
    load = Load(m, 4, 6)
    m.run(f"kill -KILL {pid}")
    wait("it is started again", lambda: server(m).get("ready") and server(m)["pid"] != pid)
    counts = load.counts()
    assert counts["refused"] == 0 and counts["errors_5xx"] == 0 and counts["ok"] > 0, counts
    assert counts["broken"] + counts["other"] <= 4, counts  # what was running, one a client
    assert "CRASH" in m.run("evenkeelctl explain").stdout
    assert "A server ended by itself" in m.run("journalctl -x -u evenkeeld --no-pager").stdout


def test_memory_limit_ends_the_server_alone(m):
    pid, main = ready(m)["pid"], m.show("evenkeeld", "MainPID")
    m.run("printf 'model: /usr/share/evenkeel/models/evenkeel-tiny\\nserved-model-name: evenkeel-tiny\\nport: 8000\\nnum-gpu-blocks-override: 60000\\n"
          "max-num-seqs: 256\\nmax-model-len: 2048\\n' >/etc/evenkeel/servers/tiny.yaml && systemctl reload evenkeeld && evenkeelctl restart")
    wait("it has the new flags", lambda: server(m).get("ready") and server(m)["pid"] != pid, 30)
    pid = server(m)["pid"]
    used = int(next(line.split()[1] for line in m.run(f"cat /proc/{pid}/status").stdout.splitlines() if line.startswith("VmRSS"))) * 1024
    m.run(f"systemctl set-property --runtime evenkeeld MemoryMax={used + 24 * 2**20}")
    load = Load(m, 64, 4, 500)
    wait("the kernel ended the server", lambda: server(m).get("pid") not in (None, pid), 30)
    m.run("systemctl set-property --runtime evenkeeld MemoryMax=infinity")
    load.counts()
    assert m.show("evenkeeld", "MainPID") == main and m.show("evenkeeld", "ActiveState") == "active"
    said = m.run("evenkeelctl explain").stdout
    print("\n" + "\n".join(said.splitlines()[-9:]))
    assert "OOM" in said.split("): restart")[-1], said
    m.run("rm /etc/evenkeel/servers/tiny.yaml && systemctl reload evenkeeld")
    ready(m, 40)


def test_stop_drains_open_streams(m):
    m.run("evenkeelctl restart")
    time.sleep(1)
    ready(m, 30)
    streams = Load(m, 32, 0.1, 1500)  # one request a client, a second for all
    wait("all run", lambda: float(m.run(RUNNING).stdout.split()[-1]) == 32)  # one that came later would be refused, as it should
    m.run("systemctl stop evenkeeld")
    counts = streams.counts()
    assert counts["ok"] == 32 and not counts["broken"] and not counts["refused"], counts
    assert m.show("evenkeeld", "ActiveState") == "inactive" and m.show("evenkeeld", "Result") == "success"
    assert m.run("pgrep evenkeel", check=False).returncode == 1
    m.run("test ! -e /run/evenkeel")
    m.run("systemctl start evenkeeld && " + ANSWER)


def newer(m, version):
    """The same packages under a higher version."""
    m.run(f"""mkdir -p /root/new && cd /root && for d in debs/*.deb; do case $d in *dbgsym*) continue;; esac
        rm -rf x && dpkg-deb -R $d x && old=$(sed -n 's/^Version: //p' x/DEBIAN/control) && sed -i "s/$old/{version}/g" x/DEBIAN/control &&
        n=$(basename $d) && dpkg-deb -Zgzip -z1 -b x new/$(echo $n | sed "s/_$old"_/_{version}_/) >/dev/null || exit 1; done""", timeout=300)


def test_upgrade_under_load_refuses_nobody_and_keeps_conffiles(m):
    newer(m, "0.1.0+test1")
    before, main = ready(m)["pid"], m.show("evenkeeld", "MainPID")
    mine = m.run("cat /etc/evenkeel/evenkeeld.yaml").stdout
    assert "mode: advise" in mine
    load = Load(m, 8, 12)
    m.run("apt-get install -y --no-install-recommends /root/new/*.deb")
    wait("the server is the new one", lambda: server(m).get("ready") and server(m)["pid"] != before, 30)
    counts = load.counts()
    print(f"\nupgrade under load: {counts}")
    assert counts["ok"] > 0 and not any(counts[k] for k in ("refused", "errors_5xx", "broken", "other")), counts
    assert m.show("evenkeeld", "MainPID") != main
    assert m.run("cat /etc/evenkeel/evenkeeld.yaml").stdout == mine
    assert "0.1.0+test1" in m.run("dpkg-query -W evenkeeld").stdout


def test_downgrade(m):
    m.run(f"apt-get install -y --no-install-recommends --allow-downgrades {debs(PARTS + ['evenkeel-model-tiny'])}")
    ready(m, 30)
    assert "text" in m.run(ANSWER).stdout


def test_gpus_are_asked_by_a_unit_of_its_own(m):
    """Only it may open devices; a sick one blocks nothing else. The NVIDIA library is the fake of tests/e2e."""
    subprocess.run(["cc", "-shared", "-fPIC", "-o", m.root / "usr/lib/libnvidia-ml.so.1", ROOT / "tests/e2e/fake_nvml.c"], check=True)
    m.run("echo '81920 2048 4242 1024' >/etc/fake-nvml; mkdir -p /run/systemd/system/evenkeel-nvml.service.d && "
          "printf '[Service]\\nEnvironment=FAKE_NVML=/etc/fake-nvml\\nWatchdogSec=2\\n' >/run/systemd/system/evenkeel-nvml.service.d/test.conf && "
          "cp /etc/evenkeel/evenkeeld.yaml /root/good.yaml && sed -i '1i memory_every_s: 1' /etc/evenkeel/evenkeeld.yaml && systemctl daemon-reload && systemctl restart evenkeeld")
    used = "curl -s http://127.0.0.1:9464/metrics | grep '^evenkeel_supervisor_device_memory_bytes{.*used'"
    wait("the figures are there", lambda: m.run(used, check=False).stdout.endswith(f" {2048 << 20}\n"))
    assert m.show("evenkeeld", "PrivateDevices") == "yes" and m.show("evenkeel-nvml", "ActiveState") == "active"
    assert m.run("stat -c '%U %a' /run/evenkeel-nvml.sock").stdout.split() == ["evenkeel", "600"]
    pid, helper = ready(m)["pid"], m.show("evenkeel-nvml", "MainPID")
    m.run("echo hang >/etc/fake-nvml")
    wait("its watchdog ends it", lambda: "watchdog" in m.journal("evenkeel-nvml").lower())
    wait("the next question starts it", lambda: m.show("evenkeel-nvml", "MainPID") not in ("0", helper))
    m.run("echo '81920 3072 0 0' >/etc/fake-nvml")
    wait("it answers again", lambda: m.run(used, check=False).stdout.endswith(f" {3072 << 20}\n"))
    assert server(m)["pid"] == pid and "text" in m.run(ANSWER).stdout
    m.run("rm -r /usr/lib/libnvidia-ml.so.1 /etc/fake-nvml /run/systemd/system/evenkeel-nvml.service.d; cp /root/good.yaml /etc/evenkeel/evenkeeld.yaml; "
          "systemctl daemon-reload; systemctl restart evenkeeld")
    wait("without the library it ends", lambda: m.show("evenkeel-nvml", "ActiveState") == "inactive")
    ready(m)


def test_a_start_that_fails_explains_itself(m):
    m.run("systemctl stop evenkeeld && cp /etc/evenkeel/evenkeeld.yaml /root/good.yaml && echo 'lissten: x' >>/etc/evenkeel/evenkeeld.yaml")
    assert m.run("systemctl start evenkeeld", check=False).returncode != 0
    said = m.run("systemctl status evenkeeld", check=False).stdout
    assert "did you mean 'listen'" in said and m.show("evenkeeld", "NRestarts") == "0", said
    m.run("cp /root/good.yaml /etc/evenkeel/evenkeeld.yaml && systemctl reset-failed evenkeeld && systemctl start evenkeeld")
    m.run("printf 'model: /nowhere\\nport: 8100\\n' >/etc/evenkeel/servers/lost.yaml && systemctl restart evenkeeld")
    wait("the status names the server", lambda: "lost is" in m.show("evenkeeld", "StatusText"))
    assert "no such file in /nowhere" in m.run("evenkeelctl status").stdout
    assert "/nowhere" in m.show("evenkeeld", "StatusText")
    assert "text" in m.run(ANSWER).stdout, "the other one serves"
    m.run("rm /etc/evenkeel/servers/lost.yaml && systemctl reload evenkeeld")


def test_comes_back_after_a_reboot(m):
    m.power_off()
    m.boot()
    wait("evenkeeld is there", lambda: m.show("evenkeeld", "ActiveState") == "active")
    ready(m, 30)
    assert "text" in m.run(ANSWER).stdout
    assert "mode: advise" in m.run("cat /etc/evenkeel/evenkeeld.yaml").stdout and server(m)["mode"] == "advise"


def test_a_server_without_evenkeeld(m):
    m.run("systemctl stop evenkeeld; cp /usr/share/evenkeel/servers/tiny.yaml /etc/evenkeel/servers/tiny.yaml")
    m.run("systemctl start evenkeel-server@tiny && " + ANSWER)
    assert "Serving" in m.show("evenkeel-server@tiny", "StatusText")
    pid = m.show("evenkeel-server@tiny", "MainPID")
    m.run(f"kill -KILL {pid}")
    wait("systemd starts it again", lambda: m.show("evenkeel-server@tiny", "MainPID") not in ("0", pid) and m.show("evenkeel-server@tiny", "ActiveState") == "active")
    assert m.run("ls /var/lib/evenkeel-server/tiny/cpu-forms.*").stdout.count("\n") == 1, "what it measured is there at each start"
    m.run("systemctl start evenkeeld")
    assert m.show("evenkeel-server@tiny", "ActiveState") in ("inactive", "deactivating"), "one or the other"
    ready(m)
    m.run("systemctl stop evenkeel-server@tiny; rm /etc/evenkeel/servers/tiny.yaml; systemctl reload evenkeeld")


def test_a_server_in_a_unit_of_its_own(m):
    """launcher: systemd, with the polkit rule that lets evenkeeld have its own units and nothing else."""
    m.run("systemctl stop evenkeeld; rm -f /var/lib/evenkeel/state.json")  # what the tests before killed counts for the breaker
    m.run("echo '    launcher: systemd' >>/etc/evenkeel/evenkeeld.yaml; install -d -m 0700 /etc/credstore")
    m.run("(umask 077; echo 'team sk-of-a-unit-0123456789' >/etc/credstore/evenkeel.api-keys); systemctl start evenkeeld")
    pid = str(ready(m)["pid"])
    inside = f"nsenter -t {pid} -m"
    assert m.run(f"{inside} ls -A /run/evenkeel").stdout.split() == ["tiny"], "no sibling, and not what evenkeeld hands over"
    assert m.run("cat /run/evenkeel/.units/tiny.env").stdout.startswith("EVENKEEL_ARGS=")
    uid, group = m.run(f"stat -c '%u %G' /proc/{pid}/task").stdout.split()  # its name is known where libnss-systemd is
    assert 61184 <= int(uid) <= 65519 and group == "evenkeel" and m.show("evenkeeld", "User") == "evenkeel"
    control = "-s --max-time 5 --unix-socket /run/evenkeel/tiny/control.sock http://x/v1/runtime_config"
    assert "max_num" in m.run(f"setpriv --reuid evenkeel --regid evenkeel --clear-groups curl {control}").stdout
    assert m.run(f"setpriv --reuid nobody --regid evenkeel --clear-groups curl {control}", check=False).returncode == 7, "not the group"
    assert "Read-only" in m.run(f"{inside} mkdir /sys/fs/cgroup/x /sys/fs/cgroup/evenkeel.slice/x", check=False).stderr
    assert m.run(ANSWER, check=False).returncode != 0 and "text" in m.run(f"{ANSWER} -H 'Authorization: Bearer sk-of-a-unit-0123456789'").stdout
    m.run("rm -r /etc/credstore; systemctl restart evenkeeld")
    pid = str(ready(m)["pid"])
    assert m.show("evenkeel-managed@tiny", "MainPID") == pid and "evenkeel-managed@tiny" in m.run(f"cat /proc/{pid}/cgroup").stdout
    assert "text" in m.run(ANSWER).stdout
    main, load = m.show("evenkeeld", "MainPID"), Load(m, 4, 5)
    m.run(f"kill -KILL {main}")
    wait("systemd starts evenkeeld again", lambda: m.show("evenkeeld", "MainPID") not in ("0", main) and server(m).get("adopted"))
    counts = load.counts()
    assert str(server(m)["pid"]) == pid and counts["ok"] > 0 and not any(counts[k] for k in ("refused", "errors_5xx", "broken", "other")), counts
    begin = time.monotonic()
    m.run(f"kill -KILL {pid}")
    wait("evenkeeld starts it again", lambda: server(m).get("ready") and str(server(m)["pid"]) != pid)
    print(f"\nkilled unit serves again after {time.monotonic() - begin:.2f} s")
    assert "Signal 9" in m.journal() and m.show("evenkeel-managed@tiny", "NRestarts") == "0"
    as_user = "setpriv --reuid evenkeel --regid evenkeel --clear-groups systemctl --no-ask-password"
    assert m.run("stat -L -c %a /run/evenkeel/.units").stdout.strip() == "700"
    for verb in ("stop systemd-journald", "start systemd-networkd", "restart evenkeel-managed@tiny", "kill evenkeeld"):
        assert m.run(f"{as_user} {verb}", check=False).returncode != 0, verb
    assert m.run(f"{as_user} stop evenkeel-managed@tiny", check=False).returncode == 0
    m.run("systemctl stop evenkeeld; cp /root/good.yaml /etc/evenkeel/evenkeeld.yaml; systemctl start evenkeeld")
    ready(m)
    assert m.show("evenkeel-managed@tiny", "ActiveState") in ("inactive", "failed")


def test_who_has_the_port_is_told_without_rights(m):
    """Of a process that evenkeeld may not look into, by the control group of its socket."""
    m.run("systemctl stop evenkeeld; rm -f /var/lib/evenkeel/state.json")
    m.run("systemd-run --unit=port-holder -p DynamicUser=yes python3 -m http.server 8000 --bind 127.0.0.1")
    wait("it listens", lambda: m.run("curl -s http://127.0.0.1:8000/", check=False).returncode == 0)
    m.run("systemctl start --no-block evenkeeld")
    wait("the holder is named", lambda: "is taken by port-holder.service" in m.journal())
    m.run("systemctl stop port-holder")
    ready(m)


def test_a_unit_of_another_user(m):
    """The lines of docs/security.md: an evenkeeld that is root with five rights, a server that is somebody else."""
    text = (ROOT / "docs/security.md").read_text()
    lines = text[text.index("```ini"):].split("```")[1].split("# systemctl edit ")
    server_lines, evenkeeld_lines = ("[Service]" + part.split("[Service]")[1] for part in lines[1:])
    m.run("systemctl stop evenkeeld; rm -f /var/lib/evenkeel/state.json; useradd --system --no-create-home ek-main")
    m.run("printf '    launcher: systemd\n    user: ek-main\n' >>/etc/evenkeel/evenkeeld.yaml")
    assert m.run("systemctl start evenkeeld", check=False).returncode != 0 and "run evenkeeld as root, or leave out user" in m.journal()
    edits = {"evenkeeld.service": evenkeeld_lines, "evenkeel-managed@tiny.service": server_lines}
    for unit, said in edits.items():
        m.run(f"mkdir -p /etc/systemd/system/{unit}.d && cat >/etc/systemd/system/{unit}.d/user.conf", input=said)
    m.run("systemctl daemon-reload; systemctl reset-failed evenkeeld; systemctl start evenkeeld")
    pid = str(ready(m)["pid"])
    assert m.run(f"stat -c %U /proc/{pid}/task /run/evenkeel/tiny; ps -o user= -p {pid}").stdout.split()[1:] == ["ek-main", "ek-main"]
    assert "text" in m.run(ANSWER).stdout
    m.run(f"kill -KILL {pid}")
    wait("evenkeeld starts it again", lambda: server(m).get("ready") and str(server(m)["pid"]) != pid)
    m.run("systemctl stop evenkeeld; rm -r /etc/systemd/system/evenkeeld.service.d /etc/systemd/system/evenkeel-managed@tiny.service.d; systemctl daemon-reload; "
          "chown -R evenkeel:evenkeel /var/lib/evenkeel; rm -rf /run/evenkeel; userdel ek-main; cp /root/good.yaml /etc/evenkeel/evenkeeld.yaml; "
          "systemctl start evenkeeld")
    ready(m)


def test_purge_leaves_no_file(m):
    m.run("apt-get remove -y evenkeel-model-tiny")
    wait("the server is gone with its model", lambda: not server(m))
    m.run("apt-get purge -y 'evenkeel*'")
    assert m.run("pgrep evenkeel", check=False).returncode == 1
    left = sorted(files(m) - m.before)
    assert not left, left
    assert "evenkeel" in m.run("getent passwd evenkeel").stdout  # kept, as Debian does: files may still be its own
