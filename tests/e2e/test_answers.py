"""Protects: /openapi.json says truly what is answered: each answer and event has what its schema says and nothing else, the page is valid
OpenAPI 3.1, and a client that a generator makes from it is typed and works."""
import http.client
import importlib
import json
import pathlib
import subprocess
import sys

import jsonschema
import pytest

from bare import Bare

TURN = [{"role": "user", "content": "x"}]
FUNCTION = {"name": "get_weather", "description": "x", "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}}}
CALL = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required", "max_tokens": 80}
ALL = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True}
ASKS = [
    ("/v1/chat/completions", {"messages": TURN, "max_tokens": 3}), ("/v1/chat/completions", {"messages": TURN, **CALL}),
    ("/v1/chat/completions", {"messages": TURN, "max_tokens": 3, **ALL}), ("/v1/chat/completions", {"messages": TURN, "max_tokens": 3, "prompt_logprobs": 1}),
    ("/v1/chat/completions", {"messages": [], "max_tokens": 3}), ("/v1/chat/completions", {"messages": TURN, "max_tokens": 2040, "stop": list("aeiou \n")}),
    ("/v1/chat/completions", {"messages": TURN, "max_tokens": 80, "tools": [{"type": "custom", "custom": {"name": "say"}}], "tool_choice": "required"}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 3}), ("/v1/completions", {"prompt": "a", "max_tokens": 3, "logprobs": 2, "prompt_logprobs": 1,
                                                                                  "return_token_ids": True, "echo": True}),
    ("/v1/responses", {"input": "x", "max_output_tokens": 3}), ("/v1/responses", {"input": "x", "max_output_tokens": 100000}),
    ("/v1/responses", {"input": "x", "tools": [{"type": "function", **FUNCTION}, {"type": "custom", "name": "say"}], "tool_choice": "required"}),
    ("/v1/responses", {"input": "x", "max_output_tokens": 3, "include": ["message.output_text.logprobs"], "top_logprobs": 1, "text": {"verbosity": "low"},
                       "reasoning": {"effort": "low"}, "metadata": {"a": "b"}, "instructions": "y"}), ("/v1/responses", {"input": 5}),
    ("/v1/responses/input_tokens", {"input": "x"}), ("/v1/messages", {"messages": TURN, "max_tokens": 3}), ("/v1/messages", {"messages": TURN}),
    ("/v1/messages", {"messages": TURN, "max_tokens": 100000, "tools": [{"name": "get_weather", "input_schema": FUNCTION["parameters"]}],
                      "tool_choice": {"type": "any"}}),
    ("/v1/messages/count_tokens", {"messages": TURN}), ("/v1/embeddings", {"input": ["x", "y"]}), ("/v1/embeddings", {"input": "x", "encoding_format": "base64"}),
    *[(p, {"query": "x", "documents": ["y"]}) for p in ("/rerank", "/v1/rerank", "/v2/rerank")],  # this model cannot; test_scores.py has some that can
    *[(p, {"text_1": "x", "text_2": "y", "input": "z"}) for p in ("/score", "/v1/score", "/classify", "/pooling")],
    ("/v1/chat/completions/render", {"messages": TURN}), ("/v1/completions/render", {"prompt": ["a", "b"]}), ("/invocations", {"prompt": "x", "max_tokens": 1}),
    ("/infill", {"input_prefix": "x", "input_suffix": "y"}),  # a model without marks; test_infill.py has one with them
    ("/tokenize", {"prompt": "x", "return_token_strs": True}), ("/tokenize", {"messages": TURN}), ("/detokenize", {"tokens": [5]}),
    ("/api/chat", {"messages": TURN, "stream": False, "logprobs": True, "options": {"num_predict": 3}}), ("/api/chat", {"model": "no", "messages": TURN}),
    ("/api/chat", {"messages": TURN, "stream": False, "tools": CALL["tools"], "tool_choice": "required", "max_tokens": 80}), ("/api/chat", {"messages": []}),
    ("/api/generate", {"prompt": "x", "stream": False, "options": {"num_predict": 3}}), ("/api/embed", {"input": "x"}), ("/api/show", {"model": "tiny"}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Bare(tmp_path_factory.mktemp("described"), "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--responses-store-bytes", 1 << 20, "--seed", 5)
    yield s
    s.stop()


@pytest.fixture(scope="module")
def description(server):
    return json.loads(server.ask("/openapi.json")[2])


def exact(schema):
    """The same schema, with nothing in an object that it does not name."""
    if isinstance(schema, list):
        return [exact(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    more = {"additionalProperties": False} if "properties" in schema and "additionalProperties" not in schema else {}
    return {**{k: exact(v) for k, v in schema.items()}, **more}


def check(description, schema, value):
    whole = {"$ref": "#/components/schemas/" + schema["$ref"].rsplit("/", 1)[1], "components": {"schemas": exact(description["components"]["schemas"])}}
    jsonschema.Draft202012Validator(whole).validate(value)


def hold(description, method, path, status, value, kind="application/json"):
    """An answer against what the description says of it."""
    about = description["paths"][path][method]["responses"]
    check(description, about[str(status) if str(status) in about else "default"]["content"][kind]["schema"], value)


def post(server, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    status, text = answer.status, answer.read().decode()
    connection.close()
    return status, text


def test_answers(server, description):
    seen = set()
    for path, body in ASKS:
        status, text = post(server, path, body)
        hold(description, "post", path, status, json.loads(text))
        seen.add(path)
    stored = json.loads(post(server, "/v1/responses", {"input": "x", "max_output_tokens": 3})[1])["id"]
    for path, methods in description["paths"].items():
        name = stored if path.startswith("/v1/responses/") else "tiny"
        for method in methods:
            if method != "post" and path != "/metrics" and not (method == "delete"):
                status, _, text = server.ask(path.replace("{name}", name))
                assert status == 200, path
                hold(description, method, path, status, json.loads(text))
    for status in (200, 404):
        got, _, text = server.ask(f"/v1/responses/{stored}", "DELETE")
        assert got == status
        hold(description, "delete", "/v1/responses/{name}", status, json.loads(text))
    posts = {p for p, m in description["paths"].items() if "post" in m}
    assert posts - seen == {"/ping"}, posts - seen


STREAMED = [(path, body) for path, body in ASKS if path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
            and body.get("messages") != [] and body.get("input") != 5 and "prompt_logprobs" not in body and (path != "/v1/messages" or "max_tokens" in body)]


@pytest.mark.parametrize("path, body", STREAMED)
def test_events(server, description, path, body):
    more = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}} if path.endswith("completions") else {}
    status, text = post(server, path, {**body, "stream": True, **more})
    events = [line[6:] for line in text.split("\n") if line.startswith("data: ") and line != "data: [DONE]"]
    assert status == 200 and len(events) > 1
    for event in events:
        hold(description, "post", path, 200, json.loads(event), "text/event-stream")


def test_it_is_valid_openapi(description):
    pytest.importorskip("openapi_spec_validator").validate(description)


@pytest.mark.long
def test_a_generated_client_is_typed(server, description, tmp_path, monkeypatch):
    pytest.importorskip("openapi_python_client")
    (tmp_path / "openapi.json").write_text(json.dumps(description))
    (tmp_path / "config.yml").write_text("package_name_override: made\nproject_name_override: made\npost_hooks: []\n")
    made = subprocess.run([sys.executable, "-m", "openapi_python_client", "generate", "--path", "openapi.json", "--config", "config.yml", "--meta", "none",
                           "--output-path", "made", "--fail-on-warning"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stdout + made.stderr
    monkeypatch.syspath_prepend(str(tmp_path))
    client = importlib.import_module("made").Client(base_url=f"http://127.0.0.1:{server.port}")
    models = importlib.import_module("made.models")
    calls = {p.stem: importlib.import_module(f"made.api.default.{p.stem}") for p in pathlib.Path(tmp_path, "made/api/default").glob("[a-z]*.py")}
    assert set(calls) == {m["operationId"] for p in description["paths"].values() for m in p.values()}
    chat = calls["create_chat_completion"].sync(client=client, body=models.ChatRequest.from_dict({"messages": TURN, "max_tokens": 3}))
    assert isinstance(chat, models.ChatCompletion) and isinstance(chat.choices[0].message, models.ChatAnswer) and chat.usage.completion_tokens == 3
    made = calls["create_response"].sync(client=client, body=models.ResponseRequest.from_dict({"input": "x", "max_output_tokens": 3}))
    assert isinstance(made, models.ResponseObject) and isinstance(made.output[0], models.OutputItem)
    assert calls["retrieve_response"].sync(made.id, client=client) == made
    assert calls["list_models"].sync(client=client).data[0].id == "tiny"
    wrong = calls["create_chat_completion"].sync(client=client, body=models.ChatRequest.from_dict({"messages": []}))
    assert isinstance(wrong, models.Error) and wrong.error.param == "messages"
