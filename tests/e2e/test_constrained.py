"""Protects: what the answer's form promises holds. Random schemas and patterns, drawn without a model by the thousand and with the
model at temperature 1.5: every answer that ends by itself is valid. And that the bad ones are refused with their place."""
import concurrent.futures
import json
import os
import re
import subprocess

import jsonschema
import openai
import pytest

import schemas
from conftest import BUILD, MODEL, metric

OFFLINE, WITHIN, WITH_MODEL = 2000, 500, int(os.environ.get("SCHEMAS", 100))
MAX_TOKENS = 400
CHECK = jsonschema.Draft202012Validator


def ask_tool(questions):
    done = subprocess.run([BUILD / "tests/tools/constrain", MODEL], input="\n".join(json.dumps(q) for q in questions) + "\n",
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.split("\n")[:-1]]
    assert len(answers) == len(questions)
    return answers


def valid(schema, text):
    value = json.loads(text)
    return CHECK(schema, format_checker=CHECK.FORMAT_CHECKER).is_valid(value)


def refusable(schema, error):
    """A random schema may contradict itself, or ask for what docs/api.md leaves out."""
    known = ("no text at all", "no number lies", "may both be valid", "no value of it", "anchors are offered", "cannot be joined",
             "no type is left", "begin with itself", "required property", "is not let in", "too large")
    return any(k in error for k in known)


@pytest.mark.long
def test_random_schemas_without_a_model():
    made = [schemas.schema(i) for i in range(OFFLINE)]
    answers = ask_tool([{"kind": 1, "text": json.dumps(s), "seed": i, "samples": 4} for i, s in enumerate(made)])
    texts = cut = refused = 0
    for s, a in zip(made, answers):
        cut += a["cut"]
        if "error" in a:
            assert refusable(s, a["error"]), (s, a["error"])
            refused += 1
        for text in a["texts"]:
            texts += 1
            assert valid(s, text), (json.dumps(s), text)
    print(f"{OFFLINE} schemas, {refused} refused, {texts} texts valid, {cut} cut")
    assert refused < 0.1 * OFFLINE and texts > 3 * OFFLINE and cut < 0.05 * texts


@pytest.mark.long
def test_random_texts_end_within_their_tokens():
    """Nothing but the number of tokens makes these texts end: drawn evenly, with no to some tokens more than the shortest text takes."""
    made = [schemas.schema(i) for i in range(WITHIN)] + [schemas.object_schema(i, bounded=False) for i in range(WITHIN)]
    answers = ask_tool([{"kind": 1, "text": json.dumps(s), "seed": i, "samples": 2, "spare": i % 7 * (i % 23)} for i, s in enumerate(made)])
    texts = 0
    for s, a in zip(made, answers):
        if "error" in a:
            assert refusable(s, a["error"]), (s, a["error"])
            continue
        assert a["cut"] == 0 or a["needs"] > 1000, (json.dumps(s), a)
        for text in a["texts"]:
            texts += 1
            assert valid(s, text), (json.dumps(s), text)
    assert texts > 3 * WITHIN


def near(r, text):
    """A text that may or may not match what the text does."""
    at = r.randint(0, len(text))
    return text[:at] + r.choice(["", "a", "b", "0", "x", "z", "-", ".", " ", "é", "A", "_", "xx"]) + text[at + r.randint(0, 1):]


@pytest.mark.long
def test_random_patterns_without_a_model():
    made = [schemas.a_pattern(schemas.random.Random(i)) for i in range(600)]
    answers = ask_tool([{"kind": 2, "text": p, "seed": i, "samples": 4} for i, p in enumerate(made)])
    texts = large = 0
    for p, a in zip(made, answers):
        large += "too large" in a.get("error", "")
        assert "error" not in a or "too large" in a["error"], (p, a)
        for text in a["texts"]:
            texts += 1
            assert re.fullmatch(p, text), (p, text)
    assert texts > 2000 and large < 12
    # The other way round: of texts near those, the same ones match. Both are ASCII's digits and words. Python takes for ever to
    # refuse a text where repeated groups repeat something.
    quick = [not any(f"){c}" in p for c in "*+{?") for p in made]
    tried = [[near(schemas.random.Random(7 * i + k), t) for k, t in enumerate(a["texts"] * 5 + ["", "a", "1"]) if quick[i] and i < 250 and len(t) < 24] for i, a in enumerate(answers)]
    agreed, matching = 0, 0
    asked = [{"kind": 2, "text": p, "seed": 1, "samples": 0, "check": t} for p, t in zip(made, tried) if t]
    for p, a, texts_near in zip((q["text"] for q in asked), ask_tool(asked), (q["check"] for q in asked)):
        for text, fits in zip(texts_near, a.get("fits", [])):
            assert fits == bool(re.fullmatch(p, text, re.ASCII)), (p, text, fits)
            agreed += 1
            matching += fits
    print(f"{len(made)} patterns: {texts} texts match, of {agreed} texts near them {matching} match for both")
    assert agreed > 1500 and 150 < matching < agreed - 150
    # Searched, in strings of schemas: with anchors and without.
    forms = [f.format(p) for p in made[:300] for f in ("^(?:{})$", "{}") if not p.startswith(("^", "|"))]
    answers = ask_tool([{"kind": 1, "text": json.dumps({"type": "string", "pattern": p}), "seed": i, "samples": 3}
                        for i, p in enumerate(forms)])
    for p, a in zip(forms, answers):
        assert "error" not in a or "too large" in a["error"], (p, a)
        for text in a["texts"]:
            assert re.search(p, json.loads(text)), (p, text)


def looking_ahead(r):
    """A pattern that says at its beginning what else holds."""
    def some():
        return "".join(r.choice(["a", "b", "[ab]", r"\d", ".", "a*", "b+", "(ab|b)", "[^a]", "1?"]) for _ in range(r.randint(1, 3)))
    ahead = "".join(f"({r.choice(['?=', '?!'])}{some()}{r.choice(['', '$', '|a'])})" for _ in range(r.randint(1, 2)))
    return r.choice(["", "^"]) + ahead + some() + r.choice(["", "$", "|b"])


@pytest.mark.long
@pytest.mark.parametrize("kind", [1, 2])
def test_patterns_that_look_ahead(kind):
    """Of short texts the same match for Python, and what is drawn matches: whole, and found in strings of schemas, there with a length."""
    made = [looking_ahead(schemas.random.Random(i)) for i in range(300)]
    texts = ["".join(schemas.random.Random(i).choice("ab1c") for _ in range(i % 6)) for i in range(60)]
    forms = [p if kind == 2 else json.dumps({"type": "string", "pattern": p, **({"maxLength": 4} if i % 2 else {})}) for i, p in enumerate(made)]
    answers = ask_tool([{"kind": kind, "text": f, "seed": i + 1, "samples": 3, "check": texts if kind == 2 else [json.dumps(t) for t in texts]}
                        for i, f in enumerate(forms)])
    agreed = matching = 0
    for i, (p, a) in enumerate(zip(made, answers)):
        def right(text):
            return bool(re.fullmatch(p, text, re.ASCII) if kind == 2 else re.search(p, text, re.ASCII) and (i % 2 == 0 or len(text) <= 4))
        assert "error" not in a or "no text at all" in a["error"], (p, a)
        assert all(right(t if kind == 2 else json.loads(t)) for t in a["texts"]), (p, a["texts"])
        for text, fits in zip(texts, a.get("fits", [])):
            assert fits == right(text), (p, text, fits)
            agreed += 1
            matching += fits
    print(f"{len(made)} patterns: of {agreed} texts {matching} match for both")
    assert 400 < matching < agreed - 400


BEGIN = {"hermes": ["<tool_call>", "I will look.\n<tool_call>\n{\"name\": \"", ""], "llama3_json": ["{", "<|python_tag|>", "{\"name\": ", ""],
         "mistral": ["[TOOL_CALLS]", "Well[TOOL_CALLS][", "[TOOL_CALLS]f"], "qwen3_coder": ["<tool_call>", "So:<tool_call>\n<function=f>"],
         "pythonic": ["[", "<|python_start|>", "[f(", ""], "seed_oss": ["<seed:tool_call>", "So:<seed:tool_call>\n<function=f>"],
         "glm45": ["<tool_call>", "So:\n<tool_call>f"], "ernie45": ["<tool_call>"],
         "hunyuan_a13b": ["<tool_calls>", "<tool_calls>[{\"name\": \"f"], "deepseek_v3": ["<｜tool▁calls▁begin｜>"],
         "deepseek_v31": ["<｜tool▁calls▁begin｜>", "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f"],
         "gemma4": ["<|tool_call>", "<|tool_call>call:f"], "kimi_k2": ["<|tool_calls_section_begin|>"],
         "granite": ["<|tool_call|>", "So <tool_call> [{"], "phi4_mini_json": ["functools[", "so functools[{\"name\""],
         "nemotron_json": ["<TOOLCALL>", "Well.<TOOLCALL>[{"], "lfm2": ["<|tool_call_start|>", "Hm.<|tool_call_start|>[f("],
         "olmo3": ["<function_calls>", "Hm.\n<function_calls>\nf("],
         "hy_v3": ["<tool_calls:opensource>", "Hm.<tool_calls>\n<tool_call>f<tool_sep>"],
         "minimax_m2": ["<minimax:tool_call>", "Hm.\n<minimax:tool_call>\n<invoke name=\"f"]}
LISTS = ("mistral", "hunyuan_a13b", "deepseek_v3", "deepseek_v31", "kimi_k2", "minimax_m2", "hy_v3", "granite", "phi4_mini_json", "nemotron_json", "lfm2", "olmo3")
APART = ("qwen3_coder", "pythonic", "mistral", "seed_oss", "glm45", "minimax_m2", "hy_v3", "gemma4", "lfm2", "olmo3")  # a parameter at a time, or no names for g


def a_tool(seed, style):
    """A strict tool f with what the style can write, and g, which takes anything."""
    r = schemas.random.Random(seed)
    m = schemas.Maker(seed)
    plain = [{"type": "integer", "minimum": 1, "maximum": 99}, {"type": "boolean"}, {"type": "array", "items": {"type": "integer"}},
             {"type": "string"}, {"type": "string", "enum": ["one", "two words", "3"]}, {"type": "number", "minimum": 0}, {"type": "null"},
             {"type": "object", "properties": {"k": {"type": "string"}, "n": {"type": "null"}}, "required": ["n"]}]
    names = r.sample(["city", "unit", "a_b", "x1", "query", "Z"], r.randint(0, 4))
    whole = style not in ("qwen3_coder", "pythonic", "seed_oss", "glm45", "minimax_m2", "hy_v3", "gemma4", "lfm2", "olmo3")
    properties = {n: m.schema(2) if whole and r.random() < 0.5 else r.choice(plain) for n in names}
    schema = {"type": "object", "properties": properties, "required": [n for n in names if r.random() < 0.6], "additionalProperties": False}
    if m.defs:
        schema["$defs"] = m.defs
    return schema, [{"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}},
                    {"type": "function", "function": {"name": "g_2", "parameters": {"type": "object"}}}]


@pytest.mark.long
@pytest.mark.parametrize("style", list(BEGIN))
def test_strict_tools_without_a_model(style):
    """Whatever follows the mark of a call is a call for the parser of its style, with valid arguments where the tool is strict."""
    made, asked = [], []
    for i in range(80):
        schema, tools = a_tool(i, style)
        made.append(schema)
        asked.append({"kind": 6, "text": json.dumps({"style": style, "one": i % 3 == 0, "tools": tools}), "seed": i, "samples": 3,
                      "spare": 160 + i % 60, "begin": BEGIN[style][i % len(BEGIN[style])], "style": style})
    strict = others = 0
    for schema, ask, answer in zip(made, asked, ask_tool(asked)):
        if "error" in answer:
            assert refusable(schema, answer["error"]), (json.dumps(schema), answer["error"])
            continue
        assert answer["cut"] == 0, (ask, answer)
        for text, calls in zip(answer["texts"], answer["calls"]):
            assert calls or not ask["begin"], (ask, text)
            assert len(calls) == 1 or not json.loads(ask["text"])["one"] or not calls, (ask, text)
            for name, arguments in calls:
                assert name in ("f", "g_2"), text
                strict += name == "f"
                others += name == "g_2"
                value = json.loads(arguments)
                assert isinstance(value, dict) and (name == "g_2" or valid(schema, arguments)), (json.dumps(schema), text, arguments)
    print(f"{style}: {strict} calls of a strict tool are valid, {others} of another one are read")
    assert strict > 40 and (others > 30 or style in APART)


FORMS = [(0, "", dict), (3, json.dumps(["yes", "[no]", "{maybe}"]), None), (2, "[a-z<\\[{]{1,8}", None),
         (1, json.dumps({"type": "object", "properties": {"name": {"type": "string"}, "parameters": {"type": "object"}},
                         "required": ["name"], "additionalProperties": False}), dict),
         (1, json.dumps({"type": "array", "items": {"type": "string"}}), list)]


def of_form(kind, text, value):
    if kind == 3:
        return value in json.loads(text)
    return re.fullmatch(text, value) is not None if kind == 2 else valid(json.loads(text or '{"type": "object"}'), value)


@pytest.mark.long
@pytest.mark.parametrize("style", list(BEGIN))
def test_calls_or_a_form_without_a_model(style):
    """response_format beside tools: the answer is calls that the parser reads to the last byte, or a text of the form that it does not touch."""
    begin = {"hermes": "<tool_call>", "llama3_json": '{"name": "g_2", "parameters": ', "mistral": "[TOOL_CALLS]", "qwen3_coder": "<tool_call>",
             "pythonic": "[g_2("}.get(style) or BEGIN[style][0]
    made, asked = [], []
    for i in range(60):
        schema, tools = a_tool(i, style)
        kind, text, _ = FORMS[i % len(FORMS)]
        made.append((schema, kind, text))
        asked.append({"kind": 7, "text": json.dumps({"style": style, "one": i % 3 == 0, "most": 3, "tools": tools, "form": {"kind": kind, "text": text}}),
                      "seed": i, "samples": 4, "spare": 160 + i % 60, "style": style, **({"begin": begin} if i % 2 else {})})
    calls = texts = 0
    for (schema, kind, text), ask, answer in zip(made, asked, ask_tool(asked)):
        if "error" in answer:
            assert refusable(schema, answer["error"]), (json.dumps(schema), answer["error"])
            continue
        assert answer["cut"] == 0, (ask, answer)
        for whole, made_calls, rest in zip(answer["texts"], answer["calls"], answer["rest"]):
            most = 1 if json.loads(ask["text"])["one"] else 99 if style in LISTS else 3  # their lists have no bound
            assert 1 <= len(made_calls) <= most and not rest.strip() or not made_calls and rest == whole, (whole, rest)
            assert made_calls or "begin" not in ask or style == "llama3_json", (ask, whole)
            calls, texts = calls + bool(made_calls), texts + (not made_calls)
            assert made_calls or of_form(kind, text, whole), (kind, text, whole)
            for name, arguments in made_calls:
                assert name == "g_2" and isinstance(json.loads(arguments), dict) or name == "f" and valid(schema, arguments), whole
    print(f"{style}: {calls} answers are calls, {texts} are of the form")
    assert calls > 60 and texts > 60


@pytest.fixture(scope="module")
def client(shared):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{shared.port}/v1", api_key="none", max_retries=0)


def complete(client, seed, max_tokens=MAX_TOKENS, **form):
    c = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": f"Give me number {seed} as JSON"}],
                                       temperature=1.5, seed=seed, max_tokens=max_tokens, **form)
    return c.choices[0].message.content, c.choices[0].finish_reason, c.usage.completion_tokens


def as_format(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}}


@pytest.mark.long
def test_schemas_with_the_model(client):
    """Half of the schemas set no bound to texts, lists and numbers of properties: max_tokens does, and the answers still end."""
    made = {i: schemas.object_schema(100000 + i, bounded=i % 2 == 0) if i % 4 else schemas.schema(100000 + i) for i in range(WITH_MODEL)}
    ended, refused, cut, at_limit = 0, 0, 0, 0

    def one(i):
        try:
            return i, *complete(client, i, **as_format(made[i]))
        except openai.BadRequestError as error:
            return i, str(error), "refused", 0

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        for i, text, why, tokens in pool.map(one, made):
            if why == "refused":
                assert refusable(made[i], text), (made[i], text)
                refused += 1
            elif why == "stop":
                ended += 1
                at_limit += tokens > 0.95 * MAX_TOKENS
                assert valid(made[i], text), (json.dumps(made[i]), text)
            else:
                assert why == "length", (i, why)
                cut += 1
    print(f"{WITH_MODEL} schemas: {refused} refused, {ended} answers ended by themselves and are valid, {cut} were cut; "
          f"{at_limit} took more than 95 % of {MAX_TOKENS} tokens")
    assert refused < 0.1 * WITH_MODEL and ended >= 0.95 * (WITH_MODEL - refused)


def test_a_form_may_be_cut(client):
    """Where max_tokens is below the shortest text, or the client wants it so, the answer is a part of one, as it was drawn."""
    form = as_format({"type": "object", "properties": {"text": {"type": "string"}, "next": {"type": "boolean"}}, "required": ["text", "next"]})
    cut = {}
    for i in range(12):
        text, why, tokens = complete(client, i, max_tokens=24, extra_body={"finish_form": False}, **form)
        if why == "length":
            cut[i] = text
        whole, why, tokens = complete(client, i, max_tokens=24, **form)
        assert why == "stop" and isinstance(json.loads(whole)["next"], bool) and tokens <= 24
        assert i in cut or whole == text
    assert sum(not text.rstrip().endswith("}") for text in cut.values()) > 3
    assert complete(client, 5, max_tokens=3, **form)[1] == "length"


def test_other_forms(client, shared):
    for i, pattern in enumerate([r"[a-z]{3,8}", r"\d{4}-\d{2}-\d{2}", r"(yes|no|perhaps)( indeed)?", r"[^x]{5}"]):
        text, why, _ = complete(client, i, extra_body={"structured_outputs": {"regex": pattern}})
        assert why == "stop" and re.fullmatch(pattern, text), (pattern, text)
    text, why, _ = complete(client, 1, extra_body={"guided_choice": ["red", "green", "greenish blue"]})
    assert why == "stop" and text in ("red", "green", "greenish blue")
    ebnf = 'root ::= "(" num (" + " num)* ")"\nnum ::= [1-9] [0-9]{0,2}'
    text, why, _ = complete(client, 2, extra_body={"structured_outputs": {"grammar": ebnf}})
    assert why == "length" or re.fullmatch(r"\([1-9]\d{0,2}( \+ [1-9]\d{0,2})*\)", text), text
    for i in range(4):
        text, why, _ = complete(client, i, response_format={"type": "json_object"})
        assert why == "length" or isinstance(json.loads(text), dict), text
    text, why, _ = complete(client, 3, extra_body={"guided_json": json.dumps({"enum": ["a", "b"]})})
    assert why == "stop" and json.loads(text) in ("a", "b")
    page = shared.metrics()
    assert metric(page, "evenkeel_grammars_total", result="compiled") >= 8
    assert metric(page, "evenkeel_masks_total") > 100


def test_streams_and_company_change_nothing(client):
    """The same seed gives the same text alone, streamed, and among others; log probabilities come along."""
    form = as_format(schemas.object_schema(100003))
    alone = [complete(client, i, **form)[0] for i in range(6)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        free = [pool.submit(client.completions.create, model="tiny", prompt="Once", max_tokens=120) for _ in range(6)]
        among = list(pool.map(lambda i: complete(client, i, **form)[0], range(6)))
        assert all(f.result().usage.completion_tokens > 0 for f in free)
    assert alone == among
    stream = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Give me number 2 as JSON"}], stream=True,
                                            temperature=1.5, seed=2, max_tokens=MAX_TOKENS, logprobs=True, **form)
    text = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    assert text == alone[2]
    several = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}], n=4, temperature=1.5, seed=9,
                                             max_tokens=60, extra_body={"guided_regex": "[ab]{4,9}"})
    assert all(re.fullmatch("[ab]{4,9}", c.message.content) for c in several.choices)


TOOL = {"type": "function", "function": {"name": "get_current_weather", "parameters": {
    "type": "object", "required": ["location", "unit", "days"], "additionalProperties": False,
    "properties": {"location": {"type": "string", "maxLength": 12}, "unit": {"enum": ["celsius", "fahrenheit"]},
                   "days": {"type": "integer", "minimum": 1, "maximum": 14}}}}}


def test_forced_tokens(client, shared):
    """What a form leaves no choice about costs no step. Log probabilities want a step for each token: so they show what it is without."""
    def run(**more):
        before = shared.metrics()
        texts, calls = [], []
        for seed in range(8):
            c = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Paris?"}], tools=[TOOL], seed=seed,
                                               tool_choice="required", parallel_tool_calls=False, temperature=1.5, max_tokens=200, **more)
            (call,) = c.choices[0].message.tool_calls
            assert call.function.name == "get_current_weather" and valid(TOOL["function"]["parameters"], call.function.arguments)
            texts.append(c.usage.completion_tokens)
            calls.append(call.function.arguments)
        after = shared.metrics()
        steps = metric(after, "vllm:iteration_tokens_total_count") - metric(before, "vllm:iteration_tokens_total_count")
        forced = metric(after, "evenkeel_forced_tokens_total") - metric(before, "evenkeel_forced_tokens_total")
        return sum(texts), steps, forced, calls
    tokens, steps, forced, calls = run(logprobs=True)
    assert forced == 0 and steps >= tokens
    less, fewer, forced, same = run()
    assert less == tokens and same == calls
    assert run(frequency_penalty=0.001)[3] == calls
    print(f"8 calls: {tokens} tokens in {steps:.0f} steps; then in {fewer:.0f} steps, {forced:.0f} tokens without one")
    assert forced > 0.4 * less and fewer < 0.6 * steps


def test_forced_tokens_are_like_others(client):
    """Streams, stop strings, counts, token ids, company and max_tokens see no difference."""
    text = 'It is well known that "the moderate keel" is a word without a choice, 12345 times.'
    ask = dict(model="tiny", messages=[{"role": "user", "content": "x"}], temperature=1.5, seed=3, max_tokens=200)
    form = {"structured_outputs": {"choice": [text]}}
    whole = client.chat.completions.create(**ask, extra_body={**form, "return_token_ids": True})
    assert whole.choices[0].message.content == text and whole.choices[0].finish_reason == "stop"
    ids = whole.choices[0].token_ids
    assert len(ids) == whole.usage.completion_tokens > 10
    stream = list(client.chat.completions.create(**ask, extra_body=form, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == text
    assert stream[-1].usage.completion_tokens == len(ids)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for c in pool.map(lambda _: client.chat.completions.create(**ask, extra_body={**form, "return_token_ids": True}), range(24)):
            assert c.choices[0].token_ids == ids
    stopped = client.chat.completions.create(**ask, extra_body=form, stop=["moderate"])
    assert stopped.choices[0].message.content == text.split("moderate")[0] and stopped.choices[0].finish_reason == "stop"
    for n in (1, 5, len(ids) - 1):
        cut = client.chat.completions.create(**{**ask, "max_tokens": n}, extra_body={**form, "return_token_ids": True})
        assert cut.choices[0].token_ids == ids[:n] and cut.choices[0].finish_reason == "length", n
    scored = client.chat.completions.create(**ask, extra_body=form, logprobs=True)
    assert scored.choices[0].message.content == text
    assert len(scored.choices[0].logprobs.content) >= scored.usage.completion_tokens - 1 == len(ids) - 1
    for change in ({"frequency_penalty": 0.5}, {"extra_body": {**form, "bad_words": ["zebra"]}}):
        drawn = client.chat.completions.create(**{**ask, "extra_body": form, **change})
        assert drawn.choices[0].message.content == text


def test_pydantic(client):
    """The client's own parse() with a model of pydantic."""
    pydantic = pytest.importorskip("pydantic")

    class Part(pydantic.BaseModel):
        code: str = pydantic.Field(max_length=6)
        count: int = pydantic.Field(ge=1, le=99)

    class Order(pydantic.BaseModel):
        kind: str = pydantic.Field(pattern="^(new|used)$")
        parts: list[Part] = pydantic.Field(min_length=1, max_length=3)
        note: str | None = pydantic.Field(default=None, max_length=20)

    done = client.chat.completions.parse(model="tiny", messages=[{"role": "user", "content": "An order"}], response_format=Order,
                                         temperature=1.0, seed=4, max_tokens=400)
    assert isinstance(done.choices[0].message.parsed, Order)


def test_responses_and_messages(client, shared):
    """The other two interfaces: a schema for /v1/responses, a forced tool for /v1/messages."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
    done = client.responses.create(model="tiny", input="A number", temperature=1.5, max_output_tokens=60,
                                   text={"format": {"type": "json_schema", "name": "x", "schema": schema}})
    assert valid(schema, done.output_text), done.output_text
    anthropic = pytest.importorskip("anthropic")
    claude = anthropic.Anthropic(base_url=f"http://127.0.0.1:{shared.port}", api_key="none", max_retries=0)
    answer = claude.messages.create(model="tiny", max_tokens=200, messages=[{"role": "user", "content": "x"}],
                                    tools=[{"name": "pick", "input_schema": schema}], tool_choice={"type": "tool", "name": "pick"})
    use = [b for b in answer.content if b.type == "tool_use"]
    assert len(use) == 1 and use[0].name == "pick" and valid(schema, json.dumps(use[0].input)), answer


@pytest.mark.parametrize("form, param, says", [
    ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": {"a": {"contains": {}}}}}}},
     "response_format", "/properties/a/contains"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "a(?!b)"}}}},
     "response_format", "offset 1"),
    ({"structured_outputs": {}}, "structured_outputs", "must have"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "not closed"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "both"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "JSON object"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs", "not empty"),
    ({"guided_json": 5}, "guided_json", "JSON schema"),
    ({"guided_json": "{"}, "guided_json", "not valid JSON"),
    ({"guided_grammar": "root ::= x"}, "guided_grammar", "`x`"),
    ({"guided_regex": "a{1000}{1000}"}, "guided_regex", "counts"),
    ({"guided_regex": "(a{1000}){1000}"}, "guided_regex", "too large"),
    ({"guided_whitespace_pattern": "x"}, "guided_whitespace_pattern", "not supported"),
])
def test_refused(client, form, param, says):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}], extra_body=form)
    assert error.value.param == param and says in str(error.value), str(error.value)
