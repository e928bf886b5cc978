"""Protects: rerankers, classifiers and models for embeddings, as save_pretrained of transformers wrote them, give the scores that
transformers computed, in the forms of vLLM, Cohere and Jina; what a model cannot is 400 with a sentence that names what would."""
import contextlib
import http.client
import json
import math
import subprocess

import jsonschema
import pytest

from conftest import BUILD, ROOT, free_port, get, wait_for

MODELS = ROOT / "tests/fixtures/models"
QWEN = json.dumps({"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["no", "yes"],
                   "is_original_qwen3_reranker": True})
TEMPLATE = ROOT / "packaging/templates/qwen3-reranker.jinja"
NEAR = 1e-4
FIELDS = json.loads((ROOT / "tests/fixtures/score_fields.json").read_text(encoding="utf-8"))
ASKS = {"rerank": ("/v1/rerank", {"query": "Which dog sleeps?", "documents": [" The quick brown fox", " and the dog sleeps on."]}),
        "score": ("/v1/score", {"text_1": "Which dog sleeps?", "text_2": " The quick brown fox"}),
        "classify": ("/classify", {"input": "Which dog sleeps?"}), "pooling": ("/pooling", {"input": "Which dog sleeps?"})}


@contextlib.contextmanager
def serving(model, *more, log="/dev/null"):
    port = free_port(18200)
    with open(log, "wb") as out:
        process = subprocess.Popen([BUILD / "evenkeel-server", "--model", MODELS / model, "--port", str(port), "--host", "127.0.0.1",
                                    "--dtype", "float32", "--served-model-name", "m", "--kv-cache-memory-bytes", "16777216", *more],
                                   stdout=out, stderr=out)
    try:
        wait_for("ready", lambda: get(port, "/health")[0] == 200, 60)
        yield port
    finally:
        process.terminate()
        process.wait(60)


def raw(port, path, **body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, json.dumps({"model": "m", **body}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text, headers = answer.read(), dict(answer.getheaders())
    connection.close()
    return answer.status, json.loads(text), headers


def ask(port, path, **body):
    status, answer, _ = raw(port, path, **body)
    assert status == 200, answer
    return answer


def refused(port, path, **body):
    status, answer, _ = raw(port, path, **body)
    assert status == 400, answer
    return answer["error"]


def told(model):
    return json.loads((MODELS / model / "scores.json").read_text(encoding="utf-8"))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def near(have, want):
    assert len(have) == len(want)
    for h, w in zip(have, want):
        assert abs(h - w) <= NEAR, (have, want)


@pytest.fixture(scope="module", params=["scores-qwen3", "scores-gemma2", "scores-qwen3-lm", "framed", "framed-lm"])
def reranker(request):
    """port, pairs and the number of each pair before anything is made of it"""
    framed = request.param.startswith("framed")
    model = {"framed": "scores-qwen3", "framed-lm": "scores-qwen3-lm"}.get(request.param, request.param)
    facts = told(model)
    logits = facts["templated"]["logits"] if framed else facts["logits"]
    more = (["--chat-template", TEMPLATE] if framed else []) + (["--hf-overrides", QWEN] if model.endswith("-lm") else [])
    with serving(model, *more) as port:
        yield port, facts["pairs"], [v[0] if len(v) == 1 else v[1] - v[0] for v in logits]


def test_scores_are_those_of_transformers(reranker):
    port, pairs, numbers = reranker
    firsts, seconds = map(list, zip(*pairs))
    for path, names in (("/score", ("text_1", "text_2")), ("/v1/score", ("queries", "documents")), ("/score", ("queries", "items")),
                        ("/v1/score", ("data_1", "data_2"))):
        answer = ask(port, path, **dict(zip(names, (firsts, seconds))))
        assert [d["index"] for d in answer["data"]] == list(range(len(pairs))) and answer["data"][0]["object"] == "score"
        near([d["score"] for d in answer["data"]], [sigmoid(x) for x in numbers])
    plain = ask(port, "/score", text_1=firsts, text_2=seconds, use_activation=False)
    near([d["score"] for d in plain["data"]], numbers)
    assert plain["usage"]["prompt_tokens"] == plain["usage"]["total_tokens"] > 0 and plain["id"].startswith("score-")


def test_ranks(reranker):
    port, pairs, numbers = reranker
    query, document = pairs[0]
    documents = [document, {"text": pairs[1][1]}, document, pairs[3][1]]
    texts = [d if isinstance(d, str) else d["text"] for d in documents]
    scores = [d["score"] for d in ask(port, "/score", text_1=query, text_2=texts)["data"]]
    assert abs(scores[0] - sigmoid(numbers[0])) <= NEAR and scores[0] == scores[2]
    order = sorted(range(4), key=lambda i: (-scores[i], i))
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        answer = ask(port, path, query=query, documents=documents)
        assert [r["index"] for r in answer["results"]] == order
        assert [r["document"]["text"] for r in answer["results"]] == [texts[i] for i in order]
        near([r["relevance_score"] for r in answer["results"]], [scores[i] for i in order])
        assert answer["id"].startswith("rerank-") and answer["usage"]["total_tokens"] > 0
    best = ask(port, "/v1/rerank", query=query, documents=documents, top_n=2, return_documents=False)["results"]
    assert [r["index"] for r in best] == order[:2] and not any("document" in r for r in best)
    assert len(ask(port, "/v1/rerank", query=query, documents=documents, top_n=99)["results"]) == 4
    cut = ask(port, "/v1/rerank", query=query, documents=texts, max_tokens_per_doc=3, max_tokens_per_query=2)
    assert cut["usage"]["total_tokens"] < answer["usage"]["total_tokens"]


def test_fields_that_are_refused(reranker):
    port, pairs, _ = reranker
    body = {"query": pairs[0][0], "documents": ["a", "b"]}
    for more, param in (({"query": None}, "query"), ({"query": ["a", "b"]}, "query"), ({"documents": []}, "documents"),
                        ({"documents": [{"title": "x"}]}, "documents"), ({"documents": [5]}, "documents"),
                        ({"rank_fields": ["title"]}, "rank_fields"), ({"top_n": -1}, "top_n"), ({"padding": "max_length"}, "padding"),
                        ({"truncation_side": "middle"}, "truncation_side"), ({"return_documents": "yes"}, "return_documents")):
        assert refused(port, "/v1/rerank", **{**body, **more})["param"] == param
    assert refused(port, "/score", text_1=["a", "b"], text_2=["a"])["param"] == "text_2"
    assert "same" in refused(port, "/score", text_1="a", queries="b", text_2="c")["message"]
    assert "maximum context length" in refused(port, "/v1/rerank", query="a", documents=["b " * 4000])["message"]
    fits = {"query": "a", "documents": ["b " * 4000]}
    assert ask(port, "/v1/rerank", **fits, truncate_prompt_tokens=-1)["usage"]["total_tokens"] > 1000
    assert ask(port, "/v1/rerank", **fits, truncate_prompt_tokens=5, truncation_side="right")["usage"]["total_tokens"] == 5
    status, _, headers = raw(port, "/v1/rerank", **body, max_chunks_per_doc=3, user="u", unheard_of=1, rank_fields=["text"])
    assert status == 200 and {"max_chunks_per_doc", "user", "unheard_of"} <= set(headers["X-Ignored-Fields"].split(", "))


def test_marks_in_documents_stay_text():
    """What a document says does not end the frame that it stands in."""
    with serving("scores-qwen3", "--chat-template", TEMPLATE) as port:
        answer = ask(port, "/score", text_1="a", text_2=["<|im_end|>", "x"])
        one = ask(port, "/tokenize", prompt="<|im_end|>", add_special_tokens=False)["count"]
        assert one == 1
        a, b = (ask(port, "/score", text_1="a", text_2=[t])["usage"]["prompt_tokens"] for t in ("<|im_end|>", "x"))
        assert a > b and answer["usage"]["prompt_tokens"] == a + b
        plain = ask(port, "/score", text_1="a", text_2="x")["data"][0]["score"]
        said = ask(port, "/score", text_1="a", text_2="x", instruction="Is it about birds?")["data"][0]["score"]
        assert plain != said


def test_classes():
    facts = told("scores-llama")
    with serving("scores-llama") as port:
        texts = [a + b for a, b in facts["pairs"]]
        answer = ask(port, "/classify", input=texts)
        for row, logits in zip(answer["data"], facts["logits"]):
            total = sum(math.exp(x) for x in logits)
            near(row["probs"], [math.exp(x) / total for x in logits])
            assert row["num_classes"] == 3 and row["label"] == ["cold", "mild", "hot"][logits.index(max(logits))]
        near(ask(port, "/classify", input=texts[0], use_activation=False)["data"][0]["probs"], facts["logits"][0])
        near(ask(port, "/pooling", input=texts[0], task="classify")["data"][0]["data"], answer["data"][0]["probs"])
        assert "3 classes" in refused(port, "/score", text_1="a", text_2="b")["message"]
        assert "/classify" in refused(port, "/v1/chat/completions", messages=[{"role": "user", "content": "a"}])["message"]
        assert "task" == refused(port, "/pooling", input="a", task="token_classify")["param"]


def test_vectors():
    facts = told("scores-qwen3-embed")
    with serving("scores-qwen3-embed") as port:
        answer = ask(port, "/v1/embeddings", input=facts["texts"])
        for row, vector in zip(answer["data"], facts["vectors"]):
            near(row["embedding"], vector)
        near(ask(port, "/pooling", input=facts["texts"][1])["data"][0]["data"], facts["vectors"][1])
        long = ask(port, "/pooling", input=facts["texts"][1], task="embed", use_activation=False)["data"][0]["data"]
        size = math.sqrt(sum(x * x for x in long))
        assert abs(size - 1) > 0.1
        near([x / size for x in long], facts["vectors"][1])
        query, *others = facts["vectors"]
        want = [sum(x * y for x, y in zip(query, v)) for v in others]
        scores = ask(port, "/score", text_1=facts["texts"][0], text_2=facts["texts"][1:])["data"]
        near([d["score"] for d in scores], want)
        ranks = ask(port, "/v1/rerank", query=facts["texts"][0], documents=facts["texts"][1:])["results"]
        assert [r["index"] for r in ranks] == sorted(range(len(want)), key=lambda i: -want[i])
        pairs = ask(port, "/score", text_1=facts["texts"][:2], text_2=facts["texts"][2:4])["data"]
        near([d["score"] for d in pairs], [sum(x * y for x, y in zip(facts["vectors"][i], facts["vectors"][i + 2])) for i in range(2)])
        assert "/v1/embeddings" in refused(port, "/v1/completions", prompt="a")["message"]
        assert refused(port, "/classify", input="a")["param"] == "model"


def test_said_to_embed(tmp_path):
    """A model for text scores pairs by vectors where the operator says that it is made for them."""
    with serving("served-qwen2", "--convert", "embed") as port:
        one = ask(port, "/score", text_1="the dog", text_2="the dog")["data"][0]["score"]
        assert abs(one - 1) <= NEAR
        assert ask(port, "/v1/completions", prompt="a", max_tokens=2)["choices"]


@pytest.mark.parametrize("overrides, word", [
    ('{"classifier_from_token": ["no", "supercalifragilistic"]}', "not one token"), ("[]", "JSON object"), ("{", "JSON object"),
    ('{"rope_theta": 1}', "config.json"), ('{"architectures": ["Qwen3ForSequenceClassification"]}', "classifier_from_token"),
    ('{"classifier_from_token": ["no"], "is_original_qwen3_reranker": true}', "two of them"),
    ('{"classifier_from_token": ["no", "yes"], "method": "best"}', "from_2_way_softmax")])
def test_bad_overrides(overrides, word):
    done = subprocess.run([BUILD / "evenkeel-server", "--model", MODELS / "scores-qwen3-lm", "--port", str(free_port(18200)),
                           "--hf-overrides", overrides], capture_output=True, text=True, timeout=60)
    assert done.returncode == 78 and word in done.stderr, done.stderr


def test_words_as_classes():
    """Without the form of Qwen3-Reranker each word is a class of its own."""
    facts = told("scores-qwen3-lm")
    with serving("scores-qwen3-lm", "--hf-overrides", '{"classifier_from_token": ["no", "yes"], "method": "no_post_processing"}') as port:
        text = "".join(facts["pairs"][0])
        near(ask(port, "/classify", input=text, use_activation=False)["data"][0]["probs"], facts["logits"][0])
        assert ask(port, "/v1/completions", prompt="a", max_tokens=2)["choices"], "it still writes"


@pytest.fixture(scope="module")
def plain():
    with serving("scores-qwen3") as port:
        yield port


@pytest.mark.parametrize("dialect", list(FIELDS))
def test_every_field(plain, dialect):
    """As test_dialects.py: nothing is dropped in silence."""
    usual = {api: ask(plain, path, **body) for api, (path, body) in ASKS.items()}
    for name, cases in FIELDS[dialect].items():
        for case in cases:
            for api in case.get("on", ASKS):
                path, body = ASKS[api]
                status, answer, headers = raw(plain, path, **body, **{name: case["value"]})
                what = (dialect, api, name, case, status, answer)
                if case["fate"] == "refused":
                    assert status == 400 and answer["error"]["param"] == name, what
                    continue
                assert status == 200, what
                assert (name in (headers.get("X-Ignored-Fields") or "").split(", ")) == (case["fate"] == "free"), what
                rows = answer.get("results", answer.get("data"))
                same = rows == usual[api].get("results", usual[api].get("data"))
                if case["fate"] == "changes":
                    assert not same, what
                elif case["fate"] == "tokens":
                    assert answer["usage"]["prompt_tokens"] == case["is"] * (2 if api == "rerank" else 1), what
                elif case["fate"] == "results":
                    assert len(rows) == case["is"], what
                elif case["fate"] == "free":
                    assert same, what


def test_every_row_has_its_case(plain):
    schemas = json.loads(get(plain, "/openapi.json")[1])["components"]["schemas"]
    own = {"model", "query", "documents", "text_1", "text_2", "queries", "items", "data_1", "data_2", "input"}
    for form in ("Rerank", "Score", "Classify", "Pooling"):
        left = set(schemas[form + "Request"]["properties"]) - {n for fields in FIELDS.values() for n in fields} - own
        assert not left, (form, left)


def test_answers_are_as_described(plain):
    components = json.loads(get(plain, "/openapi.json")[1])["components"]
    for api, name in (("rerank", "Ranks"), ("score", "Scores"), ("classify", "Classes"), ("pooling", "Pooled")):
        path, body = ASKS[api]
        schema = components["schemas"][name]
        key = "results" if api == "rerank" else "data"
        answer = ask(plain, path, **body)
        jsonschema.validate(answer, {"$ref": f"#/components/schemas/{name}", "components": components})
        row = schema["properties"][key]["items"]["$ref"].split("/")[-1]
        assert set(answer) == set(schema["properties"]) and set(answer[key][0]) == set(components["schemas"][row]["properties"])
