"""Protects: stored responses. A conversation goes on from one as if all of it had been sent; they are found, listed and deleted, a key never sees
another's, the oldest go when the room is used up, and a server without the option says so."""
import json
import re
import socket

import openai
import pytest

from bare import Bare
from conftest import ROOT, wait_for

CASES = {c["name"]: c for c in json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"]}
TOOL = CASES["tool-call"]
KEYS = ["key-of-anna", "key-of-bert"]
ASK = dict(model="tiny", temperature=0, max_output_tokens=12)
BODIES_OF_A_KEY = 128  # times --max-body-bytes: what the open requests of a key may hold
TOOLS = [{"type": "function", **t["function"]} for t in TOOL["tools"]]


def start(path, *flags):
    return Bare(path, "--enable-auto-tool-choice", "--tool-call-parser", "hermes", *flags)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = start(tmp_path_factory.mktemp("stored"), "--responses-store-bytes", 4 << 20, "--api-key", *KEYS)
    yield s
    s.stop()


def client_of(server, key=KEYS[0]):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def figure(server, name):
    return float(re.search(rf"^evenkeel_{name} (\S+)$", server.metrics(), re.M)[1])


def said(response):
    return [i.model_dump(exclude_none=True) for i in response.output]


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on(client, stream):
    """The answer, and the prompt's tokens, are those of the whole conversation sent at once; instructions are not carried over."""
    def create(**ask):
        if not stream:
            return client.responses.create(**ASK, **ask)
        events = list(client.responses.create(**ASK, **ask, stream=True))
        assert events[0].response.store and events[-1].response.previous_response_id == ask.get("previous_response_id")
        return events[-1].response

    first = create(input="What is a KV cache?", instructions="Be brief.")
    second = create(input=[{"role": "user", "content": "And why?"}], previous_response_id=first.id)
    third = create(input="Go on.", previous_response_id=second.id)
    assert (first.store, first.previous_response_id, third.previous_response_id) == (True, None, second.id)
    whole = [{"role": "user", "content": "What is a KV cache?"}, *said(first), {"role": "user", "content": "And why?"}, *said(second),
             {"role": "user", "content": "Go on."}]
    alone = client.responses.create(**ASK, input=whole, store=False)
    assert alone.output_text == third.output_text and alone.usage.input_tokens == third.usage.input_tokens and alone.store is False
    counted = client.post("/responses/input_tokens", body={"input": "Go on.", "previous_response_id": second.id}, cast_to=object)
    assert counted["input_tokens"] == third.usage.input_tokens
    items = list(client.responses.input_items.list(third.id, order="asc", limit=2))
    assert [i.type for i in items] == ["message"] * 5 and len({i.id for i in items}) == 5
    assert [i.role for i in items] == ["user", "assistant"] * 2 + ["user"] and items[-1].content[0].text == "Go on."
    assert [i.id for i in client.responses.input_items.list(third.id)] == [i.id for i in items][::-1]
    for r in (first, second, third):
        assert client.responses.retrieve(r.id) == r


def test_calls_of_tools(client):
    """A call is in the conversation: only its output is sent."""
    ask = dict(model="tiny", temperature=0, tools=TOOLS)
    first = client.responses.create(**ask, input=TOOL["messages"])
    call = first.output[0]
    assert call.type == "function_call"
    out = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    second = client.responses.create(**ask, input=[out], previous_response_id=first.id, max_output_tokens=8)
    whole = client.responses.create(**ask, input=[*TOOL["messages"], *said(first), out], store=False, max_output_tokens=8)
    assert said(second)[0].get("content", [{}])[0].get("text") == said(whole)[0].get("content", [{}])[0].get("text")
    assert second.usage.input_tokens == whole.usage.input_tokens
    assert [i.type for i in client.responses.input_items.list(second.id)][:2] == ["function_call_output", "function_call"]


def test_deleted_and_forgotten(client):
    """What was deleted is not found; what went on from it still is, and goes on."""
    first = client.responses.create(**ASK, input="One.")
    second = client.responses.create(**ASK, input="Two.", previous_response_id=first.id)
    client.responses.delete(first.id)
    for ask in (lambda: client.responses.retrieve(first.id), lambda: client.responses.delete(first.id),
                lambda: client.responses.input_items.list(first.id), lambda: client.responses.create(**ASK, input="x", previous_response_id=first.id)):
        with pytest.raises(openai.NotFoundError) as e:
            ask()
        assert e.value.type and first.id in e.value.message
    third = client.responses.create(**ASK, input="Three.", previous_response_id=second.id)
    assert len(list(client.responses.input_items.list(third.id))) == 5
    unstored = client.responses.create(**ASK, input="x", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


def test_a_key_sees_its_own_alone(server, client):
    other = client_of(server, KEYS[1])
    mine = client.responses.create(**ASK, input="mine", extra_headers={"X-Request-Id": "same"})
    theirs = other.responses.create(**ASK, input="theirs", extra_headers={"X-Request-Id": "same"})
    assert mine.id == theirs.id
    assert list(other.responses.input_items.list(mine.id))[0].content[0].text == "theirs"
    assert list(client.responses.input_items.list(mine.id))[0].content[0].text == "mine"
    other.responses.delete(mine.id)
    assert client.responses.retrieve(mine.id).id == mine.id
    with pytest.raises(openai.NotFoundError):
        other.responses.create(**ASK, input="x", previous_response_id=mine.id)


@pytest.mark.parametrize("path, says", [("/x?stream=true", "stream"), ("/x/input_items?limit=0", "limit"), ("/x/input_items?limit=101", "limit"),
                                        ("/x/input_items?order=up", "order")])
def test_refused(server, path, says):
    status, _, text = server.ask("/v1/responses" + path, headers={"Authorization": f"Bearer {KEYS[0]}"})
    assert status == 400 and json.loads(text)["error"]["param"] == says, text


@pytest.mark.parametrize("method, path, allow", [("DELETE", "/v1/responses", "POST"), ("PUT", "/v1/responses/x", "GET, HEAD, DELETE"),
                                                 ("DELETE", "/v1/responses/x/input_items", "GET, HEAD"),
                                                 ("DELETE", "/v1/responses/x/input_items/", "GET, HEAD"), ("GET", "/v1/responses/input_tokens", "POST")])
def test_methods(server, method, path, allow):
    status, headers, _ = server.ask(path, method, headers={"Authorization": f"Bearer {KEYS[0]}"})
    assert (status, headers.get("allow")) == (405, allow)


def test_a_slash_at_the_end(server, client):
    at, auth = f"/v1/responses/{client.responses.create(**ASK, input='x').id}", {"Authorization": f"Bearer {KEYS[0]}"}
    for path in (at, at + "/input_items"):
        status, _, text = server.ask(path + "/", headers=auth)
        assert status == 200 and json.loads(text) == json.loads(server.ask(path, headers=auth)[2])


def test_the_oldest_go(tmp_path):
    """A store of 32 KiB: the newest are there, the oldest not, a conversation's items stay while it goes on."""
    s = start(tmp_path, "--responses-store-bytes", 32 << 10)
    try:
        client = client_of(s)
        text = "word " * 300
        first = client.responses.create(**ASK, input=text)
        ids = [first.id]
        for _ in range(24):
            ids.append(client.responses.create(**ASK, input=text).id)
        found = [not isinstance(attempt(client, i), openai.NotFoundError) for i in ids]
        assert found[-1] and not found[0] and found == sorted(found), found
        assert figure(s, "stored_responses") == sum(found) and figure(s, "stored_responses_evicted_total") == len(ids) - sum(found)
        held = float(re.search(r'stored_responses_bytes\{.*figure="held".*\} (\S+)', s.metrics())[1])
        assert 16 << 10 < held <= 32 << 10
        # more than all of the room: answered, not stored, and nothing else pushed out
        big = client.responses.create(**ASK, input=[{"role": "user", "content": "x"}, {"type": "web_search_call", "id": "w", "more": "y" * 70000}])
        assert isinstance(attempt(client, big.id), openai.NotFoundError) and attempt(client, ids[-1]).id == ids[-1]
    finally:
        s.stop()


def test_ids_are_those_of_one_item(client):
    """One name for all requests, items that come back with the ids that they had: pages begin behind one item and come to an end."""
    named = {"extra_headers": {"X-Request-Id": "always-the-same"}}
    mine = {"type": "message", "role": "user", "content": "Hello", "id": "msg_mine"}
    last = client.responses.create(**ASK, input=[mine, {**mine, "content": "Again"}], **named)
    for _ in range(3):
        again = [*said(last), {**mine, "content": "More"}]
        last = client.responses.create(**ASK, input=again, previous_response_id=last.id, **named)
    for order in ("asc", "desc"):
        ids = []
        for item in client.responses.input_items.list(last.id, order=order, limit=2):
            ids.append(item.id)
            assert len(ids) <= 11, "it goes round"
        assert len(ids) == 11 and len(set(ids)) == 11, ids
        assert ids[0 if order == "asc" else -1] == "msg_mine"
    assert len({i.id for i in last.output} | set(ids)) == 11 + len(last.output)


@pytest.mark.parametrize("stream", [False, True])
def test_what_does_not_fit_is_not_said_to_be_stored(tmp_path, stream):
    """An answer too long for the room that its question leaves; then a question that is too long itself, which is known at the beginning."""
    s = start(tmp_path, "--responses-store-bytes", 16 << 10)
    try:
        client = client_of(s)

        def create(**ask):
            if not stream:
                answer = client.responses.with_raw_response.create(**ASK, store=True, **ask)
                return [answer.parse()], answer.headers
            with client.responses.with_streaming_response.create(**ASK, store=True, stream=True, **ask) as answer:
                events = list(answer.parse())
            return [e.response for e in events if hasattr(e, "response")], answer.headers

        fits, headers = create(input="x")
        assert [r.store for r in fits] == [True] * len(fits) and "X-Ignored-Fields" not in headers
        late, headers = create(input="x", metadata={"k": "z" * 16000})
        assert late[-1].store is False and late[0].store is (True if stream else False)
        assert stream or headers["X-Ignored-Fields"] == "store"
        early, headers = create(input=[{"role": "user", "content": "x"}, {"type": "web_search_call", "id": "w", "more": "y" * 17000}])
        assert [r.store for r in early] == [False] * len(early) and "store" in headers["X-Ignored-Fields"].split(", ")
        for r in (late[-1], early[-1]):
            assert isinstance(attempt(client, r.id), openai.NotFoundError)
        assert attempt(client, fits[-1].id) == fits[-1]
    finally:
        s.stop()


def test_what_is_shown_is_paid_for_first(tmp_path):
    """Where a key's open requests leave no room for it, a stored response is refused like any other, before there is a copy."""
    body = 128 << 10
    s = start(tmp_path, "--responses-store-bytes", 4 << 20, "--max-body-bytes", body, "--request-timeout", 120, "--api-key", *KEYS)
    held = []
    try:
        client, other = client_of(s), client_of(s, KEYS[1])
        item = {"type": "web_search_call", "id": "w", "more": "y" * 100000}
        made = client.responses.create(**ASK, input=[{"role": "user", "content": "x"}, item], metadata={"k": "v"}, instructions="word " * 400)
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEYS[0]}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {body}\r\n\r\n").encode()
        share = BODIES_OF_A_KEY * body
        for n in (body - 1,) * (BODIES_OF_A_KEY - 1) + (body - 1000,):
            c = socket.create_connection(("127.0.0.1", s.port), timeout=20)
            c.sendall(head + b" " * n)
            held.append(c)
        wait_for("they have arrived", lambda: memory(s) >= share - BODIES_OF_A_KEY - 1000, 60)
        for path in (f"/responses/{made.id}", f"/responses/{made.id}/input_items"):
            with pytest.raises(openai.RateLimitError, match="memory") as e:
                client.get(path, cast_to=object)
            assert int(e.value.response.headers["Retry-After"]) >= 1
            with pytest.raises(openai.NotFoundError):  # it was looked for: others have room
                other.get(path, cast_to=object)
        for c in held:
            c.close()
        held.clear()
        wait_for("room again", lambda: memory(s) == 0, 60)
        assert client.responses.retrieve(made.id) == made
        assert [i["id"] for i in client.get(f"/responses/{made.id}/input_items", cast_to=object)["data"]][0] == "w"
    finally:
        for c in held:
            c.close()
        s.stop()


def memory(server):
    return float(re.search(r'evenkeel_http_memory_bytes\{.*figure="held".*\} (\S+)', server.metrics())[1])


def attempt(client, response_id):
    try:
        return client.responses.retrieve(response_id)
    except openai.NotFoundError as e:
        return e


def test_a_large_conversation_is_read_elsewhere(tmp_path):
    """Items that no template knows make it large: it is charged and read like a body of that size."""
    s = start(tmp_path, "--responses-store-bytes", 64 << 20, "--max-body-bytes", 1 << 20)
    try:
        client = client_of(s)
        more = {"type": "web_search_call", "id": "w", "more": "y" * 400000}
        last = client.responses.create(**ASK, input=[{"role": "user", "content": "x"}, more])
        for _ in range(4):
            last = client.responses.create(**ASK, input=[{"role": "user", "content": "x"}, more], previous_response_id=last.id)
        assert len(list(client.responses.input_items.list(last.id, order="asc", limit=3))) == 14
        assert client.responses.create(**ASK, input="x", previous_response_id=last.id).usage.input_tokens > last.usage.input_tokens
    finally:
        s.stop()


def test_too_old(tmp_path):
    """The time is that of the option; the shortest is one second."""
    s = start(tmp_path, "--responses-store-bytes", 1 << 20, "--responses-store-ttl", 1)
    try:
        client = client_of(s)
        made = client.responses.create(**ASK, input="x")
        wait_for("the response is too old", lambda: isinstance(attempt(client, made.id), openai.NotFoundError), 60)
    finally:
        s.stop()


def test_without_a_store(tmp_path):
    s = start(tmp_path)
    try:
        client = client_of(s)
        answer = client.responses.with_raw_response.create(**ASK, input="x", store=True)
        assert "store" in answer.headers["X-Ignored-Fields"] and answer.parse().store is False
        with pytest.raises(openai.BadRequestError, match="--responses-store-bytes") as e:
            client.responses.create(**ASK, input="x", previous_response_id="resp_1")
        assert e.value.param == "previous_response_id"
        with pytest.raises(openai.NotFoundError, match="--responses-store-bytes"):
            client.responses.retrieve("resp_1")
    finally:
        s.stop()
