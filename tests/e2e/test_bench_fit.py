"""Protects: the limit search by live limits ends where the KV cache is used as wanted, says what to keep, and puts everything back, whatever ends it."""
import json
import os
import re
import signal
import subprocess

from conftest import BUILD, MODEL, free_port, get, wait_for
from test_supervisor import fakes  # noqa: F401

QUICK = ["--settle", "0.2", "--measure", "0.4", "--prompt", "64", "--output", "64"]


def fit(run, *words, seconds=90):
    return subprocess.run([BUILD / "evenkeelctl", "--socket", run / "evenkeeld.sock", "bench-fit", *map(str, words)], capture_output=True, text=True, timeout=seconds)


def limit(a):
    return a.server()["limits"]["max_num_running_seqs"]


def test_climbs_to_what_the_cache_holds(appliance):
    """48 sequences of 128 tokens would need 384 blocks; 170 hold 21. Each is looked at for longer than an answer takes."""
    a = appliance(steady=True, server_flags=["--max-num-seqs", "48", "--num-gpu-blocks-override", "171"])
    wait_for("its limits were read", lambda: limit(a)["value"])
    a.ctl("limits", "set", "max_num_running_seqs=40")
    before = limit(a)
    done = fit(a.run, *QUICK, "--measure", "1.5", "--step", 8, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    steps = answer["steps"]
    assert steps[0]["limit"] == 8 and steps[0]["kv_usage"] < 0.7 and len(steps) >= 2
    assert answer["ended"] in ("the KV cache is used as wanted", "more would suffer", "no more sequences run at a time"), steps
    assert 8 <= answer["keep_max_num_seqs"] < 40 and answer["knee_max_num_seqs"] == answer["keep_max_num_seqs"] <= answer["fits_max_num_seqs"]
    keep = next(s for s in steps if s["limit"] == answer["keep_max_num_seqs"])
    assert keep["kv_usage"] <= 0.90 and not keep["harm"] and keep["tokens_per_s"] > 0
    assert any(s["kv_usage"] >= 0.85 or s["harm"] or s["running"] < 0.9 * s["limit"] for s in steps)
    assert limit(a) == before
    # In a terminal: rows, curve, setting; the limit stays with --apply.
    done = fit(a.run, "s1", *QUICK, "--step", 8, "--max-num-seqs", 16, "--apply")
    keep = int(re.search(r"^Keep: --max-num-seqs (8|16) ", done.stdout, re.M).group(1))
    assert done.returncode == 0 and "tokens/s *" in done.stdout and "answers faster" not in done.stdout
    more = "up to 16 fit, but" in " ".join(done.stdout.split())  # not where 16 had harm on this machine
    assert (keep == 8 if more else keep in (8, 16)) and f"The limit is {keep} now" in done.stdout, done.stdout  # one advice
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert limit(a)["value"] == keep
    # A load that is too small says so; one that cannot be made, too.
    assert "load is too small" in fit(a.run, *QUICK, "--clients", 2, "--start", 4).stdout
    wrong = fit(a.run, *QUICK, "--prompt", 5000)
    assert wrong.returncode == 1 and "first request failed" in wrong.stderr and "2048 tokens" in wrong.stderr and limit(a)["value"] == keep
    assert "no server 'x'" in fit(a.run, "x", *QUICK).stderr
    assert fit(a.run, *QUICK, "--use-low", "0.9", "--use-high", "0.8").returncode == 2


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return f.read().split()


def test_a_signal_puts_the_limit_back(appliance):
    a = appliance(server_flags=["--max-num-seqs", "48"])
    wait_for("its limits were read", lambda: limit(a)["value"])
    process = subprocess.Popen([BUILD / "evenkeelctl", "--socket", a.run / "evenkeeld.sock", "bench-fit", *QUICK, "--measure", "30"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    wait_for("the search begins", lambda: limit(a)["value"] == 8 and children_of(process.pid))
    load = children_of(process.pid)[0]
    process.send_signal(signal.SIGINT)
    assert "the limit is what it was" in process.communicate(timeout=60)[1]
    assert process.returncode == 130 and limit(a)["value"] == 48 and not limit(a)["pinned"]
    assert not os.path.exists(f"/proc/{load}")


def test_restarts_search_share_and_block_size(appliance):
    a = appliance(server_flags=["--max-num-seqs", "16", "--num-gpu-blocks-override", "80"])
    done = fit(a.run, *QUICK, "--restart", "--shares", "0.5", "--block-sizes", "16,32", "--start", 4, "--max-num-seqs", 4, "--json", "--wait", 60)
    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)["trials"]
    assert [t["settings"] for t in trials] == [{"gpu_memory_utilization": 0.5, "block_size": 16}, {"gpu_memory_utilization": 0.5, "block_size": 32}]
    assert all(t["climb"]["keep_max_num_seqs"] > 0 for t in trials)
    wait_for("ready", lambda: a.server()["ready"])
    with open(f"/proc/{a.server()['pid']}/cmdline") as f:
        assert "--block-size" not in f.read().split("\0")
    status, body = refused(a)
    assert status == 400 and "cannot be tried" in body


def test_a_vllm_without_live_limits_climbs_by_restarts(tmp_path, fakes):  # noqa: F811
    """evenkeel-server in the place of a vLLM without companion: no control socket, so each limit is a flag of a start."""
    port = free_port(32100)
    command = [str(BUILD / "evenkeel-server"), "--model", str(MODEL), "--device", "cpu", "--port", str(port), "--max-num-seqs", "12"]
    f = fakes(a=(None, f"    engine: vllm\n    command: {json.dumps(command)}\n    port: {port}\n")).ready()
    run = f.run / "r"
    assert "--restart" in (said := fit(run, *QUICK)).stderr and said.returncode == 1 and "companion" in said.stderr
    assert "--apply" in fit(run, *QUICK, "--restart", "--apply").stderr
    quiet = [*QUICK, "--restart", "--shares", "", "--block-sizes", "", "--start", 4, "--step", 4, "--wait", 60, "--json"]
    done = fit(run, *quiet, "--max-num-seqs", 8, "--batched-tokens", "512")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert [s["limit"] for s in answer["steps"]][:2] == [4, 8] and all(s["tokens_per_s"] > 0 for s in answer["steps"])
    assert answer["steps"][0]["running"] <= 4 and answer["keep_max_num_seqs"] in (4, 8)
    assert [t["settings"] for t in answer["trials"]] == [{"max_num_batched_tokens": 512}]
    started = [d["why"] for d in f.decisions("a", "OPERATOR")]
    assert any("restart" in w for w in started)
    wait_for("ready", lambda: f.all()["a"]["ready"])
    with open(f"/proc/{f.all()['a']['pid']}/cmdline") as words:
        argv = words.read().split("\0")
    assert [v for k, v in zip(argv, argv[1:]) if k == "--max-num-seqs"] == ["12"] and "--max-num-batched-tokens" not in argv
    none = fit(run, *quiet, "--max-num-seqs", 4)
    assert json.loads(none.stdout)["trials"][0]["settings"] == {} and none.returncode == 0


def refused(a):
    done = subprocess.run(["curl", "-s", "--unix-socket", a.run / "evenkeeld.sock", "-X", "POST", "-d", '{"trial": {"api_key": "x"}}', "-w", "%{http_code}",
                           "http://x/api/v1/servers/s1/restart"], capture_output=True, text=True, timeout=60)
    return int(done.stdout[-3:]), done.stdout[:-3]


def test_a_server_without_evenkeeld(tmp_path):
    port, control = free_port(32000), tmp_path / "control.sock"
    process = subprocess.Popen([BUILD / "evenkeel-server", "--model", MODEL, "--device", "cpu", "--port", str(port), "--control-socket", control, "--max-num-seqs", "12"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("ready", lambda: get(port, "/health")[0] == 200, 60)
        done = fit(tmp_path, *QUICK, "--control", control, "--url", f"http://127.0.0.1:{port}", "--json")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["keep_max_num_seqs"] in (8, 12)
        assert "--url" in fit(tmp_path, *QUICK, "--control", control).stderr
    finally:
        process.kill()
        process.wait()
