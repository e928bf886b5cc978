"""Protects: structural tags, as vLLM and XGrammar have them. What a text with tags says is read again by the small parser below, with re
and jsonschema: random forms without a model, and the requests that vLLM's clients send to the model. And what no automaton can keep, the
elements of a set[str], is named."""
import http.client
import json
import random
import re

import jsonschema
import openai
import pytest

from conftest import Appliance
from test_constrained import ask_tool

FORMS = 300
STORY = "Once upon a time there was a bear"
ARGUMENTS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
             "required": ["city", "days"], "additionalProperties": False}


def listed(end):
    return end if isinstance(end, list) else [end]


def free(text, at, words):
    """Where a free text from `at` may end: nowhere behind the first of the words."""
    found = [text.find(w, at) + len(w) for w in words if text.find(w, at) >= 0]
    return range(at, min(found) if found else len(text) + 1)


def parse(form, text, at, ends=(), later=()):
    """Places where a text of the form that begins at `at` may end. `ends`: what ends the tag around, `later` the same where more comes before
    it; free text holds neither."""
    kind = form["type"]
    if kind == "const_string":
        yield from [at + len(form["value"])] if text.startswith(form["value"], at) else []
    elif kind == "regex":
        yield from (i for i in range(at, len(text) + 1) if re.fullmatch(form["pattern"], text[at:i]))
    elif kind == "json_schema":
        try:
            value, end = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            return
        if jsonschema.Draft202012Validator(form["json_schema"]).is_valid(value):
            yield end
    elif kind == "any_text":
        yield from free(text, at, [*ends, *later, *form.get("excludes", [])])
    elif kind == "or":
        for e in form["elements"]:
            yield from parse(e, text, at, ends, later)
    elif kind == "sequence":
        places = {at}
        for i, e in enumerate(form["elements"]):
            last = i + 1 == len(form["elements"])
            places = {end for p in places for end in (parse(e, text, p, ends, later) if last else parse(e, text, p, (), ends or later))}
        yield from places
    elif kind == "tag":
        yield from tag(form, text, at)
    else:
        yield from (tags(form, text, at) if kind == "tags_with_separator" else triggered(form, text, at, [*ends, *later]))


def tag(form, text, at):
    if not text.startswith(form["begin"], at):
        return
    for i in parse(form["content"], text, at + len(form["begin"]), listed(form["end"])):
        yield from [i + len(e) for e in listed(form["end"]) if text.startswith(e, i)]


def tags(form, text, at):
    one, some = form.get("stop_after_first"), form.get("at_least_one")
    if not some:
        yield at
    reached, new = set(), {e for t in form["tags"] for e in tag(t, text, at)}
    while new:
        yield from new
        reached |= new
        new = set() if one else {e for p in new if text.startswith(form["separator"], p)
                                 for t in form["tags"] for e in tag(t, text, p + len(form["separator"]))} - reached


def triggered(form, text, at, ends):
    one, some = form.get("stop_after_first"), form.get("at_least_one")
    places = {e for t in form["tags"] for e in tag(t, text, at)} if some else {at}
    seen = set()
    while places:
        if one and some:
            yield from places
            return
        seen |= places
        then = set()
        for p in places:
            rest = free(text, p, [*form["triggers"], *ends])
            yield from rest
            then |= {e for i in rest if any(text.startswith(x, i) for x in form["triggers"]) for t in form["tags"] for e in tag(t, text, i)}
        if one:
            yield from then
            return
        places = then - seen


def fits(form, text):
    return len(text) in parse(form, text, 0)


def word(r, least, most):
    return "".join(r.choice("<a>/") for _ in range(r.randint(least, most)))


def a_tag(r, depth, begin):
    content = a_form(r, depth + 1)
    return {"type": "tag", "begin": begin, "content": content, "end": r.choice([word(r, 1, 3), [word(r, 1, 2), word(r, 2, 3)]])}


def a_form(r, depth=0):
    kind = r.choice(["const_string", "regex", "json_schema", "any_text"] + ["sequence", "or", "tag", "triggered", "tags"] * (depth < 3))
    if kind == "const_string":
        return {"type": kind, "value": word(r, 1, 4)}
    if kind == "regex":
        return {"type": kind, "pattern": r.choice(["[a-c]+", "a|b", "(ab){1,2}", "[0-9]{1,2}"])}
    if kind == "json_schema":
        return {"type": kind, "json_schema": r.choice([{"enum": ["a", "<"]}, {"type": "boolean"}, ARGUMENTS])}
    if kind == "any_text":
        return {"type": kind, **({"excludes": [word(r, 2, 3)]} if r.random() < .3 else {})}
    if kind in ("sequence", "or"):
        return {"type": kind, "elements": [a_form(r, depth + 1) for _ in range(r.randint(1, 3))]}
    if kind == "tag":
        return a_tag(r, depth, word(r, 1, 3))
    flags = {"at_least_one": r.random() < .5, "stop_after_first": r.random() < .5}
    if kind == "tags":
        return {"type": "tags_with_separator", "separator": word(r, 0, 2), "tags": [a_tag(r, depth, word(r, 1, 2)) for _ in range(r.randint(1, 2))], **flags}
    triggers = sorted({word(r, 1, 3) for _ in range(r.randint(1, 2))})
    return {"type": "triggered_tags", "triggers": triggers, "tags": [a_tag(r, depth, x + word(r, 0, 2)) for x in triggers], **flags}


def near(r, text):
    at = r.randint(0, len(text))
    return text[:at] + r.choice(["", "<", "a", ">", "/", "b", "1", "true"]) + text[at + r.randint(0, 1):]


@pytest.mark.long
def test_random_forms_without_a_model():
    """What is drawn fits, and of texts near that the same ones fit for both."""
    made = [a_form(random.Random(i)) for i in range(FORMS)]
    asked = [json.dumps({"type": "structural_tag", "format": f}) for f in made]
    answers = ask_tool([{"kind": 8, "text": t, "seed": i + 1, "samples": 3} for i, t in enumerate(asked)])
    texts = refused = 0
    for f, a in zip(made, answers):
        refused += "error" in a
        assert "error" not in a or "trigger" in a["error"] or "no text at all" in a["error"], (f, a)
        for text in a["texts"]:
            texts += 1
            assert fits(f, text), (json.dumps(f), text)
    tried = []
    for i, a in enumerate(answers):
        r = random.Random(i)
        own = [t for t in a["texts"] if len(t) < 60]
        tried.append([near(r, t) for t in own * 4] + ["", "a", "<", word(r, 1, 5), word(r, 2, 8)])
    agreed = matching = 0
    checked = ask_tool([{"kind": 8, "text": t, "seed": 1, "samples": 0, "check": c} for t, c in zip(asked, tried)])
    for f, a, c in zip(made, checked, tried):
        for text, fit in zip(c, a.get("fits", [])):
            assert fit == fits(f, text), (json.dumps(f), text, fit)
            agreed += 1
            matching += fit
    print(f"{FORMS} forms, {refused} refused: {texts} texts fit; of {agreed} texts near them {matching} fit for both")
    assert texts > 2 * (FORMS - refused) and refused < 0.2 * FORMS and 250 < matching < agreed - 250


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    a = Appliance(tmp_path_factory.mktemp("structural"), ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]).start().ready()
    yield a
    a.destroy()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)


def complete(client, seed, max_tokens=120, **form):
    c = client.completions.create(model="tiny", prompt=STORY, temperature=1.2, seed=seed, max_tokens=max_tokens, extra_body=form)
    return c.choices[0].text, c.choices[0].finish_reason


def function(name, schema=ARGUMENTS):
    return {"type": "tag", "begin": f"<function={name}>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</function>"}


def weather(**more):
    return {"type": "triggered_tags", "triggers": ["<function="], "tags": [function("weather"), function("time", {"type": "object", "properties": {"zone": {"enum": ["utc", "cet"]}}, "required": ["zone"]})], **more}


THINK = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}
# The shapes of XGrammar's manual: calls that may come, that must, exactly one, behind a thought, in a row; and free choices.
SHAPES = {
    "may": weather(),
    "must": weather(at_least_one=True),
    "one": weather(at_least_one=True, stop_after_first=True),
    "forced": function("weather"),
    "think": {"type": "sequence", "elements": [THINK, weather(at_least_one=True, stop_after_first=True)]},
    "silent": {"type": "sequence", "elements": [{"type": "const_string", "value": "<think></think>"}, weather()]},
    "row": {"type": "tag", "begin": "[", "end": "]", "content": {"type": "tags_with_separator", "separator": ", ", "at_least_one": True, "tags": [
        {"type": "tag", "begin": "{\"name\": \"weather\", \"arguments\": ", "content": {"type": "json_schema", "json_schema": ARGUMENTS}, "end": "}"}]}},
    "or": {"type": "or", "elements": [{"type": "regex", "pattern": "(yes|no)!"}, {"type": "grammar", "grammar": "root ::= \"per\" \"haps\""}]},
}


@pytest.mark.parametrize("name", list(SHAPES))
def test_with_the_model(client, name):
    form = SHAPES[name]
    inner = {**form, "elements": [{"type": "const_string", "value": "perhaps"} if e["type"] == "grammar" else e for e in form["elements"]]} if name == "or" else form
    tag_of = {"type": "structural_tag", "format": form}
    ways = [{"response_format": tag_of}, {"structured_outputs": {"structural_tag": json.dumps(tag_of)}},
            {"structured_outputs": {"structural_tag": tag_of}}, {"structural_tag": json.dumps(tag_of)}]
    for seed in range(6):
        text, why = complete(client, seed, **ways[0])
        assert complete(client, seed, **ways[1 + seed % 3])[0] == text
        if why == "stop" or name in ("may", "must", "silent"):  # free text is cut, a tag in it is not
            assert fits(inner, text), (name, text)
    assert name in ("may", "must", "silent") or why == "stop", (name, text)


def test_old_form(client, server):
    """vLLM's first one. A bias has the trigger come; what stands behind it is bound, and the answer goes on."""
    old = {"type": "structural_tag", "triggers": ["a"], "structures": [{"begin": "a[", "schema": ARGUMENTS, "end": "]"}]}
    new = {"type": "triggered_tags", "triggers": ["a"], "tags": [{"type": "tag", "begin": "a[", "content": {"type": "json_schema", "json_schema": ARGUMENTS}, "end": "]"}]}
    found = 0
    status, text, _ = ask(server, "/tokenize", prompt="a", add_special_tokens=False)
    bias = {str(json.loads(text)["tokens"][0]): 4}
    for seed in range(8):
        text, why = complete(client, seed, response_format=old, logit_bias=bias)
        assert fits(new, text), text
        found += text.count("a[")
        assert text.count("a") >= text.count("a[") and re.sub(r"a\[.*?\]", "", text, flags=re.DOTALL).count("a") == 0, text
        assert complete(client, seed, logit_bias=bias, structured_outputs={"structural_tag": json.dumps(old)})[0] == text
    assert found > 8


def test_streams(client):
    form = {"type": "structural_tag", "format": SHAPES["think"]}
    for seed in range(3):
        whole = complete(client, seed, response_format=form)[0]
        stream = client.completions.create(model="tiny", prompt=STORY, temperature=1.2, seed=seed, max_tokens=120, stream=True,
                                           extra_body={"response_format": form})
        assert "".join(c.choices[0].text for c in stream if c.choices) == whole


def test_tools_are_read_out_of_it(client):
    """A form that writes calls as the server's parser reads them: they come as calls, bound by the form and not by the tools."""
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    call = {"type": "tag", "begin": "<tool_call>\n{\"name\": \"weather\", \"arguments\": ", "content": {"type": "json_schema", "json_schema": ARGUMENTS}, "end": "}\n</tool_call>"}
    form = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [call], "at_least_one": True, "stop_after_first": True}}
    c = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Paris?"}], tools=[tool], temperature=1.2, seed=1,
                                       max_tokens=120, response_format=form)
    (made,) = c.choices[0].message.tool_calls
    assert made.function.name == "weather" and c.choices[0].finish_reason == "tool_calls"
    jsonschema.validate(json.loads(made.function.arguments), ARGUMENTS)


@pytest.mark.parametrize("form, says", [
    ("x", "JSON object"), ({}, "`format`"), ({"format": {"type": "token_list"}}, "`token_list` is not offered"),
    ({"format": {**weather(), "triggers": ["<tool"]}}, "/format/tags/0"),
    ({"format": function("f", {"contains": {}})}, "/format/content"),
    ({"format": {"type": "any_text", "length": 5}}, "`length` is not offered"),
    ({"structures": [{"begin": "<f>", "schema": 1, "end": "<"}], "triggers": ["<"]}, "/structures/0"),
])
def test_refused(client, form, says):
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, 1, structured_outputs={"structural_tag": form})
    assert error.value.param == "structured_outputs" and says in str(error.value), str(error.value)


def ask(server, path, **body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text, ignored = answer.read().decode(), answer.headers.get("X-Ignored-Fields")
    connection.close()
    return answer.status, text, ignored


def chat(server, **more):
    return ask(server, "/v1/chat/completions", messages=[{"role": "user", "content": "x"}], max_tokens=60, temperature=1.2, seed=3, **more)


def test_a_set_is_named(server):
    """pydantic writes set[str] so. That its elements differ is not kept, and that is said; where it is kept nothing is."""
    def form(items):
        return {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "required": ["tags"], "additionalProperties": False, "properties": {
            "tags": {"type": "array", "uniqueItems": True, "maxItems": 3, "items": items}}}}}
    for stream in (False, True):
        status, text, ignored = chat(server, stream=stream, response_format=form({"type": "string", "maxLength": 3}))
        assert status == 200 and ignored == "response_format.uniqueItems", (text, ignored)
        status, text, ignored = chat(server, stream=stream, response_format=form({"enum": ["a", "b", "c"]}))
        assert status == 200 and ignored is None, (text, ignored)
    status, text, ignored = chat(server, response_format=form({"type": "string", "maxLength": 3}))
    value = json.loads(json.loads(text)["choices"][0]["message"]["content"])
    assert list(value) == ["tags"] and len(value["tags"]) <= 3 and all(isinstance(t, str) and len(t) <= 3 for t in value["tags"])
    status, text, ignored = chat(server, structured_outputs={"json": {"type": "array", "uniqueItems": True}})
    assert status == 200 and ignored == "structured_outputs.uniqueItems"
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": form({"type": "string"})["json_schema"]["schema"]}}
    status, text, ignored = chat(server, tools=[tool])
    assert status == 200 and ignored == "tools.uniqueItems"
