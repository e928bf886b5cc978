"""Protects: what a server is started with after memory ran out is counted from what really ran, looked at by its plan before it is used, told
wherever a limit is shown, and forgotten when an operator says so. The server is ours; a program in front of it fails as often as the test says."""
import json
import stat
import subprocess

import pytest

from conftest import BUILD, MODEL, Appliance, get, wait_for

FRONT = """#!/bin/sh
# Fails to start as long as DIR/fails says so; is what it stands before otherwise, and for what it is asked of its plan.
case "$*" in
*--dry-run*) [ -x {run}/plan ] && exec {run}/plan "$@"; exec {server} "$@" ;;
esac
n=$(cat {run}/fails)
[ "$n" -gt 0 ] || exec {server} "$@"
echo $((n - 1)) >{run}/fails
echo "{says}"
exit {code}
"""
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is free."


@pytest.fixture
def front(tmp_path):
    made = []

    def make(code, fails, says=OOM, flags=(), plan=None):
        program = tmp_path / "evenkeel-server"
        program.write_text(FRONT.format(run=tmp_path, server=BUILD / "evenkeel-server", code=code, says=says))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        (tmp_path / "fails").write_text(str(fails))
        if plan:
            (tmp_path / "plan").write_text(plan)
            (tmp_path / "plan").chmod(0o755)
        a = Appliance(tmp_path, server_flags=flags)
        a.config.write_text(a.config.read_text().replace(f"[{BUILD}/evenkeel-server,", f"[{program},"))
        made.append(a)
        return a.start()

    yield make
    for a in made:
        a.destroy()


def whys(a, *reasons):
    """Oldest first."""
    return [d["why"] for d in a.decisions() if d["reason"] in reasons][::-1]


def default_tokens():
    done = subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, "--dry-run", "--json"], capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout)["max_num_batched_tokens"]


def test_a_remedy_starts_from_what_ran_and_is_told(front):
    """No flag says the token budget: its default is the server's own, whatever the table of engines says of cards."""
    default = default_tokens()
    a = front(71, 1).ready()
    said = whys(a, "REMEDY")
    assert len(said) == 1 and f"--max-num-batched-tokens {default * 3 // 4} instead of {default}" in said[0], said
    order = [d["reason"] for d in a.decisions()][::-1]
    assert order.index("CRASH") < order.index("REMEDY")
    flags = f"--max-num-batched-tokens {default * 3 // 4}"
    assert a.server()["learned"]["flags"] == flags and 86000 < a.server()["learned"]["left_s"] <= 86400
    for words in (["status"], ["limits"], ["remedies"], ["remedies", "-s", "s1"], ["-s", "s1", "remedies"]):
        assert f"starts with {flags}, for 24.0 h more" in a.ctl(*words).stdout, words
    assert json.loads(a.ctl("remedies", "--json").stdout)["s1"]["flags"] == flags
    assert f"Since memory ran out it starts with {flags}" in get(a.page, "/")[1].decode()
    # Another evenkeeld tells of it, too.
    a.process.kill()
    a.process.wait()
    a.start().ready()
    wait_for("it is told", lambda: [w for w in whys(a, "REMEDY") if flags in w and "remedies forget" in w])
    assert flags in a.ctl("status").stdout and flags in a.ctl("explain").stdout
    # Until an operator ends it.
    assert "its next start has its own flags" in a.ctl("remedies", "forget").stdout
    assert a.server()["learned"] is None and "None: each server starts with its own flags." in a.ctl("remedies").stdout
    assert "remedies" not in a.ctl("limits").stdout
    pid = a.server()["pid"]
    a.ctl("restart")
    wait_for("another process", lambda: a.server()["pid"] not in (0, pid) and a.server()["ready"], 60)
    with open(f"/proc/{a.server()['pid']}/cmdline") as words:
        assert "--max-num-batched-tokens" not in words.read()
    assert a.ctl("remedies", "forget", "-s", "nosuch", check=False).returncode == 1
    assert a.ctl("remedies", "forgive", check=False).returncode == 2


def test_a_step_whose_plan_does_not_help_is_passed_over(front):
    """Fewer tokens that would take more memory, and a share that would not fit: neither is started with."""
    plan = """#!/bin/sh
case "$*" in
*--max-num-seqs*) echo '{"total_bytes": 100000000, "max_num_batched_tokens": 256, "max_num_seqs": 16, "utilization": 0.92}' ;;
*--gpu-memory-utilization*) echo it does not fit >&2; exit 75 ;;
*--max-num-batched-tokens*) echo '{"total_bytes": 239000000, "max_num_batched_tokens": 6144, "max_num_seqs": 64, "utilization": 0.92}' ;;
*) echo '{"total_bytes": 182000000, "max_num_batched_tokens": 2048, "max_num_seqs": 64, "utilization": 0.92}' ;;
esac
"""
    a = front(71, 1, plan=plan).ready()
    said = whys(a, "REMEDY")
    assert len(said) == 3, said
    assert "not with --max-num-batched-tokens 1536 instead of 2048: the plan would grow from 174 to 228 MiB" in said[0]
    assert "not with --gpu-memory-utilization 0.87 instead of 0.92: the plan would not fit" in said[1]
    assert "starting again" in said[2] and "--max-num-seqs 16 instead of 64" in said[2]


def test_a_start_while_a_remedy_is_looked_for(front):
    """The failure that the remedy was looked for was then in no list, and unknown to the next evenkeeld."""
    a = front(71, 1, plan="#!/bin/sh\nsleep 5\nexit 1\n")
    wait_for("the question", lambda: whys(a, "CRASH") and a.server()["state"] == "backoff")
    a.ctl("restart")
    a.ready()

    def failures():
        return a.api("/api/v1/servers/s1/failures")["failures"]
    assert [(f["class"], f["next"]) for f in failures()] == [("STARTUP_OOM", "started again before a remedy was found")]
    a.process.kill()
    a.process.wait()
    a.start().ready()
    assert [f["next"] for f in failures()] == ["started again before a remedy was found"]


def test_a_plan_that_does_not_fit_opens_the_breaker(front):
    """75: the same flags fail the same way, and no remedy knows better than its sentence."""
    a = front(75, 9, says="evenkeel-server error: the plan does not fit")
    wait_for("given up", lambda: a.server()["state"] == "breaker_open")
    assert whys(a, "STARTED") and len(whys(a, "STARTED")) == 1 and not whys(a, "REMEDY")
    assert "Exit code 75" in whys(a, "BREAKER_OPEN")[0] and a.server()["learned"] is None


def test_what_was_learned_and_does_not_fit_is_forgotten(front, tmp_path):
    """A smaller machine since: the caps of a remedy are no reason to open the breaker before the own flags had their turn."""
    a = front(71, 1).ready()
    assert a.server()["learned"]
    program = tmp_path / "evenkeel-server"
    (tmp_path / "fails").write_text("1")
    program.write_text(program.read_text().replace("exit 71", "exit 75").replace(OOM, "evenkeel-server error: the plan does not fit"))
    pid = a.server()["pid"]
    a.ctl("restart")
    wait_for("another process", lambda: a.server()["pid"] not in (0, pid) and a.server()["ready"], 60)
    assert a.server()["learned"] is None and "forgotten" in whys(a, "REMEDY")[-1]


def test_a_limit_of_addresses_is_host_memory(tmp_path):
    """ulimit -v: the plan keeps below it; where nothing fits below it, that is no device's fault and no file's."""
    for kib, codes in ((1000000, (0,)), (100000, (75, 79)), (200000, (75, 79))):
        log = tmp_path / f"{kib}.log"
        with open(log, "wb") as out:
            server = subprocess.Popen(["sh", "-c", f"ulimit -v {kib}; exec {BUILD}/evenkeel-server --model {MODEL} --host 127.0.0.1 --port 0 "
                                       f"--threads 2 --control-socket {tmp_path}/c.sock"], stdout=out, stderr=out)
        try:
            if codes == (0,):
                wait_for("it serves", lambda: "Serving" in log.read_text() or server.poll() is not None, 60)
                server.terminate()
            assert server.wait(60) in codes, log.read_text()
        finally:
            server.kill()
            server.wait()
        if codes != (0,):
            note = json.loads((tmp_path / "exit.json").read_text())
            assert note["class"] in ("no_fit", "host_oom_start") and "device" not in note["why"] and "JSON" not in note["why"], note
