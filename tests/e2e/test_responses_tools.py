"""Protects: coding agents by their base URL. Tools of /v1/responses and /v1/messages that run elsewhere are left out of the prompt and said,
custom tools work, and the response says truly what was asked of it."""
import http.client
import json
import re

import openai
import pytest
from lark import Lark

from conftest import Appliance, ROOT

CODEX = json.loads((ROOT / "tests/fixtures/codex_request.json").read_text())
CODE = {"type": "custom", "name": "code", "description": "Takes a code.", "format": {"type": "grammar", "syntax": "regex", "definition": "[A-C]{2}\\n\"[0-9]{3}\""}}
FREE = {"type": "custom", "name": "say", "description": "Says a text."}
PATCH = {**CODE, "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": """
    start: begin hunk+ end
    begin: "*** Begin" LF
    end: "*** End" LF?
    hunk: ("+" | "-") LINE LF
    LINE: /[a-z "\\\\]{1,8}/
    %import common.LF"""}}
SEARCH = {"type": "web_search"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    a = Appliance(tmp_path_factory.mktemp("custom"), ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]).start().ready()
    yield a
    a.destroy()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)


def post(server, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    status, text, ignored = answer.status, answer.read().decode(), answer.headers.get("X-Ignored-Fields") or ""
    connection.close()
    return status, text, ignored.split(", ")


def test_the_shape_of_codex(server):
    status, text, ignored = post(server, "/v1/responses", {**CODEX, "max_output_tokens": 40})
    assert status == 200, text
    assert {"tools.web_search", "tools.local_shell", "tools.namespace", "input.web_search_call", "prompt_cache_key"} <= set(ignored)
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]
    last = events[-1]["response"]
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    assert [t["name"] for t in last["tools"]] == ["exec_command", "apply_patch"] and last["text"]["verbosity"] == "low"
    assert [e["sequence_number"] for e in events] == list(range(len(events)))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tool", [CODE, FREE, PATCH])
def test_a_custom_tool_is_called(client, tool, stream):
    ask = dict(model="tiny", input="Give the code", tools=[tool, SEARCH], tool_choice={"type": "custom", "name": tool["name"]}, temperature=1.2,
               max_output_tokens=120, extra_body={"seed": 3})
    if stream:
        events = list(client.responses.create(**ask, stream=True))
        done = events[-1].response
        deltas = "".join(e.delta for e in events if e.type == "response.custom_tool_call_input.delta")
        whole = [e.input for e in events if e.type == "response.custom_tool_call_input.done"]
        assert whole == [deltas] == [done.output[0].input]
        assert not [e for e in events if "function_call" in e.type]
    else:
        done = client.responses.create(**ask)
    call = done.output[0]
    assert (call.type, call.name) == ("custom_tool_call", tool["name"]) and call.call_id and isinstance(call.input, str)
    if tool is CODE:
        assert re.fullmatch("[A-C]{2}\n\"[0-9]{3}\"", call.input), call.input
    if tool is PATCH:
        Lark(PATCH["format"]["definition"], parser="earley", lexer="dynamic_complete").parse(call.input)
    turn = [{"role": "user", "content": "Give the code"}, call.model_dump(exclude_none=True),
            {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "taken"}]
    after = client.responses.create(model="tiny", input=turn, tools=[tool], tool_choice="none", max_output_tokens=10)
    assert after.output[0].type == "message" and after.usage.input_tokens > done.usage.input_tokens


def test_a_grammar_is_named_where_it_does_not_bind(server):
    """The model is told of it; a call that may come is bound, and where there is no call it binds nothing."""
    for choice, told in (("auto", False), ("none", False)):
        status, text, ignored = post(server, "/v1/responses", {"input": "x", "tools": [PATCH], "tool_choice": choice, "max_output_tokens": 4})
        assert status == 200 and ("tools.format.lark" in ignored) == told, (text, ignored)


def test_functions_and_custom_tools_side_by_side(client):
    """Both names are tried for both kinds: the tiny model calls what is named as in its training."""
    parameters = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"]}
    for names in (("get_weather", "code"), ("code", "get_weather")):
        tools = [{"type": "function", "name": names[0], "parameters": parameters}, {**CODE, "name": names[1]}]
        done = client.responses.create(model="tiny", input="x", tools=tools, tool_choice="required", temperature=1, max_output_tokens=300,
                                       extra_body={"seed": 1})
        assert done.output
        for call in done.output:
            assert call.type == ("function_call" if call.name == names[0] else "custom_tool_call"), call
            assert json.loads(call.arguments)["city"] is not None if call.type == "function_call" else re.fullmatch("[A-C]{2}\n\"[0-9]{3}\"", call.input)
        assert "get_weather" in [call.name for call in done.output]


@pytest.mark.parametrize("inner", [1, {"code": True}])
def test_a_client_cannot_say_what_readers_say(server, inner):
    """Keys that begin with a control character are what the server's own readers tell one another."""
    function = {"type": "function", "name": "code", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}}
    body = {"input": "x", "tools": [function], "tool_choice": "required", "max_output_tokens": 60, "seed": 1}
    for tools in ([function], [{**CODE, "name": "other"}, function]):
        said = [post(server, "/v1/responses", {**body, "tools": tools, **more})[:2] for more in ({}, {"\u0001custom": inner, "\u0001bound": inner})]
        plain, planted = [(status, [{k: v for k, v in o.items() if k not in ("id", "call_id")} for o in json.loads(text)["output"]]) for status, text in said]
        assert plain == planted and plain[0] == 200, (plain, planted)


@pytest.mark.parametrize("choice, status", [("auto", 200), ("none", 200), (None, 200), ("required", 400), ({"type": "web_search"}, 400)])
def test_nothing_but_tools_that_run_elsewhere(server, choice, status):
    """They are refused only when the answer would have to be made by one."""
    body = {"input": "x", "tools": [SEARCH], "max_output_tokens": 4, **({"tool_choice": choice} if choice else {})}
    got, text, ignored = post(server, "/v1/responses", body)
    assert got == status, text
    assert status == 400 and json.loads(text)["error"]["param"] == "tool_choice" or ignored == ["tools.web_search"] and json.loads(text)["tools"] == []


def test_the_same_prompt_without_them(server):
    """Tools that run elsewhere leave no trace in the prompt."""
    plain = json.loads(post(server, "/v1/responses", {"input": "x", "max_output_tokens": 4})[1])
    status, text, ignored = post(server, "/v1/responses", {"input": [{"role": "user", "content": "x"}, {"type": "local_shell_call", "id": "a", "call_id": "c",
                                 "action": {}, "status": "completed"}], "tools": [SEARCH, SEARCH], "max_output_tokens": 4})
    assert json.loads(text)["usage"]["input_tokens"] == plain["usage"]["input_tokens"] and ignored == ["input.local_shell_call", "tools.web_search"]


def test_messages_leave_them_out_too(server):
    turn = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]}
    status, text, ignored = post(server, "/v1/messages", turn)
    assert status == 200 and ignored == ["tools.web_search_20250305"], text
    searched = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}, {"type": "text", "text": "Found."}]}, turn["messages"][0]]
    status, text, ignored = post(server, "/v1/messages", {**turn, "messages": searched})
    assert status == 200 and ignored[:2] == ["messages.server_tool_use", "messages.web_search_tool_result"], text
    assert post(server, "/v1/messages", {**turn, "tool_choice": {"type": "tool", "name": "web_search"}})[0] == 400
    assert post(server, "/v1/messages", {**turn, "tool_choice": {"type": "auto"}})[0] == 200


@pytest.mark.parametrize("text", [{"format": {"type": "json_schema", "name": "x", "schema": {"type": "object", "properties": {}, "additionalProperties": False}}},
                                  {"format": {"type": "json_object"}, "verbosity": "high"}, {"format": {"type": "text"}}, None])
def test_the_format_is_told(client, text):
    done = client.responses.create(model="tiny", input="x", max_output_tokens=30, **({"text": text} if text else {}))
    told = done.text.model_dump(exclude_none=True, by_alias=True)
    assert told == (text or {"format": {"type": "text"}}), told


@pytest.mark.parametrize("bad, says", [({"tools": [{"type": "custom"}]}, "type and a name"), ({"tools": [{}]}, "type and a name"),
                                       ({"tools": [{**CODE, "format": {"type": "grammar", "syntax": "regex", "definition": "(a"}}]}, "/properties/input/pattern"),
                                       ({"tools": [{**PATCH, "format": {**PATCH["format"], "definition": "start: a\na: <x>"}}]}, "line 2 of the grammar"),
                                       ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "x"}]}, "custom_tool_call"),
                                       ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference")])
def test_refused(server, bad, says):
    status, text, _ = post(server, "/v1/responses", {"input": "x", **bad})
    assert status == 400 and says in json.loads(text)["error"]["message"], text


def allowed(mode, *which):
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": n} for n in which]}


def test_allowed_tools_are_the_only_ones(client, server):
    """OpenAI's allowed_tools, of responses and of chats: the others are neither shown nor called."""
    functions = [{"type": "function", "name": n, "parameters": {"type": "object", "properties": {}}} for n in ("alpha", "beta", "gamma")]
    one = client.responses.create(model="tiny", input="x", tools=functions, tool_choice=allowed("required", "beta"), temperature=1, max_output_tokens=60)
    assert {o.name for o in one.output} == {"beta"}, one.output
    alone = client.responses.create(model="tiny", input="x", tools=functions[1:2], max_output_tokens=1)
    assert one.usage.input_tokens == alone.usage.input_tokens
    of_chats = [{"type": "function", "function": {"name": f["name"], "parameters": f["parameters"]}} for f in functions]
    names = [{"type": "function", "function": {"name": n}} for n in ("alpha", "gamma")]
    for seed in range(6):
        call = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}], tools=of_chats, temperature=2, seed=seed, max_tokens=60,
                                              tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": names}})
        assert call.choices[0].message.tool_calls[0].function.name in ("alpha", "gamma")
    named = client.responses.create(model="tiny", input="x", tools=functions, tool_choice={"type": "function", "function": None, "name": "alpha"}, max_output_tokens=60)
    assert {o.name for o in named.output} == {"alpha"}, "null is as if it were not there"
    for choice in (allowed("required", "delta"), allowed("always", "beta"), allowed("required"), {"type": "allowed_tools"}):
        status, text, _ = post(server, "/v1/responses", {"input": "x", "tools": functions, "tool_choice": choice})
        assert status == 400 and json.loads(text)["error"]["param"] == "tool_choice", text
    assert post(server, "/v1/responses", {"input": "x", "tools": functions, "tool_choice": allowed("auto"), "max_output_tokens": 1})[0] == 200


def test_what_an_assistant_refused_is_part_of_the_turn(client, server):
    """Histories hold refusals, and parts of responses in chats."""
    said = [{"type": "refusal", "refusal": "I cannot say."}]
    same = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "I cannot say."}, {"role": "user", "content": "Why?"}]
    turn = [same[0], {"role": "assistant", "content": said}, {"role": "user", "content": [{"type": "input_text", "text": "Why?"}]}]
    ask = lambda m: client.chat.completions.create(model="tiny", messages=m, max_tokens=12, temperature=0)
    assert ask(turn).choices[0].message.content == ask(same).choices[0].message.content
    items = [same[0], {"type": "message", "role": "assistant", "content": said}, same[2]]
    answer = client.responses.create(model="tiny", input=items, max_output_tokens=12, temperature=0)
    assert answer.usage.input_tokens == ask(same).usage.prompt_tokens


# ---- custom tools of chats ----

def of_chat(tool):
    """The same tool as a chat has it."""
    custom = {k: v for k, v in tool.items() if k != "type"}
    if "format" in custom:
        custom["format"] = {"type": "grammar", "grammar": {k: v for k, v in tool["format"].items() if k != "type"}}
    return {"type": "custom", "custom": custom}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tool", [CODE, FREE])
def test_a_chat_calls_a_custom_tool(client, tool, stream):
    """The text is what the tool of /v1/responses gets; it comes back in the next turn's prompt."""
    turn = [{"role": "user", "content": "Give the code"}]
    ask = dict(model="tiny", messages=turn, tools=[of_chat(tool)], tool_choice={"type": "custom", "custom": {"name": tool["name"]}}, temperature=1.2,
               max_tokens=120, seed=3)
    same = client.responses.create(model="tiny", input=turn, tools=[tool], tool_choice={"type": "custom", "name": tool["name"]}, temperature=1.2,
                                   max_output_tokens=120, extra_body={"seed": 3}).output[0]
    if stream:
        pieces = [d.delta.tool_calls[0].model_dump() for c in client.chat.completions.create(**ask, stream=True) for d in c.choices if d.delta.tool_calls]
        assert pieces[0]["type"] == "custom" and pieces[0]["custom"] == {"name": tool["name"], "input": ""} and not [p for p in pieces if p.get("function")]
        call = {"id": pieces[0]["id"], "type": "custom", "custom": {"name": tool["name"], "input": "".join(p["custom"]["input"] for p in pieces)}}
    else:
        made = client.chat.completions.create(**ask).choices[0].message.tool_calls[0]
        assert type(made).__name__ == "ChatCompletionMessageCustomToolCall"
        call = made.model_dump()
    assert call["custom"] == {"name": same.name, "input": same.input}
    if tool is CODE:
        assert re.fullmatch("[A-C]{2}\n\"[0-9]{3}\"", call["custom"]["input"]), call
    after = client.chat.completions.create(model="tiny", messages=[*turn, {"role": "assistant", "tool_calls": [call]},
                                           {"role": "tool", "tool_call_id": call["id"], "content": "taken"}], tools=[of_chat(tool)], tool_choice="none", max_tokens=4)
    told = client.responses.create(model="tiny", input=[*turn, {"type": "custom_tool_call", "call_id": "c", **call["custom"]},
                                   {"type": "custom_tool_call_output", "call_id": "c", "output": "taken"}], tools=[tool], tool_choice="none", max_output_tokens=4)
    assert after.usage.prompt_tokens == told.usage.input_tokens


def test_chats_have_both_kinds_of_tools(client, server):
    parameters = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"]}
    function = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    ask = dict(model="tiny", messages=[{"role": "user", "content": "x"}], tools=[function, of_chat(CODE)], temperature=1, max_tokens=300, seed=1)
    for choice, kinds in (("required", {"function", "custom"}), ({"type": "allowed_tools", "allowed_tools": {
            "mode": "required", "tools": [{"type": "custom", "custom": {"name": "code"}}]}}, {"custom"})):
        for call in client.chat.completions.create(**ask, tool_choice=choice).choices[0].message.tool_calls:
            assert call.type in kinds
            assert json.loads(call.function.arguments)["city"] is not None if call.type == "function" else re.fullmatch("[A-C]{2}\n\"[0-9]{3}\"", call.custom.input)
    pieces = [d.delta.tool_calls[0] for c in client.chat.completions.create(**ask, tool_choice="required", stream=True) for d in c.choices if d.delta.tool_calls]
    whole = client.chat.completions.create(**ask, tool_choice="required").choices[0].message.tool_calls
    for i, call in enumerate(whole):
        mine = [p.model_dump() for p in pieces if p.index == i]
        kind = mine[0]["type"]
        assert kind == call.type and "".join(p[kind]["arguments" if kind == "function" else "input"] for p in mine) == (
            call.function.arguments if kind == "function" else call.custom.input)


@pytest.mark.parametrize("bad, says", [({"tools": [{"type": "custom"}]}, "custom.name"), ({"tools": [{"type": "custom", "custom": {"name": 5}}]}, "custom.name"),
                                       ({"tools": [{"type": "web", "function": {"name": "x"}}]}, "function or custom"),
                                       ({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "x"}}]}]}, "an input")])
def test_refused_in_chats(server, bad, says):
    status, text, _ = post(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], **bad})
    assert status == 400 and says in json.loads(text)["error"]["message"], text
