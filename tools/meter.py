#!/usr/bin/env python3
"""Which functions take what a client or a model's file chose the size of, and who pays: every declaration in the headers of server/api,
server/text, server/grammar and server/net that takes JSON (`json_t *`) or a text with its length, and among its arguments nothing that has a
meter (common/work.h), must be below with the reason why it needs none. A new one fails until somebody says so; an entry that is not needed
any more fails too. Functions that are static are fed by make doubling, which counts what is done and not paid for."""
import glob
import re
import sys

# Structs that have their caller's meter, or are one.
CARRIERS = ("ek_work", "field_source", "token_vec", "generation_origin", "openai_ask", "rx_work", "jr", "pretok_run", "exchange",
            "expr_set", "lark", "schema_reader", "structure")
FOLDERS = ("server/api/*.h", "server/text/**/*.h", "server/grammar/*.h", "server/net/*.h")

ONE = "looks at one value, or at one member by its key"
PAID = "its caller, a reader of a field, has paid for what it holds"
ONCE = "copies or writes each byte once, for a caller that has paid for the text"
ANSWER = "reads what a model wrote, in time of its length alone: make doubling"
START = "reads a file of the model once at start, in a confined child first; make doubling feeds it"
STEP = "works on one character, or a length that is bounded"
READ = "goes once through a text of which grammar_compile() has paid for each byte"
OWN = "reads what the operator or the program itself wrote"

ALLOWED = {
    "field_of": ONE, "field_bool": ONE, "field_real": ONE, "field_whole": ONE, "field_uint": ONE, "field_ids": PAID,
    "protocol_message": ONCE, "protocol_add_call": ONE, "protocol_add_result": ONCE, "protocol_tool": ONE, "forms_part": ONE, "forms_part_of": ONE, "forms_text": PAID,
    "custom_note": ONE, "custom_is": ONE, "custom_input": ONCE, "custom_put": ONCE, "custom_arguments": ONCE,
    "ollama_only_loads": ONE, "ollama_loaded": ONE, "ollama_show": ONE, "openai_is_raw": ONE,
    "openai_load": "JSON's parser is linear; what it may become is measured before (common/json.h) and charged to the account",
    "reply_object": ONCE, "reply_bytes": ONCE,
    "added_put": START, "added_find": "tokenizer_encode() pays for each stretch it looks through",
    "harmony_push": ANSWER, "reasoning_begin": "looks at the end of a prompt for marks", "reasoning_push": ANSWER, "toolcalls_push": ANSWER,
    "tool_begin": ANSWER, "tool_named": ANSWER, "tool_args": ANSWER, "tool_json_named": ANSWER, "tool_put_param": ANSWER, "tool_schema_of": ANSWER,
    "tool_python_value": ANSWER,
    "charsmap_ok": START, "charsmap_run": "normalizer_run() pays for its text; a replacement has at most 256 bytes",
    "decoder_fallback": STEP, "decoder_run": START,
    "jinja_parse": START, "jlex_init": "of jinja_parse()",
    "rx_new": START, "text_file_read": START, "text_file_read_itself": START,
    "tok_build": START, "tok_build_from": START, "tok_from_spm": START, "tok_from_unigram": START, "tok_from_tekken": START, "tok_from_tiktoken": START, "tok_from_merges": START, "tok_config_of_old": START, "tok_named": START, "tok_listed": START, "tok_text": ONE, "tok_source_read": START,
    "tok_byte_root": START,
    "tok_read_normalizer": START, "tok_read_pretok": START, "tok_read_decoder": START, "tok_read_around": START, "tok_bool": ONE,
    "tok_string": ONE,
    "utf8_get": STEP, "utf8_next": STEP, "utf8_prev": STEP, "utf8_valid": ONCE, "utf8_bad": STEP, "utf8_lossy": ONCE,
    "chars_digits": STEP, "chars_hex": STEP, "digits_read": STEP, "expr_refuse_line": READ, "lark_is": READ, "lark_most_tokens": READ,
    "grammar_cache_find": "compares with at most GRAMMAR_KEPT texts of at most GRAMMAR_TEXT_MOST bytes",
    "frame_tool_name": ONE, "schema_is_plain": ONE, "schema_type_of": ONE, "structure_field": ONE, "structure_count": ONE, "structure_at": ONE,
    "auth_find": ONCE, "key_digest": ONCE, "head_field": "a head has at most what a connection has room for",
    "gunzip": "what comes out is charged to the account piece by piece, and bounded",
    "control_parse_limits": "of the control socket, whose callers may set the limits", "keyfile_parse": OWN, "losses_read": OWN,
    "vocab_put": START, "vocab_find": "hashes once; no more bytes than the longest token has",
}

HEAD = re.compile(r"(?:^|[;{}]) ?(?:[\w ]+[ *]+)(\w+)\(")
TAIL = re.compile(r" ?(?:__attribute__\(\(.*?\)\) ?)*[;{]")
TEXT = re.compile(r"const (?:char|void|uint8_t|unsigned char) \*\w+, (?:size_t \w+|uint32_t (?:\w*(?:len|size|bytes|count)|n)\b)|const struct ek_buf \*")


def closing(text, at):
    """Behind the bracket that closes the one before `at`."""
    depth = 1
    while depth and at < len(text):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at


def declarations(text):
    """Names and arguments, comments and macros left out."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^#(?:.*\\\n)*.*$", "", text, flags=re.M)
    text = re.sub(r"\s+", " ", text)
    found = []
    for m in HEAD.finditer(text):
        end = closing(text, m.end())
        if TAIL.match(text, end):
            found.append((m.group(1), text[m.end():end - 1]))
    return found


def unmetered(text):
    """Those of a header that take a client's text or JSON and have no meter."""
    carrier = re.compile(r"struct (?:%s)\b" % "|".join(CARRIERS))
    return [name for name, args in declarations(text) if ("json_t *" in args or TEXT.search(args)) and not carrier.search(args)]


def check_itself():
    """What must be found is found, and nothing else."""
    sample = """#define X(json_t *a) \\
        int not_this(json_t *v);
        /* int nor_this(json_t *v); */
        int bare_json(const json_t *v,
                      int n);
        struct a *bare_text(const char *s, size_t len);
        static inline bool bare_inline(const char *s, size_t len) { return s[len]; }
        int bare_bytes(const uint8_t *s, uint32_t len) __attribute__((nonnull(1)));
        int bare_each(json_t *v, int (*each)(void *ctx, json_t *v), void *ctx);
        int bare_buf(const struct ek_buf *text);
        int paid(json_t *v, struct ek_work *work); int plain(int n);"""
    want = ["bare_json", "bare_text", "bare_inline", "bare_bytes", "bare_each", "bare_buf"]
    assert unmetered(sample) == want, unmetered(sample)


def main():
    check_itself()
    bad = 0
    needed = set()
    for path in sorted(p for pattern in FOLDERS for p in glob.glob(pattern, recursive=True)):
        with open(path, encoding="utf-8") as f:
            for name in unmetered(f.read()):
                needed.add(name)
                if name not in ALLOWED:
                    print(f"{path}: {name}() takes what a client or a file sent, and has no meter; hand it one, or say in tools/meter.py why not")
                    bad += 1
    for name in sorted(set(ALLOWED) - needed):
        print(f"tools/meter.py: {name} has a meter or is gone; take it off the list")
        bad += 1
    return bad > 0


sys.exit(main())
