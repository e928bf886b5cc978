"""Protects: litellm and langchain-openai work against the server by a base URL alone. Opt-in (make check-clients): they are large."""
import json
import os

import pytest

from conftest import ROOT, Appliance

CASES = {c["name"]: c for c in json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"]}
CASE, TOOL = CASES["kv-cache"], CASES["tool-call"]
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no look-ups elsewhere


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    a = Appliance(tmp_path_factory.mktemp("clients"), ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]).start().ready()
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
