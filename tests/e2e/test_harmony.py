"""Protects: what gpt-oss thinks, says and calls reaches the client apart, whole and in pieces, in all forms of the API."""
import json
import subprocess

import openai
import pytest

from conftest import BUILD, MODEL, free_port, get, wait_for
from harmony_model import make_model
from test_bad_input import post, server

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
HELLO = [{"role": "user", "content": "What is two and two?"}]
WEATHER = [{"role": "user", "content": "How is the weather?"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """No parser is named: the tokenizer has the marks."""
    run, port = tmp_path_factory.mktemp("harmony"), free_port(18000)
    model = make_model(run / "gpt-oss-hand")
    with open(run / "server.log", "w") as log:
        process = subprocess.Popen([BUILD / "evenkeel-server", "--model", model, "--served-model-name", "hand",
                                    "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024",
                                    "--control-socket", run / "control.sock"], stdout=log, stderr=log)
    try:
        wait_for("server ready", lambda: get(port, "/health")[0] == 200, 60)
        yield port
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def client(served):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{served}/v1", api_key="none", max_retries=0)


def ask(client, messages, **more):
    return client.chat.completions.create(model="hand", messages=messages, temperature=0, max_tokens=80, **more)


def parts(chunks):
    """Thinking, text, calls and why it ended, put together again."""
    thought, text, calls, finish = "", "", {}, None
    for chunk in chunks:
        choice = chunk.choices[0]
        thought += getattr(choice.delta, "reasoning", None) or ""
        text += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            one = calls.setdefault(call.index, ["", ""])
            one[0] += call.function.name or ""
            one[1] += call.function.arguments or ""
        finish = choice.finish_reason or finish
    return thought, text, [tuple(c) for c in calls.values()], finish


def test_thinking_and_answer(client):
    choice = ask(client, HELLO).choices[0]
    assert (choice.message.reasoning, choice.message.content) == ("Hm, well.", "It is four: <4>")
    assert choice.finish_reason == "stop" and choice.message.tool_calls is None
    assert parts(ask(client, HELLO, stream=True)) == ("Hm, well.", "It is four: <4>", [], "stop")


def test_a_call(client):
    choice = ask(client, WEATHER, tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.reasoning == "Hm, well."
    assert choice.message.content is None
    call = choice.message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Graz"})
    assert parts(ask(client, WEATHER, tools=TOOLS, stream=True)) == (
        "Hm, well.", "", [("get_weather", '{"city": "Graz"}')], "tool_calls")
    # nobody offered it: nothing of it is shown as the answer
    alone = ask(client, WEATHER).choices[0]
    assert alone.message.content is None and alone.message.tool_calls is None and alone.finish_reason == "stop"


def test_the_turn_after_a_call(served, client):
    message = ask(client, WEATHER, tools=TOOLS).choices[0].message
    turns = WEATHER + [message.model_dump(exclude_none=True),
                       {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12"}]
    status, body = post(served, "/tokenize", {"messages": turns, "return_token_strs": True})
    assert status == 200, body
    text = "".join(json.loads(body)["token_strs"])
    assert text.endswith('<|start|>assistant<|channel|>analysis<|message|>Hm, well.<|end|>'
                         '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>'
                         '{"city": "Graz"}<|call|><|start|>functions.get_weather to=assistant<|channel|>commentary'
                         '<|message|>"12"<|end|><|start|>assistant')


def test_a_certain_call(client):
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        message = ask(client, HELLO, tools=TOOLS, tool_choice=choice).choices[0].message
        assert message.tool_calls[0].function.name == "get_weather"
        assert set(json.loads(message.tool_calls[0].function.arguments)) == {"city"}


def test_a_form_is_the_final_message_s(client):
    """The thinking is free, the answer behind it is bound."""
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {
        "type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}}}
    message = ask(client, HELLO, response_format=form).choices[0].message
    assert message.reasoning == "Hm, well." and json.loads(message.content)["n"] in (1, 2)
    thought, text, _, finish = parts(ask(client, HELLO, response_format=form, stream=True))
    assert (thought, text, finish) == ("Hm, well.", message.content, "stop")


def test_effort(served, client):
    for more, words in (({}, "Reasoning: medium"), ({"chat_template_kwargs": {"reasoning_effort": "low"}}, "Reasoning: low")):
        status, body = post(served, "/tokenize", {"messages": HELLO, "return_token_strs": True, **more})
        assert status == 200 and words in "".join(json.loads(body)["token_strs"])
    assert ask(client, HELLO, reasoning_effort="high").choices[0].message.content == "It is four: <4>"
    with pytest.raises(openai.BadRequestError, match="always thinks"):
        ask(client, HELLO, reasoning_effort="none")


def test_responses(client):
    answer = client.responses.create(model="hand", input="What is two and two?", temperature=0, reasoning={"effort": "low"})
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output_text == "It is four: <4>"
    tool = {"type": "function", "name": "get_weather", "parameters": TOOLS[0]["function"]["parameters"]}
    answer = client.responses.create(model="hand", input="How is the weather?", temperature=0, tools=[tool])
    assert [item.type for item in answer.output] == ["reasoning", "function_call"]
    assert json.loads(answer.output[1].arguments) == {"city": "Graz"}


def test_parsers_named_for_another_model():
    for flag in (["--reasoning-parser", "openai_gptoss"], ["--tool-call-parser", "openai", "--enable-auto-tool-choice"]):
        done = server("--model", MODEL, *flag)
        assert done.returncode == 78 and "is for gpt-oss" in done.stderr and "<|start|>" in done.stderr
