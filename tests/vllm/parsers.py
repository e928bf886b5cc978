"""Compares our parsers of tool calls and thinking with vLLM's, run on the same answers, whole and in pieces.
    build/vllm/venv/bin/python tests/vllm/parsers.py SIFT TEMPLATES [--show N]
It runs in the environment that tools/vllm-install.sh made. SIFT is tests/tools/sift, TEMPLATES a folder with chat
templates of models (see check-templates.py). The answers are what those templates make of conversations, and the
same cut off. Compared: names and arguments as JSON, thinking and text without the blanks around them. Prints what
differs, per parser: ours from each of vLLM's two ways, these from each other, and calls from what the template got."""
import argparse
import importlib.util
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys

WHERE = {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "scale": {"type": "number"},
    "now": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}},
    "box": {"type": "object"}, "none": {"type": ["string", "null"]}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WHERE}},
         {"type": "function", "function": {"name": "list_all", "description": "All", "parameters": {
             "type": "object", "properties": {}}}},
         {"type": "function", "function": {"name": "write_file", "description": "Writes", "parameters": {
             "type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}}}}]
ARGUMENTS = [
    ("get_weather", {"city": "Sofia", "days": 3, "scale": 0.5, "now": True}),
    ("get_weather", {"city": "S\u00e3o \u201cPaulo\u201d, 北京", "tags": ["a", "b, c", "d]}"], "box": {"w": 2, "in": {"x": [1, 2]}}}),
    ("get_weather", {"city": "42", "now": False, "none": None}),
    ("list_all", {}),
    ("write_file", {"path": "a/b.py", "text": "def f(x):\n    if x < 3 and x > 1:\n        return {\"k\": [x]}\n    return 'it\\'s'\n"}),
    ("write_file", {"path": "<b>.html", "text": "<p class=\"q\">a &lt; b</p>\n\n"}),
]
TEXTS = ["", "Let me look.", "First line.\n\nSecond: a < b, {c}, [d] and `e`."]
THOUGHTS = ["", "The user asks for the weather.\nI call <get_weather> then."]
# parser of calls, of thinking, template, what is passed to it
MODELS = [
    ("glm45", "glm45", "GLM-4.6", {}), ("glm47", "glm47", "GLM-4.7-Flash", {}), ("seed_oss", "seed_oss", "ByteDance-Seed-OSS", {}),
    ("gemma4", "gemma4", "google-gemma-4-31B-it", {"enable_thinking": True}), ("gemma4", "gemma4", "google-gemma-4-31B-it", {}),
    ("deepseek_v31", "deepseek_v3", "deepseek-ai-DeepSeek-V3.1", {}), ("deepseek_v31", "deepseek_v3", "deepseek-ai-DeepSeek-V3.1", {"thinking": True}),
    ("deepseek_v3", None, "llama-cpp-deepseek-r1", {"tools": None}), ("hunyuan_a13b", "hunyuan_a13b", "tool_chat_template_hunyuan_a13b", {}),
    ("ernie45", "ernie45", "Qwen-Qwen3-0.6B", {}), ("qwen3_coder", "qwen3", "Qwen3.5-4B", {}), ("hermes", "qwen3", "Qwen-Qwen3-0.6B", {}),
]
# Forms for which no template is at hand: how a list of calls and a thought are written. Parser of calls, of thinking.
OBJECTS = lambda calls: json.dumps([{"name": n, "arguments": a} for n, a in calls], ensure_ascii=False)
PYTHON = lambda n, a: f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})"
TAGS = "<think>{}</think>"
TEXT = lambda v: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)
PYTHONIC = lambda v: v if isinstance(v, str) else repr(v)
CDATA = lambda v: f"<![CDATA[{v}]]>" if any(c in v for c in "<&\n") else v
KIND = lambda v: {str: "string", bool: "boolean", type(None): "null", int: "number", float: "number", list: "array", dict: "object"}[type(v)]
CALL = lambda n, a: OBJECTS([(n, a)])[1:-1]
WRITTEN = [
    ("granite", "granite", lambda calls: "<|tool_call|>" + OBJECTS(calls), "Here is my thought process:{}Here is my response:"),
    ("granite", None, lambda calls: "<tool_call> " + OBJECTS(calls), None),
    ("granite4", None, lambda calls: "\n".join(f"<tool_call>\n{OBJECTS([c])[1:-1]}\n</tool_call>" for c in calls), None),
    ("phi4_mini_json", None, lambda calls: "functools" + OBJECTS(calls), None),
    ("lfm2", None, lambda calls: f"<|tool_call_start|>[{', '.join(PYTHON(*c) for c in calls)}]<|tool_call_end|>", None),
    ("olmo3", None, lambda calls: "<function_calls>" + "\n".join(PYTHON(*c) for c in calls) + "</function_calls>", None),  # its thinking needs a vocabulary of its own
    ("kimi_k2", "kimi_k2", lambda calls: "<|tool_calls_section_begin|>" + "".join(
        f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{json.dumps(a, ensure_ascii=False)}<|tool_call_end|>"
        for i, (n, a) in enumerate(calls)) + "<|tool_calls_section_end|>", TAGS),
    ("hy_v3", "hy_v3", lambda calls: "<tool_calls>\n" + "".join(
        f"<tool_call>{n}<tool_sep>\n" + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v if isinstance(v, str) else json.dumps(v)}</arg_value>\n"
                                               for k, v in a.items()) + "</tool_call>\n" for n, a in calls) + "</tool_calls>", TAGS),
    ("minimax_m2", "minimax_m2", lambda calls: "<minimax:tool_call>\n" + "".join(
        f"<invoke name=\"{n}\">\n" + "".join(f"<parameter name=\"{k}\">{v if isinstance(v, str) else json.dumps(v)}</parameter>\n"
                                            for k, v in a.items()) + "</invoke>\n" for n, a in calls) + "</minimax:tool_call>", TAGS),
    ("deepseek_v32", None, lambda calls: "\n\n<｜DSML｜function_calls>\n" + "".join(
        f"<｜DSML｜invoke name=\"{n}\">\n" + "".join(
            f"<｜DSML｜parameter name=\"{k}\" string=\"{str(isinstance(v, str)).lower()}\">{v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}"
            "</｜DSML｜parameter>\n" for k, v in a.items()) + "</｜DSML｜invoke>\n" for n, a in calls) + "</｜DSML｜function_calls>", None),
    ("longcat", None, lambda calls: "\n".join(f"<longcat_tool_call>\n{CALL(*c)}\n</longcat_tool_call>" for c in calls), None),
    ("internlm", None, lambda calls: "".join(f"<|action_start|><|plugin|>\n{CALL(*c)}<|action_end|>" for c in calls), None),
    ("jamba", None, lambda calls: f"<tool_calls>{OBJECTS(calls)}</tool_calls>", None),
    ("granite-20b-fc", None, lambda calls: "".join(f"<function_call> {CALL(*c)}\n" for c in calls), None),
    ("gigachat3", None, lambda calls: f"<|function_call|>{CALL(*calls[0])}", None),  # its template has one call in an answer
    ("apertus", None, lambda calls: f"<|tools_prefix|>{json.dumps([{n: a} for n, a in calls], ensure_ascii=False)}<|tools_suffix|>", None),
    ("xlam", None, OBJECTS, None),
    ("deepseek_v41", None, lambda calls: "\n\n<｜DSML｜ calls>\n" + "".join(
        f"<｜DSML｜ invoke name=\"{n}\">\n" + "".join(
            f"<｜DSML｜ parameter name=\"{k}\" string=\"{str(isinstance(v, str)).lower()}\">{TEXT(v)}</｜DSML｜ parameter>\n" for k, v in a.items())
        + "</｜DSML｜ invoke>\n" for n, a in calls) + "</｜DSML｜ calls>", None),
    ("step3", "step3", lambda calls: "<｜tool_calls_begin｜>" + "".join(
        f"<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"{n}\">" + "".join(
            f"<steptml:parameter name=\"{k}\">{TEXT(v)}</steptml:parameter>" for k, v in a.items()) + "</steptml:invoke><｜tool_call_end｜>"
        for n, a in calls) + "<｜tool_calls_end｜>", TAGS),
    ("minicpm5", None, lambda calls: "\n".join(f"<function name=\"{n}\">" + "".join(
        f"<param name=\"{k}\">{CDATA(PYTHONIC(v))}</param>" for k, v in a.items()) + "</function>" for n, a in calls), None),
    ("kimi_k3", None, lambda calls: "<|open|>tools<|sep|>" + "".join(
        f"<|open|>call tool=\"{n}\" index=\"{i}\"<|sep|>" + "".join(
            f"<|open|>argument key=\"{k}\" type=\"{KIND(v)}\"<|sep|>{TEXT(v)}<|close|>argument<|sep|>" for k, v in a.items())
        + "<|close|>call<|sep|>" for i, (n, a) in enumerate(calls, 1)) + "<|close|>tools<|sep|><|close|>message<|sep|>", None),
    ("functiongemma", None, lambda calls: "".join(f"<start_function_call>call:{n}{{" + ",".join(
        f"{k}:<escape>{PYTHONIC(v)}<escape>" for k, v in a.items()) + "}<end_function_call>" for n, a in calls), None),
    ("mimo", None, lambda calls: "\n".join(f"<tool_call>\n<function={n}>\n" + "".join(
        f"<parameter={k}>{TEXT(v)}</parameter>\n" for k, v in a.items()) + "</function>\n</tool_call>" for n, a in calls), None),
    ("qwen3_coder", "nemotron_v3", lambda calls: "\n".join(
        f"<tool_call>\n<function={n}>\n" + "".join(f"<parameter={k}>\n{v if isinstance(v, str) else json.dumps(v)}\n</parameter>\n" for k, v in a.items())
        + "</function>\n</tool_call>" for n, a in calls), TAGS),
]
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<seed:think>",
         "</seed:think>", "<seed:tool_call>", "</seed:tool_call>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>",
         "<|turn>", "<turn|>", "<|tool_response>", "<tool_response|>", "<|im_start|>", "<|im_end|>", "<seed:bos>", "<seed:eos>", "<response>",
         "</response>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
         "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜end▁of▁sentence｜>", "<|eos|>", "<|tool_call|>",
         "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
         "<|tool_call_argument_begin|>", "<minimax:tool_call>", "</minimax:tool_call>", "<longcat_tool_call>", "</longcat_tool_call>",
         "<|action_start|>", "<|plugin|>", "<|action_end|>", "<tool_calls>", "</tool_calls>", "<|function_call|>", "<|message_sep|>",
         "<|role_sep|>", "<|tools_prefix|>", "<|tools_suffix|>", "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<｜tool_call_begin｜>",
         "<｜tool_call_end｜>", "<｜tool_sep｜>", "｜DSML｜", "<|open|>", "<|close|>", "<|sep|>", "<start_function_call>",
         "<end_function_call>", "<escape>"]
ENDS = ["<turn|>", "<|im_end|>", "<seed:eos>", "<｜end▁of▁sentence｜>", "<|eos|>", "<|tool_response>", "<|observation|>", "<|user|>"]


def tokenizer():
    """Bytes, and the marks as tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_tokens([AddedToken(m, special=False, normalized=False) for m in MARKS])
    return PreTrainedTokenizerFast(tokenizer_object=made)


def answers(template, given, rng):
    """(end of the prompt, answer, its calls or None if it is cut off) for conversations, and for some of them cut off."""
    ask = [{"role": "user", "content": "What about the weather?"}]
    for text, thought, count in itertools.product(TEXTS, THOUGHTS, (0, 1, 2, 3)):
        if not text and not count:
            continue
        picked = rng.sample(ARGUMENTS, count)
        reply = {"role": "assistant", "content": text}
        if thought:
            reply["reasoning_content"] = thought
        if count:
            reply["tool_calls"] = [{"id": f"call{i:05}", "type": "function", "function": {"name": n, "arguments": a}}
                                   for i, (n, a) in enumerate(picked)]
        everything = {"tools": TOOLS, "bos_token": "", "eos_token": "", **given}
        try:
            prompt = template.render(messages=ask, add_generation_prompt=True, **everything)
            whole = template.render(messages=ask + [reply], add_generation_prompt=False, **everything)
        except Exception as error:  # a template may raise anything
            print(f"    no answer: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        n = len(os.path.commonprefix([prompt, whole]))
        if whole.rfind("<", 0, n) > whole.rfind(">", 0, n):
            n = whole.rfind("<", 0, n)  # two marks begin alike
        answer = whole[n:]
        for end in ENDS:
            answer = answer.split(end)[0]
        opened = prompt[n:].strip()
        if opened and opened in THOUGHT_OPENS:  # the answer's own beginning stands in the prompt
            answer = answer.removeprefix(opened)
        yield prompt[-60:], answer, [list(p) for p in picked]
        if rng.random() < 0.5 and len(answer) > 4:
            yield prompt[-60:], answer[:rng.randrange(2, len(answer))], None


def written(calls_of, thought_of, rng):
    """The same of a form: text, calls and thoughts as it writes them."""
    for text, thought, count in itertools.product(TEXTS, THOUGHTS, (0, 1, 2, 3)):
        if not text and not count:
            continue
        picked = rng.sample(ARGUMENTS, count)
        answer = (thought_of.format(thought or "So.") if thought_of else "") + text + (calls_of(picked) if count else "")
        yield "", answer, [list(p) for p in picked]
        if rng.random() < 0.5 and len(answer) > 4:
            yield "", answer[:rng.randrange(2, len(answer))], None


THOUGHT_OPENS = {"<think>", "</think>", "<think></think>", "<|channel>thought\n<channel|>"}


def canonical(reasoning, content, calls):
    read = []
    for name, text in calls:
        try:
            read.append([name, json.loads(text)])
        except ValueError:
            read.append([name, text])
    return [(reasoning or "").strip(), (content or "").strip(), read]


def theirs(made, tokens, request, prompt, answer, rng):
    parser = made()
    ids = tokens(answer)["input_ids"]
    try:
        if hasattr(parser, "set_prompt_token_ids"):
            parser.set_prompt_token_ids(tokens(prompt)["input_ids"])
        reasoning, content, calls = parser.parse(answer, request, enable_auto_tools=True, model_output_token_ids=ids)
        whole = canonical(reasoning, content, [(c.name, c.arguments) for c in calls or []])
    except Exception as error:
        whole = f"{type(error).__name__}: {error}"
    parser, at, got, calls = made(), 0, ["", ""], {}
    try:
        while at < len(ids):
            n = min(rng.choice([1, 1, 1, 2, 5]), len(ids) - at)
            while at + n < len(ids) and "\ufffd" in tokens.decode(ids[at:at + n]):
                n += 1
            part = ids[at:at + n]
            at += n
            delta = parser.parse_delta(tokens.decode(part), part, request, prompt_token_ids=tokens(prompt)["input_ids"],
                                       finished=at == len(ids))
            if delta is None:
                continue
            got = [got[0] + (delta.reasoning or ""), got[1] + (delta.content or "")]
            for c in delta.tool_calls or []:
                one = calls.setdefault(c.index, ["", ""])
                one[0] += (c.function.name or "") if c.function else ""
                one[1] += (c.function.arguments or "") if c.function else ""
        cut = canonical(*got, [calls[i] for i in sorted(calls)])
    except Exception as error:
        cut = f"{type(error).__name__}: {error}"
    return whole, cut


def main():
    args = argparse.ArgumentParser()
    args.add_argument("sift")
    args.add_argument("templates", type=pathlib.Path)
    args.add_argument("--show", type=int, default=0)
    args.add_argument("--dump")
    args = args.parse_args()
    tokens, rng = tokenizer(), random.Random(7)
    spec = importlib.util.spec_from_file_location("templates", pathlib.Path(__file__).parents[2] / "tools/check-templates.py")
    templates = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(templates)
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager
    dump = open(args.dump, "w", encoding="utf-8") if args.dump else None
    for tool, think, name, given in MODELS + [(tool, think, i, {}) for i, (tool, think, *_) in enumerate(WRITTEN)]:
        if isinstance(name, int):
            cases, name = list(written(*WRITTEN[name][2:], rng)), "as written"
        elif (path := next(args.templates.rglob(name + ".jinja"), None)) is None:
            print(f"{tool:14} no template {name}")
            continue
        else:
            env = templates.environment()
            env.globals["strftime_now"] = lambda form: "Monday" if form == "%A" else "2026-11-23"
            cases = list(answers(env.from_string(path.read_text()), given, rng))
        try:
            parser = ParserManager.get_parser(tool_parser_name=tool, reasoning_parser_name=think, enable_auto_tools=True)
        except TypeError as error:  # a later one has it
            print(f"{tool:14} {error}")
            continue
        request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "?"}], tools=TOOLS, tool_choice="auto",
                                        chat_template_kwargs=given)
        asks = [dict(tool=tool, think=think, tools=TOOLS, prompt=p, text=a, pieces=n) for p, a, _ in cases for n in (0, 3)]
        done = subprocess.run([args.sift], input="\n".join(map(json.dumps, asks)) + "\n", text=True, check=True, stdout=subprocess.PIPE)
        own = [json.loads(line) for line in done.stdout.splitlines()]
        split = cuts = shown = 0
        differ = {False: [0, 0, 0], True: [0, 0, 0]}  # answers, from vLLM's whole, from its pieces
        lost = [0, 0, 0]  # answers whose calls are not those that the template was given: ours, vLLM's
        for i, (prompt, answer, given_calls) in enumerate(cases):
            mine, pieces = (canonical(o["reasoning"], o["content"], o["calls"]) for o in own[2 * i:2 * i + 2])
            whole, cut = theirs(lambda: parser(tokens, request.tools, chat_template_kwargs=given), tokens, request, prompt, answer, rng)
            cuts += mine != pieces
            split += whole != cut
            short = given_calls is None
            lost = [n + (not short and got[2] != given_calls) for n, got in zip(lost, (mine, whole, cut))]
            differ[short] = [n + add for n, add in zip(differ[short], (1, mine != whole, mine != cut))]
            if dump:
                dump.write(json.dumps(dict(tool=tool, think=think, prompt=prompt, text=answer, short=short, ours=mine, whole=whole, cut=cut),
                                      ensure_ascii=False) + "\n")
            if shown < args.show and mine not in (whole, cut):
                shown += 1
                print(f"  {answer!r}\n    ours  {mine}\n    whole {whole}\n    cut   {cut}")
        print(f"{tool:13} {name:32} {differ[False][0]:2} answers: {differ[False][1]:2} differ from vLLM's whole, {differ[False][2]:2} from its "
              f"pieces; of {differ[True][0]:2} cut off {differ[True][1]:2} and {differ[True][2]:2}; vLLM's two ways differ in {split}, ours in {cuts}; "
              f"calls that are not what was written: ours {lost[0]}, vLLM's {lost[1]} and {lost[2]}",
              flush=True)


if __name__ == "__main__":
    sys.exit(main())
