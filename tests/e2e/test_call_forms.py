"""Protects: calls that a model wrote in a form of its own reach the client whole, as one answer and in a stream, with the id that the model gave them where it gives one."""
import json
import subprocess
import urllib.request

import pytest

from conftest import BUILD, MODEL, free_port, get, wait_for

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}}},
         {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}]
CALL, ARGS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
# What the model writes, the text of the answer, its calls (name, arguments) and the ids of those that have one.
FORMS = {
    "kimi_k2": (f'Well.<|tool_calls_section_begin|>{CALL}functions.f:4{ARGS}{{"n": 1}}{END}{CALL}functions.g:5{ARGS}{{}}{END}{CALL}functions.g:5{ARGS}{{}}{END}'
                "<|tool_calls_section_end|>", "Well.", [("f", {"n": 1}), ("g", {}), ("g", {})], ["functions.f:4", "functions.g:5", "functions.g:2"]),
    "minimax_m2": ('Well.<minimax:tool_call>\n<invoke name="f">\n<parameter name="s">12</parameter>\n<parameter name="n">12</parameter>\n</invoke>\n'
                   '<invoke name="g">\n</invoke>\n</minimax:tool_call>', "Well.", [("f", {"s": "12", "n": 12}), ("g", {})], [None, None]),
    "hy_v3": ("Well.<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>s</arg_key:opensource>\n"
              "<arg_value:opensource>12</arg_value:opensource>\n<arg_key:opensource>n</arg_key:opensource>\n<arg_value:opensource>12</arg_value:opensource>\n"
              "</tool_call:opensource>\n<tool_call:opensource>g<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>", "Well.",
              [("f", {"s": "12", "n": 12}), ("g", {})], [None, None]),
}


def ask(port, written, stream):
    """(text, [(id, name, arguments)]) of an answer that is bound to what is `written`."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "max_tokens": 400, "temperature": 0, "stream": stream,
            "structured_outputs": {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": written}}}}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    if not stream:
        message = json.loads(text)["choices"][0]["message"]
        return message["content"], [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]
    said, calls = "", {}
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            said += choice["delta"].get("content") or ""
            for c in choice["delta"].get("tool_calls") or []:
                one = calls.setdefault(c["index"], [None, None, ""])
                one[0], one[1] = c.get("id") or one[0], c["function"].get("name") or one[1]
                one[2] += c["function"].get("arguments") or ""
    return said, [tuple(calls[i]) for i in sorted(calls)]


def test_kimis_ids_count_calls_that_must_be_made():
    """They are written as Hermes does, but the template shows Kimi's ids again, numbered through the conversation."""
    port = free_port(31300)
    process = subprocess.Popen([BUILD / "evenkeel-server", "--model", MODEL, "--served-model-name", "m", "--device", "cpu", "--port", str(port), "--max-num-seqs", "4",
                                "--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    past = [{"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [{"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "functions.f:0", "content": "1"}]
    try:
        wait_for("ready", lambda: process.poll() is None and get(port, "/health")[0] == 200, 60)
        for messages, want in ((past[:1], "functions.g:0"), (past, "functions.g:1")):
            body = {"model": "m", "messages": messages, "tools": TOOLS, "max_tokens": 200, "temperature": 0, "tool_choice": {"type": "function", "function": {"name": "g"}}}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                calls = json.loads(answer.read())["choices"][0]["message"]["tool_calls"]
            assert [c["id"] for c in calls] == [want]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("parser", FORMS)
def test_calls_reach_the_client(parser):
    written, text, want, ids = FORMS[parser]
    port = free_port(31300)
    process = subprocess.Popen([BUILD / "evenkeel-server", "--model", MODEL, "--served-model-name", "m", "--device", "cpu", "--port", str(port), "--max-num-seqs", "4",
                                "--enable-auto-tool-choice", "--tool-call-parser", parser], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("ready", lambda: process.poll() is None and get(port, "/health")[0] == 200, 60)
        for stream in (False, True):
            said, calls = ask(port, written, stream)
            assert said == text and [(name, json.loads(args)) for _, name, args in calls] == want, (said, calls)
            assert len({i for i, _, _ in calls}) == len(calls)  # an id names one call
            for got, own in zip(calls, ids):
                assert got[0] == own if own else got[0].startswith("chatcmpl-tool-"), calls
    finally:
        process.kill()
        process.wait()
