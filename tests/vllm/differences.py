"""The differences from vLLM 0.32 that are meant, each with its reason. `where` is a regular expression on "PATH WHAT" as compare.py
prints it, `cases` are patterns of names. One that is no longer seen, and one that is not here, fail the comparison; the list in
docs/compatibility.md is written from this list."""

FORMS = ("chat-format-* plain-format-* chat-structured-json* plain-structured-json* chat-tools-with-format")


def entry(what, cases, where, theirs, ours, why):
    return {"id": what, "cases": cases, "where": where, "theirs": theirs, "ours": ours, "why": why}


ACCEPTED = [
    # errors
    entry("type of an error", "*", r"\$\.error\.type value 'Bad Request' → 'BadRequestError'", "`Bad Request` from its body's check, `BadRequestError` from others",
          "`BadRequestError`", "one name for one status; OpenAI's clients choose their exception by the status"),
    entry("param of an error", "*", r"\$\.error\.param (value 'body\..*|type null → string|value '(max_tokens|logprobs|tool_choice\.function)' → .*)",
          "none, or a path in its own data types (`body.messages.0.ChatCompletionDeveloperMessageParam`)", "the field's name",
          "the field that is to be changed, as OpenAI's API names it"),
    entry("param when the body is no JSON", "body-* chat-seed-too-large plain-seed-too-large", r"\$\.error\.param type string → null", "the place as `body.68`, or the field",
          "null; line and column are in the message", "there is no field to name: the body could not be read (NaN, Infinity and integers over 64 bits are not read either)"),
    entry("errors of its web framework", "get-* body-*-get body-*-put body-*-latin1 post-* models-unknown", r"\$\.(detail missing string|error extra object)", '`{"detail": ...}`', "the error object, as everywhere",
          "OpenAI's clients show its message"),
    entry("wrong type from a server's fault", "*-structured-word", r"status 500 → 400", "500", "400 with the field", "it is the request that is wrong"),

    # what is read
    entry("numbers and booleans written as another type", "chat-temperature-text chat-temperature-true *-max-tokens-text *-max-tokens-true *-stream-number plain-logprobs-true plain-bool-list",
          r"status 200 → 400", "`\"5\"`, `true`, `1` are turned into what is wanted", "400 with the field", "OpenAI's API refuses them; a wrong type is a mistake of the client that should not be guessed around"),
    entry("repeated keys in a body", "body-*-duplicate", r"status 200 → 400", "the last one counts", "400", "two readers of such a body (a proxy that checks, a server that acts) see different requests"),
    entry("messages without content or with a role that no API has", "chat-no-content chat-unknown-role", r"status 200 → 400", "the template gets them, and mostly leaves them out", "400 with the message's number",
          "a prompt without what the user said is worse than an error"),
    entry("special tokens in a user's text", "chat-marks-in-text", r".*", "`<|im_end|>` in a message ends it", "it is text", "a user cannot write as somebody else; `/v1/completions` reads them in both"),
    entry("list of prompts of different kinds", "plain-mixed", r"status 400 → 200", "400", "each is completed", "nothing stands against it"),
    entry("empty `suffix`, empty `stop`, empty `tools`, more than 4 stops, a schema without a name, strings as parts of a message", "plain-suffix-empty chat-tools-empty *-stop-empty *-stop-many chat-format-nameless chat-messages-part-word", r"status 400 → 200", "400", "taken",
          "clients send them, and what is meant is clear; 16 stops at most"),
    entry("several greedy answers", "*-n-2-greedy", r"status 400 → 200", "400: `n` must be 1", "the same answer n times", "OpenAI's API answers so"),
    entry("`logit_bias` beyond 100", "*-bias-beyond", r"status 200 → 400", "cut to 100", "400", "OpenAI's API refuses it"),
    entry("beam search, `best_of`", "chat-beam plain-best-of-two", r"status 200 → 400", "beam search; `best_of` is ignored", "400 with what to use instead", "not offered, and not ignored in silence"),
    entry("`guided_*`", "chat-guided-*", r".*", "ignored since 0.12", "the form is kept to", "older clients still mean it"),
    entry("a token id that does not exist", "detokenize-large", r"status 200 → 400", "no text", "400", "a wrong tokenizer shows at once"),
    entry("the most tokens that there is room for", "*-too-long-max", r"\$\.usage\.max_output_tokens extra number", "`max_tokens` is cut without a word", "`usage.max_output_tokens` says to how many",
          "who asked for more sees why the answer ended"),
    entry("a page at `/`", "get-", r"status 404 → 200", "404", "a page to try the model", "the address in a browser shows something; `--no-web` gives the 404"),
    entry("room for the answer", "plain-truncate-all", r".*", "`truncate_prompt_tokens` -1 leaves room for one token", "leaves room for `max_tokens`", "what was asked for is given"),

    # what is answered
    entry("blanks in constrained JSON", FORMS, r".*(finish_reason value 'length' → 'stop'|text value .*|content value .*|_tokens value .*)",
          "any number: this model goes on with line breaks until `max_tokens`", "one, or a line break with up to 24", "the answer ends by itself and is valid"),
    entry("`echo` of a truncated prompt", "plain-truncate-echo", r"\$\.choices\[\]\.text value .*", "the prompt before it was truncated", "what ran", "texts and log probabilities fit together"),
    entry("`echo` of a chat", "chat-*echo*", r"\$\.prompt_logprobs type list → null", "gives the prompt's log probabilities too", "only with `prompt_logprobs`", "nobody asked; they cost the prefix cache"),
    entry("`max_tokens` 0 with `echo`", "plain-zero-echo*", r"\$\.usage\..*", "counts the token that it computed and threw away", "counts none", "usage is what was given"),
    entry("tokens as ids", "*-logprobs-as-ids", r".*(bytes.*|text_offset.*)", "`bytes` and `text_offset` are those of the text `token_id:5`", "those of the token", "this is what they are for"),
    entry("tokens' texts of `/tokenize`", "tokenize-strings", r"\$\.token_strs\[\] value .*", "as the vocabulary writes them (`Ġcache`)", "the text (` cache`)", "readable without the tokenizer's alphabet"),
    entry("first chunk of a call", "chat-tools-*stream", r".*function\.arguments extra string", "no `arguments`", "`arguments` is empty", "as OpenAI's API does; clients add the pieces up"),
    entry("parsers that are in use", "models", r"\$\.data\[\]\.(tool_call|reasoning)_parser extra string", "told nowhere", "`tool_call_parser`, `reasoning_parser`", "they are chosen by the template; who asks sees which"),
    entry("name of the owner", "models", r"\$\.data\[\]\.owned_by .*", "`vllm`", "`evenkeel`", "who serves it"),
    entry("render", "render-*", r".*(missing .*|prompt extra string)", "all that its generate endpoint takes (`sampling_params`, `features` and others)", "`request_id`, `model`, `token_ids`, and the text as `prompt`",
          "there is no such endpoint; `token_ids` stands where clients read it"),
    entry("`/v1/responses`", "responses-*", r"\$.*(per_turn|tool_output_tokens|_messages|_transfer_params|cached_tokens|\.text|\.store|\.metadata|\.error|\.logprobs|tool_choice|cache_diagnostics|\.top_p|max_output_tokens) .*",
          "with keys of its own; `text`, `metadata` null; `max_output_tokens` and `tool_choice` filled in", "OpenAI's object: `text`, `metadata`, `store`, `error`; what the client sent; `cached_tokens` counted", "the official client's types"),
    entry("`/v1/messages`", "messages-*", r"\$.*(usage\.cache_\w+_input_tokens|usage\.input_tokens|stop_sequence|\.type|error\.(code|param)|context_management) .*",
          "no cached tokens, no `stop_sequence`, errors in OpenAI's form, `context_management`", "Anthropic's object; `input_tokens` are those not cached", "the official client's types"),
    entry("health has a body", "get-health get-ping post-ping", r"type none → application/json", "no body", '`{"status": "ready"}`, or why not', "probes read the status, people the reason"),
    entry("more routes and methods", "models-tiny get-is_sleeping head-health embeddings", r"status (404|405) → 200", "404; embeddings only from models for them", "answered", "OpenAI's API has `/v1/models/NAME`; probes use HEAD"),
]
