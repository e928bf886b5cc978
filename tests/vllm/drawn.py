"""Requests that are drawn, for differential.py: every field that vLLM's own /openapi.json knows with values of every kind (sweep), every
place of rich bodies with the same (bend), and legal values of many fields together, by a seed (draw). A case is one of cases.py's; its name
says what is odd about it, `chat stream_options.include_usage=word`, and differences_live.py refers to these names."""
import copy
import random

from cases import CALL, CHAT, FOX, ITALY, JSON, KV, PERSON, PLAIN, SOFIA, TIME, WEATHER

ROUTES = {"chat": CHAT, "plain": PLAIN, "responses": "/v1/responses", "messages": "/v1/messages", "count": "/v1/messages/count_tokens",
          "tokenize": "/tokenize", "detokenize": "/detokenize"}
BASES = {
    "chat": {"model": "tiny", "messages": ITALY, "temperature": 0, "max_tokens": 3},
    "plain": {"model": "tiny", "prompt": FOX, "temperature": 0, "max_tokens": 3},
    "responses": {"model": "tiny", "input": "What is the capital of Italy?", "temperature": 0, "max_output_tokens": 3, "store": False},
    "messages": {"model": "tiny", "messages": ITALY, "temperature": 0, "max_tokens": 3},
    "count": {"model": "tiny", "messages": ITALY},
    "tokenize": {"model": "tiny", "messages": ITALY},
    "detokenize": {"model": "tiny", "tokens": [497, 499]},
}
KINDS = {"null": None, "word": "x", "digits": "5", "number": 5, "real": 1.5, "negative": -1, "wide": 2**40, "true": True, "empty": "", "list": [],
         "object": {}, "words": ["x"], "numbers": [5], "deep": [[{"a": 1}]]}
TOOL_TURNS = SOFIA + [{"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": "cold"}]
FUNCTION = {"type": "function", "name": "get_weather", "description": "Get the weather.", "parameters": WEATHER["function"]["parameters"]}
BLOCKS = [{"role": "user", "content": [{"type": "text", "text": "What is the weather in Sofia?"}]},
          {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Sofia"}}]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "cold"}]}]}]
RICH = {
    "chat": [
        {"messages": [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, *TOOL_TURNS], "tools": [WEATHER, TIME], "tool_choice": "auto"},
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": False}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": PERSON}}},
        {"structured_outputs": {"regex": "[a-c]{3}", "disable_any_whitespace": False}, "logit_bias": {"497": 5}, "stop": ["xyz"], "stop_token_ids": [270]},
        {"chat_template_kwargs": {"enable_thinking": False}, "documents": [{"title": "Rome", "text": "Rome is a city."}]},
    ],
    "plain": [
        {"prompt": ["The", FOX], "logit_bias": {"497": 5}, "stop": ["xyz"], "stop_token_ids": [270], "bad_words": ["fox"]},
        {"prompt": [[497, 499], [273]], "stream": True, "stream_options": {"include_usage": True}},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"response_format": {"type": "json_object"}},
    ],
    "responses": [
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "What is the weather in Sofia?"}]},
                   {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{\"city\": \"Sofia\"}"},
                   {"type": "function_call_output", "call_id": "c1", "output": "cold"}], "tools": [FUNCTION], "tool_choice": "auto"},
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "get_weather"}},
        {"text": {"format": {"type": "json_schema", "name": "p", "strict": True, "schema": PERSON}}, "reasoning": {"effort": "low"}, "metadata": {"a": "b"}},
    ],
    "messages": [
        {"messages": BLOCKS, "tools": [{"name": "get_weather", "description": "Weather.", "input_schema": WEATHER["function"]["parameters"]}],
         "tool_choice": {"type": "auto"}, "system": [{"type": "text", "text": "Be brief."}]},
        {"stop_sequences": ["the"], "metadata": {"user_id": "a"}, "thinking": {"type": "disabled"}},
    ],
    "count": [{"messages": BLOCKS, "system": "Be brief."}],
    "tokenize": [{"messages": TOOL_TURNS, "tools": [WEATHER], "chat_template_kwargs": {"a": 1}}],
    "detokenize": [],
}
# Legal values, to be put together. Greedy throughout, so that two right servers give the same text.
LEGAL = {
    "max_tokens": [1, 2, 5, 12], "min_tokens": [0, 2], "stop": ["the", [" a", "of"], []], "stop_token_ids": [[270, 635], []],
    "include_stop_str_in_output": [True], "ignore_eos": [True], "skip_special_tokens": [False], "spaces_between_special_tokens": [False],
    "logit_bias": [{"497": 20}, {"273": -100}, {}], "frequency_penalty": [0.7, -0.7], "presence_penalty": [0.7], "repetition_penalty": [1.2],
    "seed": [7], "top_k": [1, 5, -1], "top_p": [0.5, 1], "min_p": [0.2], "bad_words": [["cache", "fox"], []], "allowed_token_ids": [[273, 286, 270, 16, 2]],
    "prompt_logprobs": [1, 0], "return_token_ids": [True], "return_tokens_as_token_ids": [True], "stream": [True], "user": ["a"],
    "truncate_prompt_tokens": [4, 64], "truncation_side": ["left", "right"], "priority": [0], "cache_salt": ["salt"], "echo": [True], "n": [1],
    "structured_outputs": [{"choice": ["yes", "no"]}, {"regex": "[a-c]{3}[0-9]"}, {"grammar": 'root ::= "a" [0-9] "b"'}],
    "response_format": [{"type": "text"}], "stream_interval": [1, 4], "session_id": ["s"], "vllm_xargs": [{"a": 1}],
    "stream_options": [{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}], "add_special_tokens": [False, True],
    "request_id": ["mine"],
}
OWN = {
    "chat": {"messages": [ITALY, KV, TOOL_TURNS, ITALY + [{"role": "assistant", "content": "The capital"}]], "logprobs": [True, False], "top_logprobs": [0, 2],
             "max_completion_tokens": [4], "tools": [[WEATHER], [WEATHER, TIME]], "tool_choice": ["auto", "none", "required"],
             "parallel_tool_calls": [False, True], "add_generation_prompt": [False], "continue_final_message": [True], "include_reasoning": [False],
             "chat_template_kwargs": [{"enable_thinking": False}], "reasoning_effort": ["low"], "return_prompt_text": [True]},
    "plain": {"prompt": ["The", ["The", FOX], [497, 499, 261], [[497], [499, 261]], "  a\n"], "logprobs": [0, 1, 3], "suffix": [None]},
}


def kinds_for(now):
    """What a place is bent to; not what it is already."""
    return {k: v for k, v in KINDS.items() if v != now or type(v) is not type(now)}


def case(name, api, body):
    return name, "POST", ROUTES[api], body, JSON


def fields_of(description):
    """{api: [field]} of an OpenAPI description."""
    out = {}
    for api, path in ROUTES.items():
        schema = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        names, todo = set(), [schema]
        while todo:
            one = todo.pop()
            if "$ref" in one:
                one = description["components"]["schemas"][one["$ref"].rsplit("/", 1)[1]]
            names |= one.get("properties", {}).keys()
            todo += one.get("anyOf", []) + one.get("oneOf", [])
        out[api] = sorted(names)
    return out


def sweep(fields):
    for api, names in fields.items():
        for field in names:
            for kind, value in kinds_for(BASES[api].get(field, ...)).items():
                yield case(f"{api} {field}={kind}", api, {**BASES[api], field: value})
            if field in BASES[api]:
                yield case(f"{api} {field}=gone", api, {k: v for k, v in BASES[api].items() if k != field})


def places(body, path=()):
    """Every place below the top of a body."""
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in items:
        if path:
            yield (*path, key), value
        yield from places(value, (*path, key))


def put(body, path, value):
    """A copy with the place changed; ... removes it."""
    made = copy.deepcopy(body)
    at = made
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return made


def bend():
    some = {k: KINDS[k] for k in ("null", "word", "number", "true", "list", "object")}
    for api, bodies in RICH.items():
        for number, rich in enumerate(bodies):
            yield case(f"{api} rich{number}", api, {**BASES[api], **rich})
            for path, now in places(rich):
                at = ".".join(map(str, path))
                for kind, value in {**{k: v for k, v in some.items() if v != now}, "gone": ...}.items():
                    yield case(f"{api} rich{number} {at}={kind}", api, {**BASES[api], **put(rich, path, value)})
                if isinstance(now, dict):
                    yield case(f"{api} rich{number} {at}.nonsense=number", api, {**BASES[api], **put(rich, (*path, "nonsense"), 5)})


def draw(seed, count):
    rng = random.Random(seed)
    for i in range(count):
        api = rng.choice(("chat", "plain"))
        legal = {**LEGAL, **OWN[api]}
        body, told = dict(BASES[api]), []
        for field in rng.sample(sorted(legal), rng.randint(2, 6)):
            which = rng.randrange(len(legal[field]))
            body[field] = legal[field][which]
            told.append(f"{field}#{which}")
        if rng.random() < 0.3:
            field = rng.choice([f for f in body if f != "model"])
            kind = rng.choice(sorted(kinds_for(body[field])))
            body[field] = KINDS[kind]
            told.append(f"{field}={kind}")
        yield case(f"{api} drawn{i} {' '.join(told)}", api, body)
