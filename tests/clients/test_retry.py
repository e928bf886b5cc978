"""Protects: who is told to come later comes later. A key that has its share open gets 429, a server that drains 503, both with Retry-After; the
clients' own retries wait for it and are answered then, so that the user of a client sees neither."""
import concurrent.futures
import http.client
import json
import os
import time

import pytest

from conftest import ROOT, Bare, metric, wait_for

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no look-ups elsewhere
CASE = next(c for c in json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"] if c["name"] == "kv-cache")
TURNS, WANT, TRIES, KEY = CASE["messages"], CASE["output_text"], 4, "sk-one"
ASK = {"model": "tiny", "messages": TURNS, "temperature": 0, "max_tokens": 160}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    run = tmp_path_factory.mktemp("retry")
    (run / "keys").write_text(f"one {KEY} max-concurrency=1\n")
    s = Bare(run, "--api-key-file", run / "keys")
    yield s
    s.stop()


def by_openai(base):
    import openai
    return openai.OpenAI(base_url=base + "/v1", api_key=KEY, max_retries=TRIES).chat.completions.create(**ASK).choices[0].message.content


def by_openai_stream(base):
    import openai
    chunks = openai.OpenAI(base_url=base + "/v1", api_key=KEY, max_retries=TRIES).chat.completions.create(**ASK, stream=True)
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def by_anthropic(base):
    import anthropic
    client = anthropic.Anthropic(base_url=base, api_key=KEY, max_retries=TRIES)
    return client.messages.create(model="tiny", max_tokens=160, messages=TURNS, extra_body={"temperature": 0}).content[0].text


def by_litellm(base):
    import litellm
    made = litellm.completion(**{**ASK, "model": "hosted_vllm/tiny"}, api_base=base + "/v1", api_key=KEY, num_retries=TRIES, retry_strategy="exponential_backoff_retry")
    return made.choices[0].message.content


def by_langchain(base):
    from langchain_openai import ChatOpenAI
    return ChatOpenAI(model="tiny", base_url=base + "/v1", api_key=KEY, temperature=0, max_tokens=160, max_retries=TRIES).invoke(TURNS).content


def by_llama_index(base):
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike
    made = OpenAILike(model="tiny", api_base=base + "/v1", api_key=KEY, is_chat_model=True, temperature=0, max_tokens=160, max_retries=TRIES)
    return made.chat([ChatMessage(role=m["role"], content=m["content"]) for m in TURNS]).message.content


def by_agents(base):
    import agents
    import openai
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=base + "/v1", api_key=KEY, max_retries=TRIES)
    agent = agents.Agent(name="helper", model=agents.OpenAIChatCompletionsModel(model="tiny", openai_client=client),
                         model_settings=agents.ModelSettings(temperature=0, max_tokens=160))
    return agents.Runner.run_sync(agent, TURNS).final_output


CLIENTS = [(by_openai, "openai"), (by_openai_stream, "openai"), (by_anthropic, "anthropic"), (by_litellm, "litellm"), (by_langchain, "langchain_openai"),
           (by_llama_index, "llama_index"), (by_agents, "agents")]


def answered(server, status):
    return sum(float(line.rsplit(" ", 1)[1]) for line in server.metrics().splitlines()
               if line.startswith("evenkeel_http_requests_total{") and f'code="{status}"' in line)


def retried(server, client, status, again):
    """The client's text, where it asks while it is refused with that status, until again() lets it in."""
    before = answered(server, status)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        text = pool.submit(client, f"http://127.0.0.1:{server.port}")
        try:
            wait_for("the client was refused", lambda: answered(server, status) > before or text.done(), 60)
        finally:
            again()
        said = text.result(60)
    assert answered(server, status) > before
    return said


@pytest.mark.parametrize("client, package", CLIENTS, ids=lambda v: v.__name__[3:] if callable(v) else "")
def test_too_many_requests(server, client, package):
    pytest.importorskip(package)  # before the other request computes
    # 128 long answers, one at a time: minutes, unless the client leaves
    long = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def begun():
        """The key's place may be free a moment after its last answer: until then this one is refused, too."""
        long.close()
        long.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "n": 128, "max_tokens": 1900, "ignore_eos": True}),
                     {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
        for _ in range(50):
            if metric(server.metrics(), "vllm:num_requests_running") == 1:
                return True
            time.sleep(0.02)
        return False

    wait_for("it runs", begun)
    assert retried(server, client, 429, long.close) == WANT


@pytest.mark.parametrize("client, package", [c for c in CLIENTS if c[0] in (by_openai, by_anthropic)], ids=lambda v: v.__name__[3:] if callable(v) else "")
def test_draining(server, client, package):
    pytest.importorskip(package)  # before the other request computes
    assert server.local("/drain", "POST", json.dumps({"mode": "refuse", "deadline_s": 600, "exit": False}))[0] == 200
    assert retried(server, client, 503, lambda: server.local("/resume", "POST", "{}")) == WANT


def test_what_they_wait_for(server):
    """The time itself, in both: clients take whole seconds."""
    assert server.local("/drain", "POST", json.dumps({"mode": "refuse", "deadline_s": 600, "exit": False}))[0] == 200
    status, headers, _ = server.ask("/v1/completions", "POST", json.dumps({"prompt": "Once"}), {"Authorization": f"Bearer {KEY}"})
    server.local("/resume", "POST", "{}")
    assert status == 503 and 1 <= int(headers["retry-after"]) <= 60
