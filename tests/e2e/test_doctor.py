"""Protects: an operator with a log and no idea gets the failure's name, its numbers and what to set, whatever form the log has."""
import gzip
import http.server
import json
import subprocess
import threading
import time

from bare import Bare
from conftest import BUILD, ROOT

LOG = [line[1:] for line in (ROOT / "tests/fixtures/signatures.txt").read_text().splitlines() if line.startswith("+")][:4]


def ctl(*words, text=None):
    return subprocess.run([BUILD / "evenkeelctl", *words], input=text, capture_output=True, text=True, timeout=60)


def test_forms_of_a_log(tmp_path):
    plain, packed, bundle = tmp_path / "a.log", tmp_path / "a.log.gz", tmp_path / "bundle"
    text = "\n".join(LOG) + "\n"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    bundle.mkdir()
    (bundle / "01-server.log").write_text(text[: len(text) // 3])
    (bundle / "02-server.log").write_text(text)
    for words, stdin in ((["diagnose", plain], None), (["diagnose", packed], None), (["diagnose", bundle], None), (["diagnose"], text)):
        said = ctl(*words, "--json", text=stdin)
        assert said.returncode == 0, said.stderr
        found = json.loads(said.stdout)["findings"][0]
        assert (found["id"], found["class"]) == ("cuda-oom", "BURST_OOM")
        assert {r["flag"]: r["value"] for r in found["remedies"]}["--max-num-seqs"] == "204"
        assert 50 in [d["rate_percent"] for d in found["dead_ends"]]


def test_languages_and_catalog():
    text = "\n".join(LOG)
    assert "What helps" in ctl("diagnose", text=text).stdout
    chinese = ctl("diagnose", "--lang", "zh", "--markdown", text=text).stdout
    assert "无效做法" in chinese and chinese.startswith("# evenkeelctl diagnose")
    ids = [line.split()[0] for line in ctl("diagnose", "--list").stdout.splitlines()]
    assert len(ids) >= 60
    assert "fallen off the bus" in ctl("diagnose", "--explain", "xid-79").stdout
    assert ctl("diagnose", "--explain", "nothing").returncode == 1
    assert ctl("diagnose", "/nonexistent.log").returncode == 1
    assert ctl("diagnose", "--lang", "fr").returncode == 2


def test_nothing_found():
    said = ctl("diagnose", text="all is well\n")
    assert said.returncode == 0 and "No known failure" in said.stdout


def test_remarks_of_a_healthy_server():
    text = ("INFO 09-01 12:00:00 [api_server.py:1885] vLLM API server version 0.11.0\n"
            "WARNING 09-01 12:00:04 [custom_all_reduce.py:144] Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.\n"
            "INFO:     Application startup complete.\n")
    said = ctl("diagnose", text=text).stdout
    assert "No known failure" in said and "custom-allreduce-p2p" in said and "CONFIG" not in said and "What helps" not in said
    said = ctl("diagnose", text=text + "OSError: [Errno 98] Address already in use\n").stdout
    assert "No known failure" not in said and "PORT" in said and "custom-allreduce-p2p" in said


def test_warnings_that_are_a_diagnosis():
    """A server that serves on, but badly, says so in warnings alone."""
    said = ctl("diagnose", text="WARNING 09-01 12:00:00 [scheduler.py:1057] Sequence group cmpl-7 is preempted by PreemptionMode.RECOMPUTE mode "
                                "because there is not enough KV cache space.\n").stdout
    assert "No known failure" not in said and "KV_PRESSURE" in said and "--max-num-seqs" in said


def test_live(tmp_path):
    s = Bare(tmp_path)
    try:
        for _ in range(3):
            status, _, _ = s.ask("/v1/completions", "POST", json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 8}))
            assert status == 200
        said = ctl("diagnose", "--live", f"127.0.0.1:{s.port}", "--seconds", "0.2", "--json")
        assert said.returncode == 0, said.stderr
        server = json.loads(said.stdout)["servers"][0]
        assert server["numbers"]["total_blocks"] > 0 and server["numbers"]["max_model_len"] == 2048
        assert {r["id"] for r in server["rules"]} >= {"queue-pressure", "ttft", "tpot", "kv-pressure", "preemption", "prefix-cache", "errors", "imbalance"}
        assert "memory utilization" in ctl("diagnose", "--live", f"127.0.0.1:{s.port}", "--seconds", "0").stdout
    finally:
        s.stop()
    assert ctl("diagnose", "--live", "127.0.0.1:9", "--seconds", "0").returncode == 3


def test_a_page_of_no_engine(appliance):
    """evenkeeld's own page, which is none of an engine: those that are known are named, as they stand in the table of engines."""
    said = ctl("diagnose", "--live", f"127.0.0.1:{appliance().page}", "--seconds", "0")
    assert said.returncode == 3 and "has no metric of evenkeel, vllm, sglang, llamacpp" in said.stderr, (said.returncode, said.stderr)


class Page(http.server.BaseHTTPRequestHandler):
    """A vLLM that shows what the test says."""
    waiting = 0.0

    def do_GET(self):
        text = (f'vllm:num_requests_running{{model_name="m"}} 2\nvllm:num_requests_waiting{{model_name="m"}} {Page.waiting}\n'
                'vllm:kv_cache_usage_perc{model_name="m"} 0.2\nvllm:cache_config_info{block_size="16",num_gpu_blocks="101"} 1\n').encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *words):
        pass


def test_watch():
    """Each change once, with its value; it ends by a signal. Contradictions are refused."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"127.0.0.1:{server.server_port}"
    watch = subprocess.Popen([BUILD / "evenkeelctl", "diagnose", "--live", url, "--watch", "--seconds", "0.1", "--json"], stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(0.5)
        Page.waiting = 40.0
        begun = [json.loads(watch.stdout.readline()) for _ in range(2)]  # the limit binds while the cache is empty: both say so
        assert {(x["id"], x["state"], x["url"]) for x in begun} == {("queue-pressure", "applies", url), ("low-throughput", "applies", url)}
        assert {x["id"]: x["value"] for x in begun} == {"queue-pressure": "4", "low-throughput": "8"} and all(x["why"] for x in begun)
        Page.waiting = 0.0
        ended = [json.loads(watch.stdout.readline()) for _ in range(2)]
        assert {(x["id"], x["state"]) for x in ended} == {("queue-pressure", "fine"), ("low-throughput", "fine")}
    finally:
        watch.terminate()
        watch.wait(60)
        server.shutdown()
    for words in (["--watch"], ["--live", url, "--watch", "--seconds", "0"], ["--live", url, "--watch", "--markdown"], ["--json", "--markdown"],
                  ["x", "--live", url], ["x", "--journal", "u"]):
        refused = ctl("diagnose", *words, text="x")
        assert refused.returncode == 2 and "--" in refused.stderr
