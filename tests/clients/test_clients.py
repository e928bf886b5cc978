"""Protects: litellm, langchain-openai, openai-agents and pydantic-ai work against the server by a base URL alone. Opt-in (make check-clients): they are large."""
import json
import os

import pytest

from conftest import ROOT, Appliance

CASES = {c["name"]: c for c in json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"]}
CASE, TOOL = CASES["kv-cache"], CASES["tool-call"]
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no look-ups elsewhere


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    a = Appliance(tmp_path_factory.mktemp("clients"), ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--responses-store-bytes", str(16 << 20)]).start().ready()
    yield f"http://127.0.0.1:{a.port}/v1"
    a.destroy()


def test_litellm(base):
    import litellm
    ask = dict(model="openai/tiny", api_base=base, api_key="none", messages=CASE["messages"], temperature=0, max_tokens=160)
    assert litellm.completion(**ask).choices[0].message.content == CASE["output_text"]
    pieces = [c.choices[0].delta.content or "" for c in litellm.completion(**ask, stream=True) if c.choices]
    assert "".join(pieces) == CASE["output_text"]
    called = litellm.completion(**{**ask, "messages": TOOL["messages"], "tools": TOOL["tools"]})
    assert called.choices[0].message.tool_calls[0].function.name == "get_weather"
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**ask, "messages": [{"role": "user", "content": "word " * 5000}]})
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**ask, extra_body={"min_p": 7})
    vector = litellm.embedding(model="openai/tiny", api_base=base, api_key="none", input=["a", "b"])
    assert len(vector.data) == 2


def test_litellm_messages(base):
    """The way of coding agents: Anthropic's form, through litellm's own client of it."""
    import litellm
    answer = litellm.completion(model="anthropic/tiny", api_base=base[:-3], api_key="none", messages=CASE["messages"], temperature=0,
                                max_tokens=160)
    assert answer.choices[0].message.content == CASE["output_text"]


def test_langchain(base):
    import pydantic
    from langchain_core.messages import HumanMessage
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    class get_weather(pydantic.BaseModel):
        """Weather of a city."""
        city: str

    chat = ChatOpenAI(model="tiny", base_url=base, api_key="none", temperature=0, max_retries=0, stream_usage=True)
    answer = chat.invoke([HumanMessage("What is a KV cache?")])
    assert answer.content and answer.usage_metadata["output_tokens"] > 0
    pieces = list(chat.stream("What is a KV cache?"))
    assert "".join(p.content for p in pieces) == answer.content and any(p.usage_metadata for p in pieces)
    assert chat.bind_tools(TOOL["tools"]).invoke(TOOL["messages"][-1]["content"]) is not None
    batch = chat.batch(["What is a KV cache?"] * 3)
    assert {b.content for b in batch} == {answer.content}
    embedder = OpenAIEmbeddings(model="tiny", base_url=base, api_key="none", check_embedding_ctx_length=False)
    assert len(embedder.embed_documents(["a", "b"])) == 2
    many = embedder.embed_documents([f"text {i}" for i in range(1500)])  # it sends 1,000 at once
    assert len(many) == 1500 and many[1200] == embedder.embed_query("text 1200")


def test_ollama(base):
    """Ollama's own client: chats, streams, tools, a form, prompts, embeddings, what is served."""
    import ollama
    client, options = ollama.Client(host=base[:-3]), {"temperature": 0, "num_predict": 160}
    whole = client.chat("tiny", messages=CASE["messages"], options=options)
    assert whole.message.content == CASE["output_text"] and whole.done_reason == "stop" and whole.eval_count > 0
    pieces = list(client.chat("tiny", messages=CASE["messages"], options=options, stream=True))
    assert "".join(p.message.content for p in pieces) == CASE["output_text"] and pieces[-1].done and pieces[-1].total_duration > 0

    def get_weather(city: str) -> str:
        """Weather of a city."""
        return "rain"

    called = client.chat("tiny", messages=TOOL["messages"], tools=TOOL["tools"], options=options)
    assert called.message.tool_calls[0].function.name == "get_weather"
    assert client.chat("tiny", messages=[*TOOL["messages"], called.message, {"role": "tool", "tool_name": "get_weather", "content": "rain"}],
                       tools=[get_weather], options={"num_predict": 5}).message.role == "assistant"
    report = typed()
    assert report.model_validate_json(client.chat("tiny", messages=CASE["messages"], format=report.model_json_schema(),
                                                  options={"num_predict": 200}).message.content)
    assert client.generate("tiny", "Once upon a time", options={"num_predict": 5}).response
    assert [p.done for p in client.generate("tiny", "Once", stream=True, options={"num_predict": 5})][-1]
    assert len(client.embed("tiny", ["a", "b"]).embeddings) == 2
    assert client.list().models[0].model == "tiny" and client.ps().models[0].model == "tiny"
    assert client.show("tiny").modelinfo and "tools" in client.show("tiny").capabilities
    with pytest.raises(ollama.ResponseError) as e:
        client.chat("other", messages=CASE["messages"])
    assert e.value.status_code == 404 and "does not exist" in e.value.error
    with pytest.raises(ollama.ResponseError, match="mirostat"):
        list(client.chat("tiny", messages=CASE["messages"], options={"mirostat": 1}, stream=True))


# ---- agents: tools together with a form of the answer ----

def typed():
    """An answer of the tiny model under a form is nonsense that is valid; what is tested is that tools and form go together. It calls
    whenever it may, so the tool is there once."""
    import pydantic

    class Report(pydantic.BaseModel):
        city: str = pydantic.Field(max_length=20)
        degrees: int = pydantic.Field(ge=-50, le=60)

    return Report


@pytest.mark.parametrize("form", ["chat", "responses"])
def test_openai_agents(base, form):
    import agents
    import openai
    agents.set_tracing_disabled(True)
    client, seen, report = openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0), [], typed()

    @agents.function_tool(is_enabled=lambda context, agent: not seen)
    def get_weather(city: str) -> str:
        """Weather of a city."""
        seen.append(city)
        return "rain, 12 degrees"

    model = (agents.OpenAIChatCompletionsModel if form == "chat" else agents.OpenAIResponsesModel)(model="tiny", openai_client=client)
    for choice in (None, "required"):
        seen.clear()
        agent = agents.Agent(name="helper", model=model, tools=[get_weather], output_type=report,
                             model_settings=agents.ModelSettings(temperature=0, max_tokens=200, tool_choice=choice))
        done = agents.Runner.run_sync(agent, TOOL["messages"][-1]["content"], max_turns=6)
        assert isinstance(done.final_output, report) and len(seen) == 1, seen


@pytest.mark.parametrize("streamed", [False, True])
def test_openai_agents_go_on(base, streamed):
    """previous_response_id: a run sends only what is new, its calls' results and the next run's question, and is answered as if it had sent all."""
    import asyncio

    import agents
    import openai
    agents.set_tracing_disabled(True)
    client, seen = openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0), []

    @agents.function_tool(is_enabled=lambda context, agent: not seen)
    def get_weather(city: str) -> str:
        """Weather of a city."""
        seen.append(city)
        return "rain, 12 degrees"

    async def run(agent, text, **more):
        if not streamed:
            return await agents.Runner.run(agent, text, max_turns=6, **more)
        result = agents.Runner.run_streamed(agent, text, max_turns=6, **more)
        async for _ in result.stream_events():
            pass
        return result

    async def both():
        model = agents.OpenAIResponsesModel(model="tiny", openai_client=client)
        agent = agents.Agent(name="helper", model=model, tools=[get_weather], model_settings=agents.ModelSettings(temperature=0, max_tokens=60))
        first = await run(agent, TOOL["messages"][-1]["content"], auto_previous_response_id=True)
        assert len(first.raw_responses) >= 2 and len(seen) == 1
        second = await run(agent, "And tomorrow?", previous_response_id=first.last_response_id)
        whole = await client.responses.create(model="tiny", input=[*first.to_input_list(), {"role": "user", "content": "And tomorrow?"}], temperature=0,
                                              max_output_tokens=60, store=False)
        assert whole.usage.input_tokens == second.raw_responses[-1].usage.input_tokens
        assert whole.output_text == second.final_output
        items = [i async for i in client.responses.input_items.list(second.last_response_id, order="asc")]
        assert {"message", "function_call", "function_call_output"} <= {i.type for i in items}

    asyncio.run(both())


def test_pydantic_ai(base):
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    report, seen = typed(), []
    agent = Agent(OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=base, api_key="none")), output_type=NativeOutput(report),
                  model_settings={"temperature": 0, "max_tokens": 200})

    async def once(context, definition):
        return None if seen else definition

    @agent.tool_plain(prepare=once)
    def get_weather(city: str) -> str:
        """Weather of a city."""
        seen.append(city)
        return "rain, 12 degrees"

    done = agent.run_sync(TOOL["messages"][-1]["content"])
    assert isinstance(done.output, report) and len(seen) == 1, seen
