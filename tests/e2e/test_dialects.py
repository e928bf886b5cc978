"""Protects: no field of any known dialect is dropped in silence. Each is honoured, refused with 400, or accepted and named in the answer's
X-Ignored-Fields, on each interface alike; what becomes of which stands in tests/fixtures/dialects.json."""
import http.client
import json
import re

import pytest

from conftest import ROOT, get

DIALECTS = json.loads((ROOT / "tests/fixtures/dialects.json").read_text())
TURN = [{"role": "user", "content": "Once upon a time there was a bear"}]
APIS = {"chat": ("/v1/chat/completions", {"messages": TURN}), "completions": ("/v1/completions", {"prompt": TURN[0]["content"]}),
        "responses": ("/v1/responses", {"input": TURN[0]["content"]}), "messages": ("/v1/messages", {"messages": TURN}),
        "ollama": ("/api/chat", {"messages": TURN, "stream": False}), "generate": ("/api/generate", {"prompt": TURN[0]["content"], "stream": False})}
LIMITS = {"chat": "max_tokens", "completions": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens",
          "ollama": "max_tokens", "generate": "max_tokens"}


def ask(server, api, **more):
    path, base = APIS[api]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, json.dumps({**base, "temperature": 0, **more}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    body = json.loads(answer.read())
    ignored = answer.headers.get("X-Ignored-Fields") or ""
    connection.close()
    return answer.status, body, [f for f in ignored.split(", ") if f]


def text_of(api, body):
    if api == "chat":
        return body["choices"][0]["message"]["content"]
    if api == "ollama":
        return body["message"]["content"]
    if api == "generate":
        return body["response"]
    if api == "completions":
        return body["choices"][0]["text"]
    if api == "responses":
        return "".join(p["text"] for i in body["output"] if i["type"] == "message" for p in i["content"])
    return "".join(b["text"] for b in body["content"])


def error_of(body):
    return body["error"] if isinstance(body["error"], str) else body["error"].get("message")


def tokens_of(body):
    return body["eval_count"] if "eval_count" in body else body["usage"].get("completion_tokens", body["usage"].get("output_tokens"))


def is_form(kind, text):
    if kind == "choice":
        return text in ("yes", "no")
    if kind == "regex":
        return re.fullmatch("[0-9]{3}", text) is not None
    value = json.loads(text)
    return list(value) == ["n"] and 1 <= value["n"] <= 9 if kind == "schema" else isinstance(value, dict)


@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_every_field(shared, dialect):
    for name, cases in DIALECTS[dialect].items():
        for case in cases:
            value, fate = case["value"], case["fate"]
            for api in case.get("on", APIS):
                limit = {} if fate == "limit" and api != "messages" or name == LIMITS[api] else {LIMITS[api]: 30}
                status, body, ignored = ask(shared, api, **{**limit, name: value})
                what = (dialect, api, name, value, status, body, ignored)
                assert status == (400 if fate == "refused" else 200), what
                if fate == "refused":
                    assert error_of(body), what
                    continue
                assert (name in ignored) == (fate == "free"), what
                text = text_of(api, body)
                if fate == "form":
                    assert is_form(case["is"], text), what
                elif fate == "limit":
                    assert tokens_of(body) <= 7, what
                elif fate == "stop":
                    assert "a" not in text, what


def test_every_row_has_its_case(shared):
    """What the server says of itself, but for the fields that other tests of the interfaces are about."""
    own = {"model", "messages", "prompt", "input", "instructions", "system", "tools", "tool_choice", "parallel_tool_calls", "stream",
           "stream_options", "include_reasoning", "chat_template_kwargs", "reasoning_effort", "reasoning", "documents", "add_generation_prompt",
           "continue_final_message", "add_special_tokens", "max_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "echo",
           "return_token_ids", "return_tokens_as_token_ids", "finish_form", "include", "suffix", "raw", "system",
           "input_prefix", "input_suffix", "input_extra"}
    known = {name for fields in DIALECTS.values() for name in fields}
    schemas = json.loads(get(shared.port, "/openapi.json")[1])["components"]["schemas"]
    for form in ("Chat", "Completion", "Response", "Message", "OllamaChat", "OllamaGenerate", "Infill"):
        left = set(schemas[form + "Request"]["properties"]) - known - own
        assert not left, f"{form}: {left}: what becomes of them in other dialects?"


def test_the_list_is_bounded_and_harmless(shared):
    status, _, ignored = ask(shared, "chat", max_tokens=1, **{f"field_{i:03}": 1 for i in range(100)})
    assert status == 200 and ignored[-1] == "..." and len(", ".join(ignored)) < 256 and ignored[0] == "field_000"
    assert ask(shared, "chat", max_tokens=1, **{"a\r\nSet-Cookie: x": 1})[2] == ["..."]
    assert ask(shared, "chat", max_tokens=1, junk=None)[2] == []


def test_a_stream_tells_it_too(shared):
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=60)
    connection.request("POST", "/v1/messages", json.dumps({"messages": TURN, "max_tokens": 3, "stream": True, "speed": "fast"}),
                       {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    assert answer.headers["X-Ignored-Fields"] == "speed"
    connection.close()


def test_the_same_form_twice(shared):
    grammar = 'root ::= "yes" | "no"'
    for api in APIS:
        status, body, _ = ask(shared, api, **{LIMITS[api]: 30}, guided_grammar=grammar, structured_outputs={"grammar": grammar})
        assert status == 200 and text_of(api, body) in ("yes", "no")
        status, body, _ = ask(shared, api, **{LIMITS[api]: 30}, guided_grammar=grammar, guided_regex="a")
        assert status == 400 and "both" in error_of(body)


def test_which_end_is_cut(shared):
    """vLLM's truncation_side: the last tokens stay, or the first."""
    text = "Once upon a time, there lived a fox named Zoe near the river."
    ids = ask(shared, "completions", prompt=text, max_tokens=1, return_token_ids=True)[1]["choices"][0]["prompt_token_ids"]
    for more, kept in ({}, ids[-4:]), ({"truncation_side": "left"}, ids[-4:]), ({"truncation_side": "right"}, ids[:4]):
        body = ask(shared, "completions", prompt=text, max_tokens=1, return_token_ids=True, truncate_prompt_tokens=4, **more)[1]
        assert body["choices"][0]["prompt_token_ids"] == kept, more
    assert ask(shared, "completions", prompt=text, max_tokens=1, truncation_side="right")[1]["usage"]["prompt_tokens"] == len(ids)


def test_what_the_template_made(shared):
    """vLLM's return_prompt_text, in an answer and in the first chunk of a stream."""
    turn, want = [{"role": "user", "content": 'Hi "Zoe"'}], '<|im_start|>user\nHi "Zoe"<|im_end|>\n<|im_start|>assistant\n'
    assert ask(shared, "chat", messages=turn, max_tokens=1, return_prompt_text=True)[1]["prompt_text"] == want
    assert ask(shared, "chat", messages=turn, max_tokens=1)[1]["prompt_text"] is None
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps({"messages": turn, "max_tokens": 2, "stream": True, "return_prompt_text": True}),
                       {"Content-Type": "application/json"})
    chunks = [json.loads(line[6:]) for line in connection.getresponse().read().decode().splitlines() if line.startswith("data: {")]
    connection.close()
    assert [c.get("prompt_text") for c in chunks] == [want] + [None] * (len(chunks) - 1)
