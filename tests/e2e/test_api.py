"""Protects: OpenMetrics and gzip on request; tool calls as OpenAI's client reads them, streaming and not, and only when the server is told to look for them;
what docs/api.md says is answered while the model loads, and what waits."""
import gzip
import http.client
import json
import os
import subprocess
import time

import openai
import pytest

from bare import Bare
from conftest import ROOT, Appliance, wait_for

CASES = {c["name"]: c for c in json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"]}
TOOL = CASES["tool-call"]


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    a = Appliance(tmp_path_factory.mktemp("tools"), ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]).start().ready()
    yield openai.OpenAI(base_url=f"http://127.0.0.1:{a.port}/v1", api_key="none", max_retries=0)
    a.destroy()


def ask(client, case=TOOL, **more):
    more = {"max_tokens": 160, "temperature": 0, **more}
    return client.chat.completions.create(model="tiny", messages=case["messages"], tools=case["tools"], **more)


def test_tool_call(tools):
    choice = ask(tools).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.id.startswith("chatcmpl-tool-") and call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Sofia"}
    again = ask(tools).choices[0].message.tool_calls[0]
    assert again.id != call.id


def test_tool_call_stream(tools):
    chunks = [c.choices[0] for c in ask(tools, stream=True) if c.choices]
    calls = [d for c in chunks for d in c.delta.tool_calls or []]
    assert calls[0].index == 0 and calls[0].id.startswith("chatcmpl-tool-") and calls[0].type == "function"
    assert calls[0].function.name == "get_weather" and all(c.index == 0 and c.id is None for c in calls[1:])
    assert json.loads("".join(c.function.arguments or "" for c in calls)) == {"city": "Sofia"}
    assert "".join(c.delta.content or "" for c in chunks) == "" and chunks[-1].finish_reason == "tool_calls"


def test_stream_helper(tools):
    with tools.chat.completions.stream(model="tiny", messages=TOOL["messages"], tools=TOOL["tools"], temperature=0,
                                       max_tokens=160) as s:
        message = s.get_final_completion().choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Sofia"}


def test_the_result_goes_back(tools):
    message = ask(tools).choices[0].message
    call = message.tool_calls[0]
    back = [*TOOL["messages"], message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": CASES["tool-result"]["messages"][-1]["content"]}]
    answer = ask(tools, dict(TOOL, messages=back)).choices[0]
    assert answer.message.content == CASES["tool-result"]["output_text"] and not answer.message.tool_calls


def test_text_stays_text(tools):
    cut = ask(tools, max_tokens=10).choices[0]
    assert cut.finish_reason == "length" and cut.message.content.startswith("<tool_call>") and not cut.message.tool_calls
    assert not ask(tools, tool_choice="none").choices[0].message.tool_calls


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_forced_calls(tools, shared, choice):
    """What must be called is, with arguments that the parameters allow, at any temperature, with the flag and without."""
    with_two = dict(TOOL, tools=[*TOOL["tools"], {"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}])
    for client in (tools, openai.OpenAI(base_url=f"http://127.0.0.1:{shared.port}/v1", api_key="none", max_retries=0)):
        for seed in range(4):
            done = ask(client, with_two, tool_choice=choice, temperature=1.5, seed=seed, max_tokens=400).choices[0]
            if done.finish_reason == "length":
                continue
            # as OpenAI and vLLM: a call that was named is not the model's choice
            assert done.finish_reason == ("tool_calls" if choice == "required" else "stop") and done.message.tool_calls and not done.message.content, done
            for call in done.message.tool_calls:
                arguments = json.loads(call.function.arguments)
                assert call.function.name == "get_weather" or (call.function.name == "add" and choice == "required")
                assert isinstance(arguments["city"] if call.function.name == "get_weather" else "", str)
            if choice != "required":
                assert len(done.message.tool_calls) == 1
    with pytest.raises(openai.BadRequestError, match="there is no tool `x`"):
        ask(tools, tool_choice={"type": "function", "function": {"name": "x"}})
    with pytest.raises(openai.BadRequestError, match="/properties/a/contains"):
        ask(tools, dict(TOOL, tools=[{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "array", "contains": {"const": 1}}}}}}]),
            tool_choice="required")


def page(port, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics", headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_openmetrics(shared):
    answer, body = page(shared.port, Accept="application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4")
    assert answer.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    lines = body.decode().split("\n")
    assert lines[-2:] == ["# EOF", ""] and lines.count("# EOF") == 1
    types = [line.split()[2:] for line in lines if line.startswith("# TYPE ")]
    assert len({name for name, _ in types}) == len(types)
    family = kind = ""
    for line in lines[:-2]:
        if line.startswith("# TYPE "):
            family, kind = line.split()[2:]
        elif not line.startswith("#"):
            ends = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}[kind]
            assert line.split("{")[0].split(" ")[0] in [family + e for e in ends], line
    answer, body = page(shared.port, Accept="*/*")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4") and b"# EOF" not in body


def test_gzip(shared):
    answer, body = page(shared.port, Accept_Encoding="gzip")
    assert answer.headers["Content-Encoding"] == "gzip" and int(answer.headers["Content-Length"]) == len(body)
    text = gzip.decompress(body)
    assert b"vllm:num_requests_running" in text and len(body) < len(text) / 3
    assert page(shared.port, Accept_Encoding="gzip;q=0")[0].headers["Content-Encoding"] is None


def documented(while_loading):
    """Method and path of the routes of docs/api.md with that word in the column of loading."""
    for line in (ROOT / "docs/api.md").read_text().splitlines():
        cells = [c.strip() for c in line.split(" | ")]
        if line.startswith("| `GET") and len(cells) == 4 and cells[2] == while_loading:
            yield from (("GET", path) for path in cells[0].replace("`GET` or", "").strip("| ").replace("`", "").replace("GET ", "").split(", "))


def test_while_loading(tmp_path):
    library = tmp_path / "slow_load.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, ROOT / "tests/e2e/slow_load.c"], check=True)
    s = Bare(tmp_path, ready=False, env={"LD_PRELOAD": str(library), "SLOW_LOAD_S": "5", "ASAN_OPTIONS": "verify_asan_link_order=0",
                                         "PATH": os.environ["PATH"]})
    try:
        wait_for("it listens", lambda: s.ask("/livez")[0] == 200, 60)
        routes = list(documented("yes"))
        assert ("GET", "/api/version") in routes and ("GET", "/metrics") in routes and len(routes) >= 6, routes
        for method, path in routes:
            assert s.ask(path, method)[0] == 200, path
        assert s.ask("/ping", "POST")[0] == s.ask("/ping")[0] == 503
        assert s.local("/readyz")[0] == 503, "it was ready too early: nothing was tried"
        began = time.monotonic()
        assert s.ask("/v1/models")[0] == 200 and time.monotonic() - began > 0.1  # it waits
    finally:
        s.stop()
