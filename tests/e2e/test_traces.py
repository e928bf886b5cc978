"""Protects: what a collector gets is what OpenTelemetry's own types read: one span a request with queue, prefill and decode below it, in the
client's trace; a collector that fails or is not there costs no request anything."""
import gzip
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import urllib.request

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, service_attributes

from bare import Bare
from conftest import free_port, metric, wait_for
from engines import end_engine


class Collector(http.server.ThreadingHTTPServer):
    """Keeps what it is sent; answers as it is told."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies, self.heads, self.answers = [], [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def resources(self):
        return [r for body in self.bodies for r in ExportTraceServiceRequest.FromString(body).resource_spans]

    def spans(self):
        return [s for r in self.resources() for scope in r.scope_spans for s in scope.spans]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        status = self.server.answers.pop(0) if self.server.answers else 200
        if status == 200:
            self.server.heads.append((self.path, dict(self.headers)))
            self.server.bodies.append(body)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    c = Collector()
    yield c
    c.shutdown()
    c.server_close()


def value(v):
    kind = v.WhichOneof("value")
    return [value(one) for one in v.array_value.values] if kind == "array_value" else getattr(v, kind)


def attributes(of):
    return {a.key: value(a.value) for a in of.attributes}


def ask(server, path, body, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", json.dumps({"model": "tiny", **body}).encode(),
                                     {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read(), dict(answer.headers)


def sent(server, result="sent"):
    return metric(server.metrics(), "evenkeel_trace_spans_total", result=result)


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_requests(tmp_path, collector):
    s = Bare(tmp_path, "--otlp-traces-endpoint", collector.url, env={"OTEL_SERVICE_NAME": "house", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-token=a b,x-more=1"})
    try:
        hello = {"messages": [{"role": "user", "content": "Hello"}]}
        ask(s, "/v1/chat/completions", {**hello, "max_tokens": 12, "n": 2, "temperature": 0.5, "seed": 1}, traceparent=f"00-{TRACE}-{PARENT}-01")
        ask(s, "/v1/completions", {"prompt": "One day", "max_tokens": 5, "stream": True, "temperature": 0})
        ask(s, "/v1/chat/completions", {**hello, "max_tokens": 3}, traceparent=f"00-{TRACE}-{PARENT}-00")  # its caller does not sample it
        ask(s, "/v1/embeddings", {"input": ["a", "b"]})
        ask(s, "/tokenize", {"prompt": "a"})
        s.ask("/nowhere")
        wait_for("all were sent", lambda: sum(sp.kind == sp.SPAN_KIND_SERVER for sp in collector.spans()) == 5)
        ask(s, "/tokenize", {"prompt": "a"})
    finally:
        assert s.stop() == 0  # what waits is sent before the end
    assert collector.heads[0][0] == "/v1/traces" and collector.heads[0][1]["x-token"] == "a b" and collector.heads[0][1]["x-more"] == "1"
    assert collector.heads[0][1]["Content-Type"] == "application/x-protobuf"
    resource = attributes(collector.resources()[0].resource)
    assert resource["service.name"] == "house" and resource["service.version"] and resource["service.instance.id"]
    spans = collector.spans()
    by_id = {sp.span_id: sp for sp in spans}
    assert len(by_id) == len(spans) and all(len(sp.span_id) == 8 and any(sp.span_id) and len(sp.trace_id) == 16 and any(sp.trace_id) for sp in spans)
    assert all(sp.start_time_unix_nano <= sp.end_time_unix_nano for sp in spans)
    roots = sorted((sp for sp in spans if sp.kind == sp.SPAN_KIND_SERVER), key=lambda sp: sp.start_time_unix_nano)
    assert [sp.name for sp in roots] == ["llm_request", "llm_request", "llm_request", "POST /tokenize", "HTTP", "POST /tokenize"]
    chat, plain, embed, tokens, nowhere, _ = roots
    assert chat.trace_id.hex() == TRACE and chat.parent_span_id.hex() == PARENT and not plain.parent_span_id
    a = attributes(chat)
    assert a["gen_ai.operation.name"] == "chat" and a["gen_ai.response.model"] == "tiny" and a["gen_ai.request.n"] == 2 == a["gen_ai.usage.num_sequences"]
    assert a["gen_ai.usage.output_tokens"] == a["gen_ai.usage.completion_tokens"] <= 24 and a["gen_ai.usage.input_tokens"] > 3
    assert a["gen_ai.request.choice.count"] == 2 and a["gen_ai.request.seed"] == 1 and a["gen_ai.request.stream"] is False and a["gen_ai.request.model"] == "tiny"
    assert a["gen_ai.provider.name"] == "evenkeel" and a["gen_ai.response.id"].startswith("chatcmpl-") and "gen_ai.response.time_to_first_chunk" not in a
    assert a["gen_ai.request.temperature"] == 0.5 and a["gen_ai.request.max_tokens"] == 12 and len(a["gen_ai.response.finish_reasons"]) == 2
    assert a["http.route"] == "/v1/chat/completions" and a["http.response.status_code"] == 200 and a["evenkeel.preemptions"] == 0
    assert 0 < a["gen_ai.latency.time_to_first_token"] <= a["gen_ai.latency.e2e"]
    assert attributes(plain)["gen_ai.request.stream"] is True and 0 < attributes(plain)["gen_ai.response.time_to_first_chunk"] <= attributes(plain)["gen_ai.latency.e2e"]
    assert "error.type" not in a, chat
    assert "gen_ai.request.seed" not in attributes(plain) and "gen_ai.request.choice.count" not in attributes(plain)
    assert attributes(plain)["gen_ai.operation.name"] == "text_completion" and attributes(plain)["gen_ai.usage.output_tokens"] == 5
    assert attributes(embed)["gen_ai.operation.name"] == "embeddings" and attributes(tokens)["http.response.status_code"] == 200
    assert attributes(nowhere)["http.response.status_code"] == 404
    for root, answers in ((chat, 2), (plain, 1)):
        parts = [sp for sp in spans if sp.parent_span_id == root.span_id]
        assert sorted(sp.name for sp in parts) == sorted(["queue", "prefill", "decode"] * answers)
        for one in range(answers):
            queue, prefill, decode = (next(sp for sp in parts if sp.name == n and attributes(sp)["evenkeel.answer"] == one) for n in ("queue", "prefill", "decode"))
            assert queue.trace_id == root.trace_id and queue.end_time_unix_nano == prefill.start_time_unix_nano
            assert prefill.end_time_unix_nano == decode.start_time_unix_nano and root.start_time_unix_nano <= queue.start_time_unix_nano


VLLM = {f"gen_ai.{name}" for name in ("request.id", "request.n", "usage.num_sequences", "latency.time_in_queue", "latency.time_to_first_token",
                                      "latency.time_in_model_prefill", "latency.time_in_model_decode", "latency.time_in_model_inference", "latency.e2e")}
OFFICIAL = {value for module in (gen_ai_attributes, error_attributes, http_attributes, service_attributes) for name, value in vars(module).items()
            if name.isupper() and isinstance(value, str)}


def test_names(tmp_path, collector):
    """Each name is one that OpenTelemetry publishes, vLLM's, or ours."""
    s = Bare(tmp_path, "--otlp-traces-endpoint", collector.url, "--served-model-name", "tiny", "other")
    try:
        for stream in False, True:
            ask(s, "/v1/completions", {"prompt": "One day there was a house by the river " * 4, "model": "other", "max_tokens": 5, "stream": stream, "temperature": 0.5,
                                       "seed": 3, "n": 2, "top_k": 5, "presence_penalty": 0.5, "frequency_penalty": 0.25})
        wait_for("all were sent", lambda: sum(sp.kind == sp.SPAN_KIND_SERVER for sp in collector.spans()) == 2)
    finally:
        assert s.stop() == 0
    names = {key for sp in collector.spans() for key in attributes(sp)} | {key for r in collector.resources() for key in attributes(r.resource)}
    assert {name for name in names if not name.startswith("evenkeel.")} <= OFFICIAL | VLLM
    first, second = (attributes(sp) for sp in sorted(collector.spans(), key=lambda sp: sp.start_time_unix_nano) if sp.kind == sp.SPAN_KIND_SERVER)
    assert first["gen_ai.request.model"] == "other" and first["gen_ai.response.model"] == "tiny"
    assert first["gen_ai.request.top_k"] == 5 and first["gen_ai.request.presence_penalty"] == 0.5 and first["gen_ai.request.frequency_penalty"] == 0.25
    assert first["gen_ai.usage.cache_read.input_tokens"] == 0 < second["gen_ai.usage.cache_read.input_tokens"] <= second["gen_ai.usage.input_tokens"]


def test_through_a_real_collector(tmp_path, collector):
    """Rotel, which others wrote in another language, takes what is sent and hands on the same."""
    agent = pathlib.Path(pytest.importorskip("rotel").__file__).with_name("rotel-agent")
    agent.chmod(0o755)
    if subprocess.run([agent, "--version"], capture_output=True).returncode == 127:
        pytest.skip("it needs Python's shared library (Debian: libpython3.N)")
    http, grpc = free_port(41000), free_port(42000)
    with open(tmp_path / "rotel.log", "wb") as log:
        between = subprocess.Popen([agent, "start", "--log-file", tmp_path / "agent.log", "--pid-file", tmp_path / "agent.pid", "--otlp-http-endpoint", f"127.0.0.1:{http}",
                                    "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}", "--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint",
                                    collector.url], stdout=log, stderr=log, env={**os.environ, "ROTEL_BATCH_TIMEOUT": "200ms"})
    direct = Collector()
    try:
        wait_for("it listens", lambda: reached(http), 60)
        for where in collector, direct:
            (tmp_path / str(where.server_port)).mkdir()
            s = Bare(tmp_path / str(where.server_port), "--otlp-traces-endpoint", f"http://127.0.0.1:{http}" if where is collector else where.url, "--engine-process",
                     env={"OTEL_SERVICE_NAME": "house"})
            try:
                ask(s, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12, "n": 2, "seed": 1, "temperature": 0.5, "ignore_eos": True},
                    traceparent=f"00-{TRACE}-{PARENT}-01")
                s.ask("/v1/chat/completions", "POST", "no JSON")
            finally:
                assert s.stop() == 0
        wait_for("it hands them on", lambda: len(collector.spans()) == len(direct.spans()) == 8, 60)
    finally:
        direct.shutdown()
        direct.server_close()
        between.terminate()
        between.wait(30)
    assert sorted(map(told, collector.spans()), key=str) == sorted(map(told, direct.spans()), key=str)  # which of two answers is first, no clock fixes
    roots = sorted((sp for sp in collector.spans() if sp.kind == sp.SPAN_KIND_SERVER), key=lambda sp: sp.start_time_unix_nano)
    assert roots[0].trace_id.hex() == TRACE and attributes(collector.resources()[0].resource)["service.name"] == "house"


def reached(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def told(span):
    """All of it but times and ids, which another server has others of."""
    return (span.name, span.kind, span.status.code, span.status.message, len(span.span_id), len(span.parent_span_id),
            {k: v for k, v in attributes(span).items() if not isinstance(v, float) and not k.endswith(".id")})


def test_preemptions_are_events(tmp_path, collector):
    """A pool that cannot hold all of them: those that were put back say when."""
    s = Bare(tmp_path, "--otlp-traces-endpoint", collector.url + "/v1/traces", "--num-gpu-blocks-override", 40, "--max-num-seqs", 8, "--max-model-len", 512,
             "--stalled-share", 0, "--watermark", 0)
    try:
        threads = [threading.Thread(target=ask, args=(s, "/v1/completions", {"prompt": f"Day {i}", "max_tokens": 300, "ignore_eos": True})) for i in range(6)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        preemptions = metric(s.metrics(), "vllm:num_preemptions_total")
        assert preemptions > 0
        wait_for("all were sent", lambda: sent(s) >= 6 * 4)
    finally:
        assert s.stop() == 0
    spans = collector.spans()
    assert sum(attributes(sp)["evenkeel.preemptions"] for sp in spans if sp.name == "llm_request") == preemptions
    events = [(sp, e) for sp in spans for e in sp.events]
    assert events and all(e.name == "preemption" and sp.start_time_unix_nano <= e.time_unix_nano <= sp.end_time_unix_nano for sp, e in events)


def test_an_engine_that_is_replaced_is_an_event(tmp_path, collector):
    """Each answer that was computed again says when, and its root how often."""
    s = Bare(tmp_path, "--otlp-traces-endpoint", collector.url, "--engine-process", "--max-model-len", 1024)
    try:
        asked = threading.Thread(target=ask, args=(s, "/v1/completions", {"prompt": "One day", "max_tokens": 400, "n": 2, "ignore_eos": True}))
        asked.start()
        end_engine(s, signal.SIGSEGV, 20)
        asked.join()
        wait_for("all were sent", lambda: sent(s) >= 7)
    finally:
        assert s.stop() == 0
    root = next(sp for sp in collector.spans() if sp.name == "llm_request")
    assert attributes(root)["evenkeel.replays"] == 2
    events = [(sp, e) for sp in collector.spans() for e in sp.events]
    assert [e.name for _, e in events] == ["engine_replaced"] * 2 and {sp.name for sp, _ in events} == {"decode"}
    assert all(sp.parent_span_id == root.span_id and sp.start_time_unix_nano <= e.time_unix_nano <= sp.end_time_unix_nano for sp, e in events)


def test_a_collector_that_fails(tmp_path, collector):
    """503 is tried again, 400 is not; one that is not there is said once, and no request waits for it."""
    collector.answers += [503, 200, 400]
    s = Bare(tmp_path, "--otlp-traces-endpoint", collector.url)
    try:
        ask(s, "/tokenize", {"prompt": "a"})
        wait_for("sent at the second try", lambda: sent(s) == 1)
        ask(s, "/tokenize", {"prompt": "b"})
        wait_for("left out", lambda: sent(s, "failed") == 1)
    finally:
        assert s.stop() == 0
    assert len(collector.bodies) == 1 and "Traces are not taken by" in s.log() and "status 400" in s.log()
    nobody = free_port(39000)
    s = Bare(tmp_path, "--otlp-traces-endpoint", f"http://127.0.0.1:{nobody}")
    try:
        ask(s, "/v1/completions", {"prompt": "a", "max_tokens": 2})
    finally:
        assert s.stop() == 0
    assert s.log().count("Traces are not taken") == 1


@pytest.mark.parametrize("address", ["localhost:4317", "grpc://localhost:4317", "http://", "", "ftp://a/b"])
def test_addresses_that_are_none(tmp_path, address):
    s = Bare(tmp_path, "--otlp-traces-endpoint", address, ready=False)
    s.process.wait(60)
    assert s.process.returncode == 2 and "--otlp-traces-endpoint" in s.log() and "4318/v1/traces" in s.log()
