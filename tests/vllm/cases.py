"""What is asked of both servers: some 580 requests as data, in groups. A case is (name, method, path, body, headers); a body that is
bytes is sent as it is. All are greedy with `temperature` 0, so that two right servers give the same text. Names are stable: the
accepted differences (differences.py) and the recorded answers refer to them."""
import json

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
JSON = {"Content-Type": "application/json"}
KV = [{"role": "user", "content": "What is the KV cache?"}]
ITALY = [{"role": "user", "content": "What is the capital of Italy?"}]
COUNT = [{"role": "user", "content": "Count from 7 to 15."}]
SYSTEM = [{"role": "system", "content": "You are a careful assistant. Answer briefly."},
          {"role": "user", "content": "Which month comes after April?"}]
TURNS = ITALY + [{"role": "assistant", "content": "The capital of Italy is Rome."},
                 {"role": "user", "content": "What is the opposite of cold?"}]
NORA = [{"role": "user", "content": "Give me a JSON object with the name Nora, the age 41 and the colour green."}]
SOFIA = [{"role": "user", "content": "What is the weather in Sofia?"}]
FOX = "Once upon a time, there lived a fox named Zoe near the river."
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
TIME = {"type": "function", "function": {"name": "get_time", "description": "Get the time.", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Sofia"}'}}
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"], "additionalProperties": False}
LONG = "word " * 3000

CASES = []


def case(name, path, body=None, method="POST", headers=None):
    CASES.append((name, method, path, body, JSON if headers is None else headers))


def chat(name, messages=KV, **more):
    """A chat of 24 tokens at most unless the case says otherwise; None removes a field."""
    body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 24, **more}
    case("chat-" + name, CHAT, {k: v for k, v in body.items() if v is not ...})


def plain(name, prompt=FOX, **more):
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 16, **more}
    case("plain-" + name, PLAIN, {k: v for k, v in body.items() if v is not ...})


def both(name, **more):
    chat(name, **more)
    plain(name, **more)


def chats():
    for name, messages in [("kv", KV), ("italy", ITALY), ("system", SYSTEM), ("turns", TURNS), ("nora", NORA), ("count", COUNT)]:
        chat(name, messages, max_tokens=160)
        chat(name + "-stream", messages, max_tokens=160, stream=True)
    chat("no-model", model=...)
    chat("null-model", model=None)
    chat("empty-model", model="")
    chat("defaults", ITALY, max_tokens=...)
    chat("max-completion-tokens", max_tokens=..., max_completion_tokens=5)
    chat("both-maxima", max_tokens=9, max_completion_tokens=5)
    chat("one-token", max_tokens=1)
    chat("parts", [{"role": "user", "content": [{"type": "text", "text": "What is the"}, {"type": "text", "text": "KV cache?"}]}])
    chat("one-part", [{"role": "user", "content": [{"type": "text", "text": "What is the KV cache?"}]}])
    chat("empty-parts", [{"role": "user", "content": []}])
    chat("empty-content", [{"role": "user", "content": ""}])
    chat("null-content", [{"role": "user", "content": None}])
    chat("no-content", [{"role": "user"}])
    chat("developer", [{"role": "developer", "content": "Be brief."}] + ITALY)
    chat("unknown-role", [{"role": "king", "content": "Hello"}])
    chat("two-systems", SYSTEM[:1] + SYSTEM)
    chat("late-system", ITALY + SYSTEM[:1])
    chat("named-user", [{"role": "user", "name": "Zoe", "content": "What is the capital of Italy?"}])
    chat("unicode", [{"role": "user", "content": "Repeat exactly: Grüße, 東京 🙂 é"}])
    chat("marks-in-text", [{"role": "user", "content": "<|im_end|>\n<|im_start|>assistant\n"}])
    chat("nul-in-text", [{"role": "user", "content": "a\u0000b"}])
    chat("assistant-last", ITALY + [{"role": "assistant", "content": "The capital"}])
    chat("continue", ITALY + [{"role": "assistant", "content": "The capital"}], add_generation_prompt=False, continue_final_message=True)
    chat("continue-echo", ITALY + [{"role": "assistant", "content": "The capital"}], add_generation_prompt=False,
         continue_final_message=True, echo=True)
    chat("continue-and-open", ITALY, continue_final_message=True)
    chat("echo", ITALY, echo=True)
    chat("echo-assistant", ITALY + [{"role": "assistant", "content": "The capital"}], echo=True)
    chat("developer-late", ITALY + [{"role": "developer", "content": "Be brief."}])
    chat("developer-and-system", [{"role": "developer", "content": "Be brief."}] + SYSTEM)
    chat("closed", ITALY, add_generation_prompt=False)
    chat("template-kwargs", ITALY, chat_template_kwargs={"enable_thinking": False})
    chat("documents", ITALY, documents=[{"title": "Rome", "text": "Rome is the capital."}])
    chat("user", ITALY, user="somebody", metadata={"a": "b"}, store=False)
    chat("request-id", ITALY, request_id="mine-1")
    chat("include-reasoning", ITALY, include_reasoning=False)
    chat("reasoning-effort", ITALY, reasoning_effort="low")
    chat("prompt-text", ITALY, return_prompt_text=True)
    chat("prompt-text-stream", ITALY, return_prompt_text=True, stream=True)
    chat("prompt-text-continue", ITALY + [{"role": "assistant", "content": "The capital"}], add_generation_prompt=False,
         continue_final_message=True, return_prompt_text=True)
    chat("service-tier", ITALY, service_tier="auto")


def completions():
    for name, prompt in [("fox", FOX), ("lines", "\n\n"), ("spaces", "  two  spaces\tand a tab\r\nend"), ("word", "The")]:
        plain(name, prompt)
        plain(name + "-stream", prompt, stream=True)
    plain("list", [FOX, "The code of", "Paged attention"])
    plain("list-stream", [FOX, "The code of"], stream=True)
    plain("list-of-one", [FOX])
    plain("tokens", [497, 499, 261, 421])
    plain("tokens-stream", [497, 499, 261, 421], stream=True)
    plain("token-lists", [[497, 499, 261, 421], [273, 286, 270]])
    plain("mixed", ["The", [497, 499]])
    plain("empty", "")
    plain("empty-list", [])
    plain("empty-string-in-list", ["", "The"])
    plain("empty-tokens", [[]])
    plain("missing", ...)
    plain("null", None)
    plain("number", 5)
    plain("object", {"a": 1})
    plain("bool-list", [True])
    plain("token-too-large", [497, 99999])
    plain("token-negative", [497, -1])
    plain("token-real", [497, 1.5])
    plain("defaults", max_tokens=...)
    plain("zero", max_tokens=0)
    plain("zero-echo", max_tokens=0, echo=True)
    plain("zero-echo-logprobs", max_tokens=0, echo=True, logprobs=1)
    plain("echo", echo=True)
    plain("echo-stream", echo=True, stream=True)
    plain("echo-tokens", [497, 499, 261, 421], echo=True)
    plain("echo-logprobs", "The capital of", echo=True, logprobs=2, max_tokens=4)
    plain("echo-logprobs-zero", "The capital of", echo=True, logprobs=0, max_tokens=1)
    plain("echo-logprobs-list", ["The capital of", "Paged"], echo=True, logprobs=1, max_tokens=2)
    plain("echo-logprobs-stream", "The capital of", echo=True, logprobs=1, max_tokens=3, stream=True)
    plain("suffix", suffix=" end")
    plain("suffix-empty", suffix="")
    plain("specials-off", add_special_tokens=False)
    plain("best-of", best_of=1)
    plain("best-of-two", best_of=2)
    plain("user", user="somebody")
    plain("marks", "<|im_start|>user\nWhat is the KV cache?<|im_end|>\n<|im_start|>assistant\n", max_tokens=24)


def sampling():
    sure = {"temperature": 0.5, "top_k": 1}  # vLLM refuses several answers at temperature 0: they would be the same
    for n in (1, 2, 3):
        both(f"n-{n}", n=n, max_tokens=8, **sure)
    both("n-2-greedy", n=2, max_tokens=8)
    both("n-2-stream", n=2, stream=True, max_tokens=6, **sure)
    plain("n-2-list", ["The", FOX], n=2, max_tokens=4, **sure)
    plain("n-2-logprobs", logprobs=1, n=2, max_tokens=2, **sure)
    plain("n-2-echo", n=2, echo=True, max_tokens=3, **sure)
    chat("n-2-usage-stream", stream=True, n=2, max_tokens=4, stream_options={"include_usage": True}, **sure)
    both("n-0", n=0)
    both("n-negative", n=-1)
    both("n-text", n="2")
    both("n-word", n="two")
    both("n-real", n=1.5)
    for name, value in [("negative", -0.1), ("three", 3), ("text", "0"), ("word", "hot"), ("null", None), ("list", [0]), ("true", True), ("tiny", 1e-9)]:
        chat("temperature-" + name, temperature=value, seed=5, top_k=1)
    for name, value in [("zero", 0), ("negative", -0.5), ("large", 1.5), ("half", 0.5), ("null", None), ("word", "x")]:
        chat("top-p-" + name, top_p=value)
    for name, value in [("zero", 0), ("off", -1), ("low", -2), ("one", 1), ("huge", 100000), ("real", 1.5), ("null", None)]:
        chat("top-k-" + name, top_k=value)
    for name, value in [("zero", 0), ("one", 1), ("large", 1.1), ("negative", -0.1)]:
        chat("min-p-" + name, min_p=value)
    for field in ("frequency_penalty", "presence_penalty"):
        for name, value in [("1", 1.0), ("-1", -1.0), ("2", 2), ("2.1", 2.1), ("-2.1", -2.1), ("word", "x"), ("null", None)]:
            plain(f"{field.split('_')[0]}-{name}", **{field: value})
    for name, value in [("1.3", 1.3), ("0.7", 0.7), ("0", 0), ("-1", -1), ("null", None)]:
        both(f"repetition-{name}", repetition_penalty=value)
    both("all-penalties", frequency_penalty=0.5, presence_penalty=0.5, repetition_penalty=1.1, max_tokens=40)
    both("seed", seed=7)
    both("seed-negative", seed=-7)
    both("seed-large", seed=2**63 - 1)
    both("seed-too-large", seed=2**63)
    both("seed-word", seed="x")
    both("bias", logit_bias={"497": 50})
    both("bias-ban", logit_bias={"273": -100})
    both("bias-beyond", logit_bias={"497": 150})
    both("bias-key", logit_bias={"x": 1})
    both("bias-large-key", logit_bias={"99999": 1})
    both("bias-value", logit_bias={"5": "x"})
    both("bias-list", logit_bias=[1])
    both("bias-null", logit_bias=None)
    both("allowed", allowed_token_ids=[273, 286, 270, 16, 2])
    both("allowed-empty", allowed_token_ids=[])
    both("allowed-large", allowed_token_ids=[99999])
    both("allowed-word", allowed_token_ids=["x"])
    both("bad-words", bad_words=["cache", "fox"])
    both("bad-words-empty", bad_words=[])
    both("bad-words-empty-word", bad_words=[""])
    both("bad-words-text", bad_words="cache")
    both("typical-p", typical_p=1)
    both("priority", priority=1)
    both("cache-salt", cache_salt="a")
    both("cache-salt-empty", cache_salt="")
    chat("beam", use_beam_search=True, n=2)
    chat("beam-off", use_beam_search=False)
    chat("length-penalty", length_penalty=1.0)
    chat("unknown-field", nonsense=5)


def stops():
    both("stop", stop="the")
    both("stop-list", stop=["sequence", "found", "xyz"])
    both("stop-included", stop=["the"], include_stop_str_in_output=True)
    both("stop-stream", stop=["the"], stream=True)
    both("stop-included-stream", stop=["the"], include_stop_str_in_output=True, stream=True)
    both("stop-empty", stop="")
    both("stop-empty-list", stop=[])
    both("stop-empty-in-list", stop=[""])
    both("stop-number", stop=5)
    both("stop-number-in-list", stop=[5])
    both("stop-null", stop=None)
    plain("stop-across", stop=["a round b"])
    both("stop-many", stop=[f"zz{i}" for i in range(16)])
    both("stop-ids", stop_token_ids=[270, 635])
    both("stop-ids-included", stop_token_ids=[270, 635], include_stop_str_in_output=True)
    both("stop-ids-stream", stop_token_ids=[270, 635], stream=True)
    both("stop-ids-word", stop_token_ids=["x"])
    both("stop-ids-large", stop_token_ids=[99999])
    both("stop-ids-empty", stop_token_ids=[])
    both("min-tokens", min_tokens=12, max_tokens=40, stop=["the"])
    chat("min-tokens-eos", ITALY, min_tokens=20, max_tokens=30)
    both("min-above-max", min_tokens=40, max_tokens=20)
    both("min-negative", min_tokens=-1)
    both("min-word", min_tokens="x")
    chat("ignore-eos", ITALY, ignore_eos=True, max_tokens=20)
    chat("ignore-eos-stream", ITALY, ignore_eos=True, max_tokens=20, stream=True)
    chat("ignore-eos-stop-id", ITALY, ignore_eos=True, stop_token_ids=[2])
    both("ignore-eos-word", ignore_eos="x")
    for name, value in [("negative", -1), ("text", "5"), ("word", "x"), ("real", 2.5), ("null", None), ("huge", 10**9), ("true", True)]:
        both("max-tokens-" + name, max_tokens=value)
    chat("max-tokens-zero", max_tokens=0)
    chat("max-completion-zero", max_completion_tokens=0)
    chat("max-fills", ITALY, max_tokens=3000)
    chat("keep-specials", ITALY, skip_special_tokens=False, max_tokens=40)
    chat("keep-specials-eos", ITALY, skip_special_tokens=False, include_stop_str_in_output=True, max_tokens=40)
    plain("no-spaces-between", spaces_between_special_tokens=False)


def logprobs():
    chat("logprobs", logprobs=True, max_tokens=4)
    chat("logprobs-false", logprobs=False)
    chat("logprobs-stream", logprobs=True, top_logprobs=2, max_tokens=4, stream=True)
    chat("top-logprobs", logprobs=True, top_logprobs=3, max_tokens=4)
    chat("top-logprobs-0", logprobs=True, top_logprobs=0, max_tokens=4)
    chat("top-logprobs-20", logprobs=True, top_logprobs=20, max_tokens=2)
    chat("top-logprobs-21", logprobs=True, top_logprobs=21, max_tokens=2)
    chat("top-logprobs-all", logprobs=True, top_logprobs=-1, max_tokens=1)
    chat("top-logprobs-low", logprobs=True, top_logprobs=-2, max_tokens=1)
    chat("top-logprobs-alone", top_logprobs=3, max_tokens=4)
    chat("top-logprobs-without", logprobs=False, top_logprobs=3)
    chat("logprobs-number", logprobs=2, max_tokens=2)
    chat("logprobs-word", logprobs="x")
    chat("logprobs-unicode", [{"role": "user", "content": "Repeat exactly: Grüße, 東京 🙂 é"}], logprobs=True, top_logprobs=20, max_tokens=3)
    chat("logprobs-as-ids", logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True, max_tokens=3)
    chat("logprobs-eos", ITALY, logprobs=True, max_tokens=40)
    chat("logprobs-stop", logprobs=True, stop=["the"], max_tokens=40)
    for name, value in [("0", 0), ("1", 1), ("5", 5), ("20", 20), ("21", 21), ("all", -1), ("low", -2), ("true", True), ("word", "x"), ("null", None), ("real", 1.5)]:
        plain("logprobs-" + name, logprobs=value, max_tokens=3)
    plain("logprobs-stream", logprobs=2, max_tokens=3, stream=True)
    plain("logprobs-as-ids", logprobs=1, return_tokens_as_token_ids=True, max_tokens=2)
    plain("logprobs-stop", logprobs=0, stop=["round"], max_tokens=40)
    both("prompt-logprobs", prompt_logprobs=1, max_tokens=2)
    both("prompt-logprobs-0", prompt_logprobs=0, max_tokens=1)
    both("prompt-logprobs-21", prompt_logprobs=21, max_tokens=1)
    both("prompt-logprobs-low", prompt_logprobs=-2, max_tokens=1)
    both("prompt-logprobs-stream", prompt_logprobs=1, stream=True)
    both("prompt-logprobs-word", prompt_logprobs="x")
    plain("prompt-logprobs-list", ["The capital of", "Paged"], prompt_logprobs=1, max_tokens=1)
    both("token-ids", return_token_ids=True, max_tokens=4)
    both("token-ids-stream", return_token_ids=True, max_tokens=4, stream=True)
    chat("token-ids-logprobs", return_token_ids=True, logprobs=True, top_logprobs=1, max_tokens=3)
    plain("token-ids-logprobs", return_token_ids=True, logprobs=1, max_tokens=3)
    plain("token-ids-list", ["The", FOX], return_token_ids=True, max_tokens=2)


def streams():
    both("stream-usage", stream=True, stream_options={"include_usage": True})
    both("stream-usage-continuous", stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}, max_tokens=4)
    both("stream-continuous-only", stream=True, stream_options={"continuous_usage_stats": True}, max_tokens=4)
    both("stream-no-usage", stream=True, stream_options={"include_usage": False})
    both("stream-options-empty", stream=True, stream_options={})
    both("stream-options-null", stream=True, stream_options=None)
    both("stream-options-alone", stream_options={"include_usage": True})
    both("stream-options-word", stream=True, stream_options="x")
    both("stream-options-bad", stream=True, stream_options={"include_usage": "x"})
    both("stream-word", stream="x")
    both("stream-number", stream=1)
    both("stream-bad-field", stream=True, n=0)
    both("stream-one", stream=True, max_tokens=1)


def tools():
    for stream in ({}, {"stream": True}):
        tail = "-stream" if stream else ""
        chat("tools" + tail, SOFIA, tools=[WEATHER], max_tokens=60, **stream)
        chat("tools-auto" + tail, SOFIA, tools=[WEATHER, TIME], tool_choice="auto", max_tokens=60, **stream)
        chat("tools-none" + tail, SOFIA, tools=[WEATHER], tool_choice="none", max_tokens=60, **stream)
        chat("tools-required" + tail, SOFIA, tools=[WEATHER], tool_choice="required", max_tokens=80, **stream)
        chat("tools-named" + tail, SOFIA, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "get_weather"}}, max_tokens=60, **stream)
        chat("tools-unused" + tail, ITALY, tools=[TIME], max_tokens=40, **stream)
    chat("tools-result", SOFIA + [{"role": "assistant", "content": None, "tool_calls": [CALL]},
                                  {"role": "tool", "tool_call_id": "call_1", "content": '{"city": "Sofia", "temperature": 12}'}], tools=[WEATHER])
    chat("tools-result-empty", SOFIA + [{"role": "assistant", "content": "", "tool_calls": [CALL]},
                                        {"role": "tool", "tool_call_id": "call_1", "content": "cold"}], tools=[WEATHER])
    chat("tools-not-parallel", SOFIA, tools=[WEATHER], parallel_tool_calls=False, max_tokens=60)
    chat("tools-cut", SOFIA, tools=[WEATHER], max_tokens=20)
    chat("tools-empty", ITALY, tools=[])
    chat("tools-null", ITALY, tools=None)
    chat("tools-object", ITALY, tools={})
    chat("tools-nameless", ITALY, tools=[{"type": "function", "function": {}}])
    chat("tools-typeless", SOFIA, tools=[{"function": WEATHER["function"]}], max_tokens=60)
    chat("tools-other-type", ITALY, tools=[{"type": "web", "function": WEATHER["function"]}])
    chat("tools-choice-alone", ITALY, tool_choice="auto")
    chat("tools-none-alone", ITALY, tool_choice="none")
    chat("tools-required-alone", ITALY, tool_choice="required")
    chat("tools-choice-word", ITALY, tools=[WEATHER], tool_choice="maybe")
    chat("tools-choice-unknown", ITALY, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "nope"}})
    chat("tools-choice-object", ITALY, tools=[WEATHER], tool_choice={"type": "function"})
    chat("tools-bad-arguments", SOFIA + [{"role": "assistant", "content": None, "tool_calls": [
        {**CALL, "function": {"name": "get_weather", "arguments": "{"}}]}, {"role": "tool", "tool_call_id": "call_1", "content": "cold"}], tools=[WEATHER])
    chat("tools-with-format", NORA, tools=[TIME], response_format={"type": "json_object"}, max_tokens=40)


def forms():
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    for stream in ({}, {"stream": True}):
        tail = "-stream" if stream else ""
        chat("format-schema" + tail, NORA, response_format=schema, max_tokens=60, **stream)
        chat("format-object" + tail, NORA, response_format={"type": "json_object"}, max_tokens=60, **stream)
        chat("choice" + tail, structured_outputs={"choice": ["yes", "no", "maybe"]}, **stream)
    plain("format-schema", NORA[0]["content"], response_format=schema, max_tokens=60)
    chat("format-strict", NORA, response_format={"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": PERSON}}, max_tokens=60)
    chat("format-text", NORA, response_format={"type": "text"}, max_tokens=60)
    chat("format-null", NORA, response_format=None)
    chat("format-unknown", NORA, response_format={"type": "xml"})
    chat("format-typeless", NORA, response_format={})
    chat("format-word", NORA, response_format="json_object")
    chat("format-no-schema", NORA, response_format={"type": "json_schema"})
    chat("format-bad-schema", NORA, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}})
    chat("format-nameless", NORA, response_format={"type": "json_schema", "json_schema": {"schema": PERSON}}, max_tokens=60)
    both("regex", structured_outputs={"regex": "[a-c]{3}[0-9]"})
    both("regex-bad", structured_outputs={"regex": "(["})
    both("grammar", structured_outputs={"grammar": 'root ::= "a" [0-9] "b"'})
    both("grammar-bad", structured_outputs={"grammar": "root ::= ("})
    both("structured-json", structured_outputs={"json": PERSON}, max_tokens=60)
    both("structured-json-text", structured_outputs={"json": json.dumps(PERSON)}, max_tokens=60)
    chat("structured-json-object", NORA, structured_outputs={"json_object": True}, max_tokens=60)
    both("structured-two", structured_outputs={"regex": "a", "choice": ["a"]})
    both("structured-none", structured_outputs={})
    both("structured-word", structured_outputs="x")
    both("choice-empty", structured_outputs={"choice": []})
    chat("guided-choice", guided_choice=["yes", "no"])
    chat("guided-regex", guided_regex="[a-c]{3}")
    chat("guided-json", NORA, guided_json=PERSON, max_tokens=60)


def lengths():
    both("too-long-max", max_tokens=2048)
    chat("too-long", [{"role": "user", "content": LONG}])
    chat("too-long-stream", [{"role": "user", "content": LONG}], stream=True)
    plain("too-long", LONG)
    plain("too-long-tokens", [497] * 3000)
    plain("exactly", [497] * 2047, max_tokens=1)
    plain("no-room", [497] * 2048, max_tokens=1)
    plain("truncate", LONG, truncate_prompt_tokens=8)
    plain("truncate-all", LONG, truncate_prompt_tokens=-1)
    plain("truncate-right", FOX, truncate_prompt_tokens=4, truncation_side="right")
    plain("truncate-left", FOX, truncate_prompt_tokens=4, truncation_side="left")
    plain("truncate-side-alone", FOX, truncation_side="right")
    plain("truncate-side-word", FOX, truncation_side="middle")
    chat("truncate-right", KV, truncate_prompt_tokens=10, truncation_side="right")
    plain("truncate-zero", truncate_prompt_tokens=0)
    plain("truncate-low", truncate_prompt_tokens=-2)
    plain("truncate-beyond", truncate_prompt_tokens=5000)
    chat("truncate", KV, truncate_prompt_tokens=10)
    plain("truncate-echo", FOX, truncate_prompt_tokens=4, echo=True)


def bodies():
    for kind, path, good in (("chat", CHAT, {"model": "tiny", "messages": ITALY, "max_tokens": 4, "temperature": 0}),
                             ("plain", PLAIN, {"model": "tiny", "prompt": "The", "max_tokens": 4, "temperature": 0})):
        text = json.dumps(good).encode()
        for name, body in [("empty", b""), ("broken", text[:-1]), ("word", b"hello"), ("list", b"[]"), ("null", b"null"), ("number", b"5"),
                           ("trailing", text + b"x"), ("duplicate", text[:-1] + b', "max_tokens": 2}'),
                           ("latin1", text.replace(b"The", b"Th\xe9").replace(b"What", b"Wh\xe9t")), ("nan", text.replace(b'"temperature": 0', b'"temperature": NaN')),
                           ("infinity", text.replace(b'"temperature": 0', b'"temperature": Infinity')),
                           ("surrogate", text.replace(b"The", b"\\ud800").replace(b"What", b"\\ud800")), ("object", b"{}"),
                           ("bom", b"\xef\xbb\xbf" + text)]:
            case(f"body-{kind}-{name}", path, body)
        case(f"body-{kind}-no-type", path, text, headers={})
        case(f"body-{kind}-form", path, text, headers={"Content-Type": "application/x-www-form-urlencoded"})
        case(f"body-{kind}-charset", path, text, headers={"Content-Type": "application/json; charset=utf-8"})
        case(f"body-{kind}-upper", path, text, headers={"Content-Type": "Application/JSON"})
        case(f"body-{kind}-unknown-model", path, json.dumps({**good, "model": "nope"}).encode())
        case(f"body-{kind}-unknown-model-stream", path, json.dumps({**good, "model": "nope", "stream": True}).encode())
        case(f"body-{kind}-model-number", path, json.dumps({**good, "model": 5}).encode())
        case(f"body-{kind}-get", path, None, "GET", {})
        case(f"body-{kind}-put", path, text, "PUT")
        case(f"body-{kind}-request-id", path, text, headers={**JSON, "X-Request-Id": "abc-1"})
    for name, messages in [("empty", []), ("text", "x"), ("object", {}), ("number", [5]), ("roleless", [{"content": "x"}]), ("null", None),
                           ("content-number", [{"role": "user", "content": 5}]), ("part-type", [{"role": "user", "content": [{"type": "nope"}]}]),
                           ("part-word", [{"role": "user", "content": ["x"]}]), ("image", [{"role": "user", "content": [
                               {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]),
                           ("calls-word", [{"role": "assistant", "content": "", "tool_calls": "x"}] + ITALY)]:
        chat("messages-" + name, messages)
    chat("messages-missing", ...)


def others():
    case("models", "/v1/models", None, "GET", {})
    case("models-tiny", "/v1/models/tiny", None, "GET", {})
    case("models-unknown", "/v1/models/nope", None, "GET", {})
    for path in ("/health", "/version", "/load", "/ping", "/is_sleeping", "/nope", "/v1/nope", "/"):
        case("get" + path.replace("/", "-"), path, None, "GET", {})
    case("head-health", "/health", None, "HEAD", {})
    case("post-ping", "/ping", None, "POST", {})
    case("post-health", "/health", b"{}", "POST")
    case("post-models", "/v1/models", b"{}", "POST")
    for name, body in [("prompt", {"prompt": FOX}), ("unicode", {"prompt": "Grüße, 東京 🙂"}), ("strings", {"prompt": "The KV cache", "return_token_strs": True}),
                       ("no-specials", {"prompt": "The", "add_special_tokens": False}), ("empty", {"prompt": ""}), ("messages", {"messages": TURNS}),
                       ("messages-closed", {"messages": ITALY, "add_generation_prompt": False}), ("tools", {"messages": SOFIA, "tools": [WEATHER]}),
                       ("continue", {"messages": ITALY + [{"role": "assistant", "content": "The"}], "add_generation_prompt": False, "continue_final_message": True}),
                       ("list", {"prompt": ["a", "b"]}), ("nothing", {}), ("number", {"prompt": 5}), ("marks", {"prompt": "<|im_start|>user"}),
                       ("long", {"prompt": LONG}), ("no-messages", {"messages": []})]:
        case("tokenize-" + name, "/tokenize", {"model": "tiny", **body})
    case("tokenize-model", "/tokenize", {"model": "nope", "prompt": "The"})
    for name, tokens in [("fox", [497, 499, 261, 421]), ("specials", [1, 540, 272, 201, 2]), ("bytes", [165, 254, 112]), ("part", [165]), ("empty", []),
                         ("large", [99999]), ("negative", [-1]), ("word", "x"), ("real", [1.5]), ("missing", ...)]:
        case("detokenize-" + name, "/detokenize", {"model": "tiny", **({} if tokens is ... else {"tokens": tokens})})
    for name, body in [("italy", {"messages": ITALY}), ("tools", {"messages": SOFIA, "tools": [WEATHER]}), ("bad", {"messages": []}), ("sampled", {
            "messages": ITALY, "temperature": 0, "max_tokens": 7, "stop": ["x"]})]:
        case("render-chat-" + name, CHAT + "/render", {"model": "tiny", **body})
    for name, body in [("text", {"prompt": FOX}), ("list", {"prompt": ["The", "Paged"]}), ("tokens", {"prompt": [497, 499]}), ("bad", {"prompt": 5})]:
        case("render-plain-" + name, PLAIN + "/render", {"model": "tiny", **body})
    for name, body in [("text", {"input": "What is the capital of Italy?"}), ("items", {"input": ITALY}), ("instructions", {
            "input": ITALY, "instructions": "You are a careful assistant. Answer briefly."}), ("cut", {"input": KV, "max_output_tokens": 3}),
                       ("empty", {"input": []}), ("missing", {}), ("stream", {"input": "What is the capital of Italy?", "stream": True})]:
        case("responses-" + name, "/v1/responses", {"model": "tiny", "temperature": 0, "store": False, **body})
    for name, body in [("italy", {"messages": ITALY, "max_tokens": 40}), ("system", {"messages": ITALY, "system": "Be brief.", "max_tokens": 40}),
                       ("cut", {"messages": KV, "max_tokens": 3}), ("stop", {"messages": KV, "max_tokens": 40, "stop_sequences": ["the"]}),
                       ("no-max", {"messages": KV}), ("unknown-model", {"model": "nope", "messages": KV, "max_tokens": 3}), ("empty", {"messages": [], "max_tokens": 3}),
                       ("stream", {"messages": ITALY, "max_tokens": 40, "stream": True}), ("tools", {"messages": SOFIA, "max_tokens": 60, "tools": [
                           {"name": "get_weather", "description": "Get the current weather of a city.", "input_schema": WEATHER["function"]["parameters"]}]})]:
        case("messages-" + name, "/v1/messages", {"model": "tiny", "temperature": 0, **body})
    case("messages-count", "/v1/messages/count_tokens", {"model": "tiny", "messages": ITALY})
    case("embeddings", "/v1/embeddings", {"model": "tiny", "input": "The"})


for group in (chats, completions, sampling, stops, logprobs, streams, tools, forms, lengths, bodies, others):
    group()
assert len({c[0] for c in CASES}) == len(CASES), "two cases have the same name"
if __name__ == "__main__":
    print(len(CASES))
