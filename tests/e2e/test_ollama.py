"""Protects: Ollama's API, as its own client and others use it by a base URL: chats and prompts as lines of JSON or whole, its options and
its format honoured or refused, tools, embeddings, what is served, and errors in its form."""
import http.client
import json
import re

import pytest

from conftest import ROOT, Appliance, get

CASES = {c["name"]: c for c in json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"]}
CASE, TOOL = CASES["kv-cache"], CASES["tool-call"]
TURN = [{"role": "user", "content": "Once upon a time"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    a = Appliance(tmp_path_factory.mktemp("ollama"), ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]).start().ready()
    yield a
    a.destroy()


def post(server, path, body, method="POST"):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def ask(server, path, status=200, **body):
    answer, text = post(server, path, {"model": "tiny", **body})
    assert answer.status == status, text
    return json.loads(text), [f for f in (answer.headers.get("X-Ignored-Fields") or "").split(", ") if f]


def lines(server, path, **body):
    answer, text = post(server, path, {"model": "tiny", **body})
    assert answer.status == 200 and answer.headers["Content-Type"] == "application/x-ndjson" and text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_chat(server):
    options = {"temperature": 0, "num_predict": 160}
    whole, ignored = ask(server, "/api/chat", messages=CASE["messages"], stream=False, options={**options, "num_ctx": 2048}, keep_alive="5m")
    assert whole["message"] == {"role": "assistant", "content": CASE["output_text"]} and sorted(ignored) == ["keep_alive", "options.num_ctx"]
    assert whole["done"] is True and whole["done_reason"] == "stop" and whole["model"] == "tiny"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", whole["created_at"])
    assert whole["prompt_eval_count"] > 3 and whole["eval_count"] > 3
    assert whole["total_duration"] >= whole["eval_duration"] + whole["prompt_eval_duration"] > 0
    parts = lines(server, "/api/chat", messages=CASE["messages"], options=options)  # a stream unless it says otherwise
    assert "".join(p["message"]["content"] for p in parts) == CASE["output_text"] and len(parts) > 5
    assert [p["done"] for p in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1]["eval_count"] == whole["eval_count"] and parts[-1]["done_reason"] == "stop"
    cut = ask(server, "/api/chat", messages=CASE["messages"], stream=False, options={**options, "num_predict": 3})[0]
    assert cut["done_reason"] == "length" and cut["eval_count"] == 3
    assert ask(server, "/api/chat", messages=CASE["messages"], stream=False, options={**options, "stop": ["cache"]})[0]["message"]["content"] \
        == CASE["output_text"].split("cache")[0]
    tagged = ask(server, "/api/chat", model="tiny:latest", messages=CASE["messages"], stream=False, options=options)[0]
    assert tagged["message"]["content"] == CASE["output_text"]


def test_the_same_as_a_chat(server):
    status, text = get(server.port, "/v1/models")
    assert status == 200
    body = {"model": "tiny", "messages": CASE["messages"], "max_tokens": 40, "seed": 7, "temperature": 1, "top_k": 20, "repetition_penalty": 1.1}
    theirs = json.loads(post(server, "/v1/chat/completions", body)[1])["choices"][0]["message"]["content"]
    ours = ask(server, "/api/chat", messages=CASE["messages"], stream=False,
               options={"num_predict": 40, "seed": 7, "temperature": 1, "top_k": 20, "repeat_penalty": 1.1})[0]
    assert ours["message"]["content"] == theirs


def test_generate(server):
    how = {"stream": False, "options": {"temperature": 0, "num_predict": 30}}
    said = ask(server, "/api/generate", prompt=CASE["messages"][-1]["content"], system=CASE["messages"][0]["content"], **how)[0]
    chat = ask(server, "/api/chat", messages=[CASE["messages"][0], CASE["messages"][-1]], **how)[0]
    assert said["response"] == chat["message"]["content"] and said["done"] and "message" not in said
    raw = ask(server, "/api/generate", prompt="Once upon a time", raw=True, **how)[0]["response"]
    plain = json.loads(post(server, "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0})[1])
    assert raw == plain["choices"][0]["text"] != said["response"]
    parts = lines(server, "/api/generate", prompt="Once upon a time", raw=True, options=how["options"])
    assert "".join(p["response"] for p in parts) == raw and parts[-1]["done"]


def test_load(server):
    for path, body, field in (("/api/generate", {}, "response"), ("/api/generate", {"prompt": "", "keep_alive": "10s"}, "response"),
                              ("/api/chat", {"messages": []}, "message")):
        got = ask(server, path, **body)[0]
        assert got["done"] and got["done_reason"] == "load" and field in got
        assert got["model"] == "tiny" and ask(server, path, **{**body, "model": "tiny:latest", "keep_alive": "5m"})[0]["model"] == "tiny:latest"
    assert ask(server, "/api/generate", 404, model="other")[0]["error"].startswith("The model `other` does not exist")


@pytest.mark.parametrize("zero", [0, "0", "0s"])
def test_unload(server, zero):
    """As Ollama says it; the model stays."""
    for path, body in (("/api/generate", {}), ("/api/chat", {"messages": []})):
        assert ask(server, path, keep_alive=zero, **body)[0]["done_reason"] == "unload"
    assert ask(server, "/api/chat", messages=TURN, keep_alive=zero, stream=False, options={"num_predict": 2})[0]["eval_count"] == 2


@pytest.mark.parametrize("path, body", [("/api/generate", {"prompt": "Once upon a time", "raw": True}), ("/v1/completions", {"prompt": "Once upon a time"})])
def test_no_seed(server, path, body):
    """-1 is by chance; any other number, below it too, is a seed."""
    def said(seed):
        if path.startswith("/v1"):
            return json.loads(post(server, path, {"max_tokens": 40, "temperature": 2, "seed": seed, **body})[1])["choices"][0]["text"]
        return ask(server, path, stream=False, options={"num_predict": 40, "temperature": 2, "seed": seed}, **body)[0]["response"]
    assert len({said(-1) for _ in range(8)}) > 4 and said(-2) == said(-2)


@pytest.mark.parametrize("stream", [False, True])
def test_tools(server, stream):
    how = {"messages": TOOL["messages"], "tools": TOOL["tools"], "options": {"temperature": 0, "num_predict": 160}}
    parts = lines(server, "/api/chat", **how) if stream else [ask(server, "/api/chat", stream=False, **how)[0]]
    calls = [c for p in parts for c in p["message"].get("tool_calls", [])]
    assert [c["function"]["name"] for c in calls] == ["get_weather"] and isinstance(calls[0]["function"]["arguments"], dict)
    assert calls[0]["function"]["arguments"] and parts[-1]["done_reason"] == "stop"
    again = [*TOOL["messages"], {"role": "assistant", "content": "", "tool_calls": calls},
             {"role": "tool", "tool_name": "get_weather", "content": "rain"}]
    assert ask(server, "/api/chat", messages=again, stream=False, options={"num_predict": 5})[0]["message"]["role"] == "assistant"
    assert ask(server, "/api/chat", messages=TURN, tools=[], stream=False, options={"num_predict": 3})[0]["done"]


def test_format(server):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"]}
    for path, body in (("/api/chat", {"messages": TURN}), ("/api/generate", {"prompt": "Once"})):
        got = ask(server, path, stream=False, format=schema, options={"num_predict": 60, "temperature": 1.5, "seed": 3}, **body)[0]
        value = json.loads(got["message"]["content"] if "message" in got else got["response"])
        assert list(value) == ["n"] and 1 <= value["n"] <= 9
        assert isinstance(json.loads("".join(p["message"]["content"] if "message" in p else p["response"] for p in lines(
            server, path, format="json", options={"num_predict": 60}, **body))), dict)


def test_logprobs(server):
    got = ask(server, "/api/chat", messages=TURN, stream=False, logprobs=True, top_logprobs=2, options={"num_predict": 4, "temperature": 0})[0]
    assert len(got["logprobs"]) == got["eval_count"] and all(len(e["top_logprobs"]) == 2 and e["logprob"] <= 0 for e in got["logprobs"])
    raw = ask(server, "/api/generate", prompt="Once", raw=True, stream=False, logprobs=True, options={"num_predict": 4, "temperature": 0})[0]
    assert len(raw["logprobs"]) == 4 and "".join(e["token"] for e in raw["logprobs"]) == raw["response"]
    for body in ({"raw": True}, {}):
        assert "logprobs" in ask(server, "/api/generate", 400, prompt="Once", logprobs=1, **body)[0]["error"]
    parts = lines(server, "/api/chat", messages=TURN, logprobs=True, options={"num_predict": 4, "temperature": 0})
    assert [e["token"] for p in parts for e in p.get("logprobs", [])] == [e["token"] for e in got["logprobs"]]


@pytest.mark.parametrize("path, body, word", [
    ("/api/chat", {"messages": TURN, "options": {"mirostat": 2}}, "mirostat"), ("/api/chat", {"messages": TURN, "options": 3}, "options"),
    ("/api/chat", {"messages": TURN, "options": {"temperature": "hot"}}, "temperature"), ("/api/chat", {"messages": TURN, "think": True}, "think"),
    ("/api/chat", {"messages": TURN, "think": "high"}, "does not support thinking"), ("/api/chat", {"messages": TURN, "think": "minimal"}, "`think` must be"),
    ("/api/chat", {"messages": [{**TURN[0], "images": ["aGk="]}]}, "images"), ("/api/chat", {"messages": TURN, "format": 5}, "format"),
    ("/api/generate", {"prompt": "x", "images": ["aGk="]}, "images"), ("/api/generate", {"prompt": "x", "suffix": "y"}, "suffix"),
    ("/api/generate", {"prompt": "x", "context": [1, 2]}, "context"), ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
    ("/api/generate", {"prompt": "x", "raw": True, "system": "s"}, "system"), ("/api/generate", {"prompt": 5}, "prompt"),
    ("/api/chat", {"messages": [{"role": "user", "content": "word " * 9000}]}, "context length"),
])
def test_refused(server, path, body, word):
    assert word in ask(server, path, 400, **body)[0]["error"]
    assert word in ask(server, path, 400, stream=False, **body)[0]["error"]


def test_think_is_passed_on(server):
    """A model that does not think may be told so."""
    assert ask(server, "/api/chat", messages=TURN, think=False, stream=False, options={"num_predict": 3})[0]["eval_count"] == 3


def test_errors_in_its_form(server):
    for method, path, body, status in (("POST", "/api/chat", {"model": "no", "messages": TURN}, 404), ("POST", "/api/pull", {"model": "x"}, 404),
                                       ("GET", "/api/chat", None, 405), ("POST", "/api/show", {"model": "no"}, 404)):
        answer, text = post(server, path, body, method)
        assert answer.status == status and isinstance(json.loads(text)["error"], str), text
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/api/chat", "{", {"Content-Type": "application/json"})
    assert isinstance(json.loads(connection.getresponse().read())["error"], str)


@pytest.mark.parametrize("headers, status", [({}, 200), ({"Origin": "http://localhost"}, 400), ({"Content-Type": "text/plain"}, 400)])
def test_no_content_type(server, headers, status):
    """Some of its clients send none; a page of another site that does so has an Origin."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/api/chat", json.dumps({"model": "tiny", "messages": TURN, "options": {"num_predict": 2}}), headers)
    answer = connection.getresponse()
    assert answer.status == status and (status == 200 or "Content-Type" in json.loads(answer.read())["error"])


def test_embed(server):
    texts = ["Once upon a time", "a bear lived"]
    got = ask(server, "/api/embed", input=texts)[0]
    theirs = json.loads(post(server, "/v1/embeddings", {"input": texts})[1])
    assert got["embeddings"] == [d["embedding"] for d in theirs["data"]] and got["prompt_eval_count"] == theirs["usage"]["prompt_tokens"]
    assert ask(server, "/api/embed", input=texts[0])[0]["embeddings"] == got["embeddings"][:1]


def test_what_is_served(server):
    tags = json.loads(get(server.port, "/api/tags")[1])["models"]
    assert [m["model"] for m in tags] == ["tiny"] and tags[0]["name"] == "tiny" and tags[0]["size"] > 1000
    assert tags[0]["details"]["format"] == "safetensors" and tags[0]["details"]["family"] and re.fullmatch("[0-9a-f]{64}", tags[0]["digest"])
    assert [m["model"] for m in json.loads(get(server.port, "/api/ps")[1])["models"]] == ["tiny"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", json.loads(get(server.port, "/api/version")[1])["version"])
    for body in ({"model": "tiny"}, {"name": "tiny:latest", "verbose": False}):
        show = json.loads(post(server, "/api/show", body)[1])
        assert show["capabilities"] == ["completion", "tools"] and show["details"] == tags[0]["details"]
        family = show["model_info"]["general.architecture"]
        assert show["model_info"][f"{family}.context_length"] >= 1024 and show["model_info"]["general.parameter_count"] > 1000
