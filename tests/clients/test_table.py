"""Protects: each client gets from each interface what it asks for, and the list of docs/compatibility.md says so. A row is a client with one
interface, a cell is what it does there; what is not offered is refused with a sentence, never left out in silence. tools/clients-table.py
writes the table from what this file saw."""
import asyncio
import http.client
import importlib.util
import json
import os
import shutil
import subprocess

import pytest

from conftest import E2E, ROOT, Appliance

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no look-ups elsewhere
os.environ.setdefault("OPENAI_API_KEY", "none")
CASES = {c["name"]: c for c in json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"]}
TURNS, WANT, TOOL = CASES["kv-cache"]["messages"], CASES["kv-cache"]["output_text"], CASES["tool-call"]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
FORM = {"type": "json_schema", "json_schema": {"name": "number", "schema": SCHEMA, "strict": True}}
REPORT = ROOT / "build/reports/clients.json"
HOST = KEY = RANKS = ""  # set by the fixture; RANKS: of a server with a reranker
CELLS, SEEN = [], {}


def cell(client, does, package):
    """Registers what a client does. The function returns what came and what should have."""
    def register(function):
        CELLS.append((client, does, package, function))
        return function
    return register


def reranker(folder):
    port = E2E.free_port(18300)
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([E2E.BUILD / "evenkeel-server", "--model", ROOT / "tests/fixtures/models/scores-qwen3", "--port", str(port),
                                    "--host", "127.0.0.1", "--served-model-name", "ranks", "--dtype", "float32"], stdout=log, stderr=log)
    E2E.wait_for("ready", lambda: E2E.get(port, "/health")[0] == 200, 60)
    return process, port


@pytest.fixture(scope="module", autouse=True)
def served(tmp_path_factory):
    global HOST, RANKS
    ranks, port = reranker(tmp_path_factory.mktemp("ranks"))
    RANKS = f"http://127.0.0.1:{port}"
    a = Appliance(tmp_path_factory.mktemp("table"), ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]).start().ready()
    HOST = f"http://127.0.0.1:{a.port}"
    yield
    a.destroy()
    ranks.terminate()
    ranks.wait(20)


def number(text):
    value = json.loads(text)
    return list(value) == ["n"] and 1 <= value["n"] <= 9


def model(name="Number"):
    import pydantic
    return pydantic.create_model(name, n=(int, pydantic.Field(ge=1, le=9)))


# ---- OpenAI's ----

def openai_client(kind="OpenAI"):
    import openai
    return getattr(openai, kind)(base_url=f"{HOST}/v1", api_key="none", max_retries=0)


ASK = {"model": "tiny", "temperature": 0}


@cell("openai, chats", "answer", "openai")
def _():
    return openai_client().chat.completions.create(**ASK, messages=TURNS, max_tokens=160).choices[0].message.content, WANT


@cell("openai, chats", "stream", "openai")
def _():
    chunks = openai_client().chat.completions.create(**ASK, messages=TURNS, max_tokens=160, stream=True)
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), WANT


@cell("openai, chats", "tools", "openai")
def _():
    made = openai_client().chat.completions.create(**ASK, messages=TOOL["messages"], tools=TOOL["tools"], max_tokens=160)
    return made.choices[0].message.tool_calls[0].function.name, "get_weather"


@cell("openai, chats", "form", "openai")
def _():
    made = openai_client().chat.completions.parse(model="tiny", messages=TURNS, response_format=model(), max_tokens=60)
    return 1 <= made.choices[0].message.parsed.n <= 9, True


@cell("openai, chats", "not offered", "openai")
def _():
    import openai
    with pytest.raises(openai.BadRequestError, match="beam"):
        openai_client().chat.completions.create(**ASK, messages=TURNS, extra_body={"use_beam_search": True})
    return "refused", "refused"


@cell("openai, completions", "answer", "openai")
def _():
    made = openai_client().completions.create(**ASK, prompt=["Once", "Once"], max_tokens=8)
    return made.choices[0].text, made.choices[1].text


@cell("openai, completions", "stream", "openai")
def _():
    whole = openai_client().completions.create(**ASK, prompt="Once", max_tokens=8).choices[0].text
    return "".join(c.choices[0].text for c in openai_client().completions.create(**ASK, prompt="Once", max_tokens=8, stream=True)), whole


@cell("openai, completions", "not offered", "openai")
def _():
    import openai
    with pytest.raises(openai.BadRequestError, match="suffix"):
        openai_client().completions.create(**ASK, prompt="Once", suffix="end")
    return "refused", "refused"


@cell("openai, embeddings", "vectors", "openai")
def _():
    return len(openai_client().embeddings.create(model="tiny", input=["a"] * 2048).data), 2048


@cell("openai, async chats", "answer", "openai")
def _():
    made = asyncio.run(openai_client("AsyncOpenAI").chat.completions.create(**ASK, messages=TURNS, max_tokens=160))
    return made.choices[0].message.content, WANT


@cell("openai, async chats", "stream", "openai")
def _():
    async def run():
        chunks = await openai_client("AsyncOpenAI").chat.completions.create(**ASK, messages=TURNS, max_tokens=160, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in chunks if c.choices])
    return asyncio.run(run()), WANT


@cell("openai, responses", "answer", "openai")
def _():
    return openai_client().responses.create(**ASK, input=TURNS, max_output_tokens=160).output_text, WANT


@cell("openai, responses", "stream", "openai")
def _():
    events = openai_client().responses.create(**ASK, input=TURNS, max_output_tokens=160, stream=True)
    return "".join(e.delta for e in events if e.type == "response.output_text.delta"), WANT


@cell("openai, responses", "tools", "openai")
def _():
    tools = [{"type": "function", **t["function"]} for t in TOOL["tools"]]
    made = openai_client().responses.create(**ASK, input=TOOL["messages"], tools=tools, max_output_tokens=160)
    return [i.name for i in made.output if i.type == "function_call"], ["get_weather"]


@cell("openai, responses", "form", "openai")
def _():
    made = openai_client().responses.parse(model="tiny", input=TURNS, text_format=model(), max_output_tokens=60)
    return 1 <= made.output_parsed.n <= 9, True


@cell("openai, responses", "not offered", "openai")
def _():
    import openai
    with pytest.raises(openai.BadRequestError, match="background"):
        openai_client().responses.create(**ASK, input=TURNS, background=True)
    return "refused", "refused"


# ---- Anthropic's ----

MESSAGES = {"model": "tiny", "temperature": 0, "max_tokens": 160, "messages": TURNS}


def anthropic_client(kind="Anthropic"):
    import anthropic
    return getattr(anthropic, kind)(base_url=HOST, api_key="none", max_retries=0)


def anthropic_ask():
    """Its system's message is a field."""
    system = "\n".join(m["content"] for m in TURNS if m["role"] == "system")
    return {**{k: v for k, v in MESSAGES.items() if k != "temperature"}, "messages": [m for m in TURNS if m["role"] != "system"],
            **({"system": system} if system else {}), "extra_body": {"temperature": 0}}


@cell("anthropic", "answer", "anthropic")
def _():
    return anthropic_client().messages.create(**anthropic_ask()).content[0].text, WANT


@cell("anthropic", "stream", "anthropic")
def _():
    with anthropic_client().messages.stream(**anthropic_ask()) as s:
        return "".join(s.text_stream), WANT


@cell("anthropic", "tools", "anthropic")
def _():
    tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOL["tools"]]
    made = anthropic_client().messages.create(**{**anthropic_ask(), "messages": TOOL["messages"][-1:]}, tools=tools, tool_choice={"type": "any"})
    return [b.name for b in made.content if b.type == "tool_use"], ["get_weather"]


@cell("anthropic", "form", "anthropic")
def _():
    made = anthropic_client().messages.create(**{**anthropic_ask(), "extra_body": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}})
    return number(made.content[0].text), True


@cell("anthropic", "not offered", "anthropic")
def _():
    import anthropic
    with pytest.raises(anthropic.BadRequestError, match="image"):
        anthropic_client().messages.create(**{**anthropic_ask(), "messages": [{"role": "user", "content": [{"type": "image", "source": {
            "type": "base64", "media_type": "image/png", "data": "aGk="}}]}]})
    return "refused", "refused"


@cell("anthropic, async", "answer", "anthropic")
def _():
    return asyncio.run(anthropic_client("AsyncAnthropic").messages.create(**anthropic_ask())).content[0].text, WANT


# ---- Ollama's ----

def ollama_client(kind="Client"):
    import ollama
    return getattr(ollama, kind)(host=HOST)


OPTIONS = {"temperature": 0, "num_predict": 160}


@cell("ollama", "answer", "ollama")
def _():
    return ollama_client().chat("tiny", TURNS, options=OPTIONS).message.content, WANT


@cell("ollama", "stream", "ollama")
def _():
    return "".join(p.message.content for p in ollama_client().chat("tiny", TURNS, options=OPTIONS, stream=True)), WANT


@cell("ollama", "tools", "ollama")
def _():
    made = ollama_client().chat("tiny", TOOL["messages"], tools=TOOL["tools"], options=OPTIONS)
    return made.message.tool_calls[0].function.name, "get_weather"


@cell("ollama", "form", "ollama")
def _():
    return number(ollama_client().chat("tiny", TURNS, format=SCHEMA, options={"num_predict": 60}).message.content), True


@cell("ollama", "vectors", "ollama")
def _():
    return len(ollama_client().embed("tiny", ["a", "b"]).embeddings), 2


@cell("ollama", "not offered", "ollama")
def _():
    import ollama
    with pytest.raises(ollama.ResponseError, match="mirostat"):
        ollama_client().chat("tiny", TURNS, options={"mirostat": 2})
    return "refused", "refused"


@cell("ollama, async", "answer", "ollama")
def _():
    return asyncio.run(ollama_client("AsyncClient").chat("tiny", TURNS, options=OPTIONS)).message.content, WANT


# ---- LangChain ----

def langchain(which):
    if which == "anthropic":
        from langchain_anthropic import ChatAnthropic
        return ChatAnthropic(model="tiny", base_url=HOST, api_key="none", max_tokens=160, max_retries=0, temperature=0)
    if which == "ollama":
        from langchain_ollama import ChatOllama
        return ChatOllama(model="tiny", base_url=HOST, temperature=0, num_predict=160)
    from langchain_openai import ChatOpenAI
    return ChatOpenAI(model="tiny", base_url=f"{HOST}/v1", api_key="none", temperature=0, max_tokens=160, max_retries=0,
                      use_responses_api=which == "responses")


def text_of(message):
    return message.content if isinstance(message.content, str) else "".join(p.get("text", "") for p in message.content)


for which, package in (("chats", "langchain_openai"), ("responses", "langchain_openai"), ("anthropic", "langchain_anthropic"),
                       ("ollama", "langchain_ollama")):
    name = f"{package.replace('_', '-')}{', ' + which if package == 'langchain_openai' else ''}"
    cell(name, "answer", package)(lambda w=which: (text_of(langchain(w).invoke(TURNS)), WANT))
    cell(name, "stream", package)(lambda w=which: ("".join(text_of(p) for p in langchain(w).stream(TURNS)), WANT))
    cell(name, "tools", package)(lambda w=which: (langchain(w).bind_tools(TOOL["tools"], **({} if w == "ollama" else {
        "tool_choice": "any" if w == "anthropic" else "required"})).invoke(TOOL["messages"][-1:]).tool_calls[0]["name"], "get_weather"))
    # Anthropic's client takes bounds of numbers out of a schema before it sends it
    cell(name, "form", package)(lambda w=which: (langchain(w).with_structured_output(
        model(), method="json_schema").invoke(TURNS).n > 0, True) if w != "anthropic" else ("x" in langchain(w).with_structured_output(
            {"title": "Word", "description": "A word.", "type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"],
             "additionalProperties": False}, method="json_schema").invoke(TURNS), True))


@cell("langchain-openai, chats", "vectors", "langchain_openai")
def _():
    from langchain_openai import OpenAIEmbeddings
    e = OpenAIEmbeddings(model="tiny", base_url=f"{HOST}/v1", api_key="none", check_embedding_ctx_length=False)
    return len(e.embed_documents([f"text {i}" for i in range(1000)])), 1000


@cell("langchain-ollama", "vectors", "langchain_ollama")
def _():
    from langchain_ollama import OllamaEmbeddings
    return len(OllamaEmbeddings(model="tiny", base_url=HOST).embed_documents(["a", "b"])), 2


# ---- LlamaIndex, LiteLLM, instructor, pydantic-ai, magentic, llm ----

def llama_index():
    from llama_index.llms.openai_like import OpenAILike
    return OpenAILike(model="tiny", api_base=f"{HOST}/v1", api_key="none", is_chat_model=True, temperature=0, max_tokens=160, max_retries=0)


def llama_turns():
    from llama_index.core.llms import ChatMessage
    return [ChatMessage(role=m["role"], content=m["content"]) for m in TURNS]


cell("llama-index-llms-openai-like", "answer", "llama_index")(lambda: (llama_index().chat(llama_turns()).message.content, WANT))
cell("llama-index-llms-openai-like", "stream", "llama_index")(
    lambda: ("".join(p.delta or "" for p in llama_index().stream_chat(llama_turns())), WANT))

LITELLM = {"openai": "/v1", "hosted_vllm": "/v1", "anthropic": "", "ollama_chat": "", "text-completion-openai": "/v1"}


def litellm_ask(kind, **more):
    import litellm
    return litellm.completion(model=f"{kind}/tiny", api_base=HOST + LITELLM[kind], api_key="none", messages=TURNS, temperature=0, max_tokens=160, **more)


for kind in ("openai", "hosted_vllm", "anthropic", "ollama_chat"):
    cell(f"litellm, {kind}/", "answer", "litellm")(lambda k=kind: (litellm_ask(k).choices[0].message.content, WANT))
    cell(f"litellm, {kind}/", "stream", "litellm")(
        lambda k=kind: ("".join(c.choices[0].delta.content or "" for c in litellm_ask(k, stream=True) if c.choices), WANT))


@cell("litellm, text-completion-openai/", "answer", "litellm")
def _():
    import litellm
    made = litellm.text_completion(model="text-completion-openai/tiny", api_base=f"{HOST}/v1", api_key="none", prompt="Once", max_tokens=8, temperature=0)
    return made.choices[0].text, openai_client().completions.create(**ASK, prompt="Once", max_tokens=8).choices[0].text


for mode in ("TOOLS", "JSON_SCHEMA"):
    @cell(f"instructor, {mode}", "form", "instructor")
    def _(mode=mode):
        import instructor
        client = instructor.from_openai(openai_client(), mode=getattr(instructor.Mode, mode))
        return 1 <= client.chat.completions.create(model="tiny", messages=TURNS, response_model=model(), max_tokens=160, max_retries=0).n <= 9, True


def pydantic_agent(kind, output):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    provider = OpenAIProvider(base_url=f"{HOST}/v1", api_key="none")
    return Agent((OpenAIChatModel if kind == "chats" else OpenAIResponsesModel)("tiny", provider=provider), output_type=output,
                 model_settings={"temperature": 0, "max_tokens": 160})


for kind in ("chats", "responses"):
    cell(f"pydantic-ai, {kind}", "answer", "pydantic_ai")(lambda k=kind: (pydantic_agent(k, str).run_sync(TURNS[-1]["content"]).output != "", True))

    @cell(f"pydantic-ai, {kind}", "form", "pydantic_ai")
    def _(kind=kind):
        from pydantic_ai import NativeOutput
        return 1 <= pydantic_agent(kind, NativeOutput(model())).run_sync(TURNS[-1]["content"]).output.n <= 9, True


@cell("openai-agents", "answer", "agents")
def _():
    import agents
    agents.set_tracing_disabled(True)
    made = agents.OpenAIChatCompletionsModel(model="tiny", openai_client=openai_client("AsyncOpenAI"))
    agent = agents.Agent(name="helper", model=made, model_settings=agents.ModelSettings(temperature=0, max_tokens=160))
    return agents.Runner.run_sync(agent, TURNS).final_output, WANT


# ---- HTTP by itself, and readers of events ----

BODY = {**ASK, "messages": TURNS, "max_tokens": 160}


def said(text):
    return json.loads(text)["choices"][0]["message"]["content"]


def told(events):
    """The text of a stream's events: the data of each."""
    chunks = [json.loads(e) for e in events if e and e != "[DONE]"]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


def data_of(lines):
    return [line[6:] for line in lines if line.startswith("data: ")]


def chats():
    return f"{HOST}/v1/chat/completions"


@cell("http.client", "answer", "http")
def _():
    connection = http.client.HTTPConnection(HOST[7:])
    connection.request("POST", "/v1/chat/completions", json.dumps(BODY), {"Content-Type": "application/json"})
    return said(connection.getresponse().read()), WANT


@cell("httpx", "answer", "httpx")
def _():
    import httpx
    return said(httpx.post(chats(), json=BODY, timeout=60).text), WANT


@cell("httpx", "stream", "httpx")
def _():
    import httpx
    with httpx.stream("POST", chats(), json={**BODY, "stream": True}, timeout=60) as r:
        return told(data_of(r.iter_lines())), WANT


@cell("requests", "answer", "requests")
def _():
    import requests
    return said(requests.post(chats(), json=BODY, timeout=60).text), WANT


@cell("requests", "stream", "requests")
def _():
    import requests
    return told(data_of(line.decode() for line in requests.post(chats(), json={**BODY, "stream": True}, stream=True, timeout=60).iter_lines())), WANT


@cell("urllib3", "answer", "urllib3")
def _():
    import urllib3
    return said(urllib3.PoolManager().request("POST", chats(), json=BODY).data), WANT


async def aio(stream):
    import aiohttp
    async with aiohttp.ClientSession() as s, s.post(chats(), json={**BODY, "stream": stream}) as r:
        return told(data_of([line.decode().rstrip("\n") async for line in r.content])) if stream else said(await r.text())


cell("aiohttp", "answer", "aiohttp")(lambda: (asyncio.run(aio(False)), WANT))
cell("aiohttp", "stream", "aiohttp")(lambda: (asyncio.run(aio(True)), WANT))


@cell("httpx-sse", "stream", "httpx_sse")
def _():
    import httpx
    import httpx_sse
    with httpx.Client(timeout=60) as c, httpx_sse.connect_sse(c, "POST", chats(), json={**BODY, "stream": True}) as s:
        return told(e.data for e in s.iter_sse()), WANT


@cell("sseclient-py", "stream", "sseclient")
def _():
    import requests
    import sseclient
    return told(e.data for e in sseclient.SSEClient(requests.post(chats(), json={**BODY, "stream": True}, stream=True, timeout=60)).events()), WANT


def command(*words, stream=False):
    return subprocess.run(words, input=json.dumps({**BODY, "stream": stream}), capture_output=True, text=True, check=True, timeout=60).stdout


CURL = ("curl", "-sSN", "-H", "Content-Type: application/json", "--data-binary", "@-")
NODE = """const body = require('fs').readFileSync(0, 'utf8');
fetch(process.argv[1], {method: 'POST', headers: {'Content-Type': 'application/json'}, body}).then(r => r.text()).then(t => process.stdout.write(t));"""
cell("curl", "answer", "/curl")(lambda: (said(command(*CURL, chats())), WANT))
cell("curl", "stream", "/curl")(lambda: (told(data_of(command(*CURL, chats(), stream=True).splitlines())), WANT))
cell("curl, gzip body", "answer", "/curl")(lambda: (said(subprocess.run(
    [*CURL, "-H", "Content-Encoding: gzip", chats()], input=__import__("gzip").compress(json.dumps(BODY).encode()), capture_output=True,
    check=True, timeout=60).stdout), WANT))
for way, words in (("HTTP/1.0", ["--http1.0"]), ("body in chunks", ["-H", "Transfer-Encoding: chunked"]), ("offers HTTP/2", ["--http2"]),
                   ("waits for 100", ["-H", "Expect: 100-continue"]), ("as through a proxy", [])):
    cell(f"curl, {way}", "answer", "/curl")(lambda w=way, o=words: (said(command(
        *CURL, *o, *(["-x", HOST, "--noproxy", "", f"http://localhost:{HOST.rsplit(':')[-1]}/v1/chat/completions"] if "proxy" in w else [chats()]))),
        WANT))
cell("wget", "answer", "/wget")(lambda: (said(command("wget", "-qO-", "--header=Content-Type: application/json",
                                                     f"--post-data={json.dumps(BODY)}", chats())), WANT))
cell("node, fetch", "answer", "/node")(lambda: (said(command("node", "-e", NODE, chats())), WANT))
cell("node, fetch", "stream", "/node")(lambda: (told(data_of(command("node", "-e", NODE, chats(), stream=True).splitlines())), WANT))


# ---- rerankers ----

QUERY, DOCUMENTS = "Which dog sleeps?", ["The quick brown fox", "and the dog sleeps on.", "42"]


def ranked():
    """As it is without a client: [(index, score)] of the best two."""
    import requests
    pairs = requests.post(f"{RANKS}/score", json={"text_1": QUERY, "text_2": DOCUMENTS}, timeout=60).json()["data"]
    return sorted(((p["index"], p["score"]) for p in pairs), key=lambda p: -p[1])[:2]


def cohere_ranks(kind):
    import cohere
    made = getattr(cohere, kind)(api_key="none", base_url=RANKS).rerank(model="ranks", query=QUERY, documents=DOCUMENTS, top_n=2)
    return [(r.index, r.relevance_score) for r in made.results], ranked()


def litellm_ranks(provider, path):
    import litellm
    made = litellm.rerank(model=f"{provider}/ranks", api_base=RANKS + path, api_key="none", query=QUERY, documents=DOCUMENTS, top_n=2)
    return [(r["index"], r["relevance_score"]) for r in made.results], ranked()


cell("cohere, v1", "ranks", "cohere")(lambda: cohere_ranks("Client"))
cell("cohere, v2", "ranks", "cohere")(lambda: cohere_ranks("ClientV2"))
cell("litellm, hosted_vllm", "ranks", "litellm")(lambda: litellm_ranks("hosted_vllm", ""))
cell("litellm, cohere", "ranks", "litellm")(lambda: litellm_ranks("cohere", "/v1/rerank"))
cell("litellm, jina_ai", "ranks", "litellm")(lambda: litellm_ranks("jina_ai", ""))


@cell("cohere, v2", "not offered", "cohere")
def _():
    import cohere
    with pytest.raises(cohere.errors.bad_request_error.BadRequestError, match="--hf-overrides"):
        cohere.ClientV2(api_key="none", base_url=HOST).rerank(model="tiny", query=QUERY, documents=DOCUMENTS)
    return "refused", "refused"


@pytest.mark.parametrize("client, does, package, function", CELLS, ids=lambda v: v if isinstance(v, str) else "")
def test_cell(client, does, package, function):
    if not (shutil.which(package[1:]) if package[0] == "/" else importlib.util.find_spec(package)):
        pytest.skip(f"{package.lstrip('/')} is not here")
    SEEN[client, does] = "fails"
    got, want = function()
    assert got == want
    SEEN[client, does] = "refused" if want == "refused" else "works"


def test_the_page_says_so():
    """Last: what was seen is what docs/compatibility.md says; make check-clients writes it there."""
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps([{"client": c, "does": d, "result": SEEN.get((c, d), "not tried")} for c, d, _, _ in CELLS], indent=1))
    write = os.environ.get("CLIENTS_TABLE") == "write"
    done = subprocess.run([ROOT / "tools/clients-table.py", *([] if write else ["--check"])], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
