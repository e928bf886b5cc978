"""Protects: tool calls and thinking reach the client in the shapes of the official client, in pieces where it streams."""
import json

import openai
import pytest

from conftest import Appliance, ROOT

CASE = {c["name"]: c for c in json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"]}["tool-call"]


def serve(tmp_path_factory, *flags):
    a = Appliance(tmp_path_factory.mktemp("tools"), flags).start().ready()
    return a, openai.OpenAI(base_url=f"http://127.0.0.1:{a.port}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def hermes(tmp_path_factory):
    a, client = serve(tmp_path_factory, "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "deepseek_r1")
    yield client
    a.destroy()


def ask(client, **more):
    return client.chat.completions.create(model="tiny", messages=CASE["messages"], tools=CASE["tools"], temperature=0, **more)


def test_arguments_come_in_pieces(hermes):
    # the model does not think: the template's end of the prompt is told so
    whole = ask(hermes, extra_body={"continue_final_message": False})
    message = whole.choices[0].message
    if message.tool_calls is None:  # all of it went into the thinking, which never ended
        assert message.content is None and "<tool_call>" in message.reasoning
    chunks = list(ask(hermes, stream=True))
    thought = "".join(getattr(c.choices[0].delta, "reasoning", None) or "" for c in chunks)
    assert thought == message.reasoning
    hidden = ask(hermes, extra_body={"include_reasoning": False})
    assert hidden.choices[0].message.reasoning is None


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    a, client = serve(tmp_path_factory, "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    yield client
    a.destroy()


def streamed_call(client):
    name, arguments, pieces, finish = None, "", 0, None
    for chunk in ask(client, stream=True):
        delta = chunk.choices[0].delta
        finish = chunk.choices[0].finish_reason or finish
        for call in delta.tool_calls or []:
            assert call.index == 0
            name = call.function.name or name
            pieces += bool(call.function.arguments)
            arguments += call.function.arguments or ""
    return (name, arguments, finish), pieces


def test_calls_in_a_stream(plain):
    want = ask(plain).choices[0].message.tool_calls[0].function
    assert json.loads(want.arguments)
    most = 0  # how many tokens a chunk holds depends on who was faster
    for _ in range(40):
        got, pieces = streamed_call(plain)
        assert got == (want.name, want.arguments, "tool_calls")
        most = max(most, pieces)
        if most > 1:
            break
    assert most > 1


def test_stream_helper(plain):
    with plain.chat.completions.stream(model="tiny", messages=CASE["messages"], tools=CASE["tools"], temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert any(e.type == "tool_calls.function.arguments.delta" for e in events)
    assert final.choices[0].message.tool_calls[0].function.name == "get_weather"


def test_cut_off_arguments(plain):
    """max_tokens in the middle of a call: what there is of it, and finish_reason length."""
    full = ask(plain).usage.completion_tokens
    short = ask(plain, max_tokens=full - 4).choices[0]
    assert short.finish_reason == "length"


FORM = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": {
    "type": "object", "properties": {"text": {"type": "string", "maxLength": 30}, "sure": {"type": "boolean"}}, "required": ["text", "sure"],
    "additionalProperties": False}}}


def is_of_the_form(text):
    value = json.loads(text)
    return list(value) == ["text", "sure"] and isinstance(value["text"], str) and isinstance(value["sure"], bool)


def test_a_form_beside_tools_leaves_the_call(plain):
    """Agents send both: the model still calls, as without the form, and its answer to what the tool said has the form."""
    call = ask(plain, response_format=FORM).choices[0]
    want = ask(plain).choices[0].message.tool_calls[0].function
    assert call.finish_reason == "tool_calls" and call.message.content is None
    got = call.message.tool_calls[0].function
    assert (got.name, json.loads(got.arguments)) == (want.name, json.loads(want.arguments))
    after = CASE["messages"] + [call.message, {"role": "tool", "tool_call_id": call.message.tool_calls[0].id, "content": "rain"}]
    done = plain.chat.completions.create(model="tiny", messages=after, tools=CASE["tools"], tool_choice="none", response_format=FORM, temperature=0)
    assert is_of_the_form(done.choices[0].message.content)


@pytest.mark.parametrize("parser", ["hermes", "llama3_json", "mistral", "qwen3_coder", "pythonic"])
def test_a_call_or_the_form(parser, tmp_path_factory):
    """Whatever is drawn, in a stream or not, is one of the two; a call that must be made is one, whatever form is asked for."""
    a, client = serve(tmp_path_factory, "--enable-auto-tool-choice", "--tool-call-parser", parser)
    more = {"model": "tiny", "messages": CASE["messages"], "tools": CASE["tools"], "response_format": FORM, "max_tokens": 150}
    try:
        forms = 0
        for seed in range(12):
            whole = client.chat.completions.create(**more, temperature=1.5, seed=seed).choices[0]
            chunks = list(client.chat.completions.create(**more, temperature=1.5, seed=seed, stream=True))
            text = "".join(c.choices[0].delta.content or "" for c in chunks)
            calls = [t for c in chunks for t in c.choices[0].delta.tool_calls or []]
            assert text == (whole.message.content or ""), (text, whole)
            if whole.message.tool_calls:
                assert whole.finish_reason == "tool_calls" and not text, whole
                assert whole.message.tool_calls[0].function.name == CASE["tools"][0]["function"]["name"] == calls[0].function.name
                assert all(isinstance(json.loads(t.function.arguments), dict) for t in whole.message.tool_calls)
            else:
                assert not calls and whole.finish_reason == "stop" and is_of_the_form(text), whole
                forms += 1
        print(f"{parser}: {forms} of 12 answers are of the form")
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            forced = client.chat.completions.create(**more, temperature=0, tool_choice=choice).choices[0].message
            assert forced.tool_calls[0].function.name == "get_weather" and not forced.content
        assert is_of_the_form(client.chat.completions.create(**more, temperature=0, tool_choice="none").choices[0].message.content)
    finally:
        a.destroy()


def test_the_template_chooses(tmp_path_factory):
    """No flag is given: the template shows Hermes' calls and no thinking, and the server says so."""
    a, client = serve(tmp_path_factory)
    try:
        got = ask(client).choices[0]
        assert got.finish_reason == "tool_calls" and got.message.tool_calls[0].function.name == "get_weather"
        card = client.models.retrieve("tiny")
        assert (card.tool_call_parser, card.reasoning_parser) == ("hermes", "none")
        assert "tool calls hermes (by the chat template), thinking none" in (a.run / "server.log").read_text()
    finally:
        a.destroy()


def test_none_leaves_calls_in_the_text(tmp_path_factory):
    a, client = serve(tmp_path_factory, "--tool-call-parser", "none")
    try:
        got = ask(client).choices[0]
        assert not got.message.tool_calls and "<tool_call>" in got.message.content
    finally:
        a.destroy()


def test_an_unknown_parser_is_refused():
    from test_bad_input import server
    done = server("--model", "x", "--tool-call-parser", "nope")
    assert done.returncode == 2 and "hermes|llama3_json|mistral|qwen3_coder|pythonic" in done.stderr
