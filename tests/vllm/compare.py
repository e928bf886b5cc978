"""Compares two recordings of ask.py (or THEIRS as --keep wrote it): status, type, shape (keys and types, all the way down) and values. Left out are the values that
differ from run to run (ids, times) and the words of error messages; numbers may differ in the last digits. Every difference must be in
differences.py with its reason, and each of those must still be seen: else exit status 1.
    compare.py THEIRS OURS [--write DOC] [--keep FILE] [--all]
--write puts the list of differences into a document, --keep writes THEIRS without what is left out, for a comparison without vLLM."""
import fnmatch
import json
import pathlib
import re
import sys
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from differences import ACCEPTED  # noqa: E402

# Values that no two runs share; that they are there and of which type counts.
VOLATILE = {"id", "created", "created_at", "completed_at", "message", "request_id", "call_id", "item_id", "system_fingerprint", "server_load", "version", "root",
            "encrypted_content", "signature"}
BEGIN, END = "<!-- written by make check-vllm -->", "<!-- end -->"


def kind(v):
    if isinstance(v, bool):
        return "bool"
    return {dict: "object", list: "list", str: "string", int: "number", float: "number", type(None): "null"}[type(v)]


def same(a, b):
    if isinstance(a, (int, float)) and not isinstance(a, bool):
        return abs(a - b) <= 2e-3 + 1e-3 * abs(a)
    return a == b


def walk(theirs, ours, path, out):
    if kind(theirs) != kind(ours):
        out.append((path, f"type {kind(theirs)} → {kind(ours)}"))
    elif isinstance(theirs, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            at = f"{path}.{key}"
            if key not in ours:
                out.append((at, f"missing {kind(theirs[key])}"))
            elif key not in theirs:
                out.append((at, f"extra {kind(ours[key])}"))
            elif key not in VOLATILE or kind(theirs[key]) != kind(ours[key]):
                walk(theirs[key], ours[key], at, out)
    elif isinstance(theirs, list):
        if len(theirs) != len(ours):
            out.append((path, f"length {len(theirs)} → {len(ours)}"))
        for a, b in zip(theirs, ours):
            walk(a, b, path + "[]", out)
    elif not same(theirs, ours):
        out.append((path, f"value {theirs!r} → {ours!r}"))


def piece(choice):
    delta = choice.get("delta", choice)
    return delta.get("content") or delta.get("text") or ""


def fold_choice(choice, into):
    into["text"] = into.get("text", "") + piece(choice)
    into["reasoning"] = into.get("reasoning", "") + (choice.get("delta", {}).get("reasoning") or "")
    into.setdefault("ids", []).extend(choice.get("token_ids") or [])
    for call in choice.get("delta", {}).get("tool_calls") or []:
        mine = into.setdefault("calls", {}).setdefault(str(call["index"]), {"name": "", "arguments": ""})
        for key in mine:
            mine[key] += call.get("function", {}).get(key) or ""
    lp = choice.get("logprobs") or {}
    for key, value in lp.items():
        if isinstance(value, list):
            into.setdefault("logprobs", {}).setdefault(key, []).extend(value)
    for key in ("finish_reason", "stop_reason"):
        if choice.get(key) is not None:
            into[key] = choice[key]


def kind_of_chunk(event):
    if "error" in event:
        return "error"
    if not event.get("choices"):
        return "usage"
    choice = event["choices"][0]
    if choice.get("finish_reason") is not None:
        return "finish"
    if (choice.get("delta") or {}).get("role"):
        return "role"
    return "call" if (choice.get("delta") or {}).get("tool_calls") else "text"


def hollow(v):
    """The shape alone: which values an event in the middle has depends on how the text was cut up; likewise whether the last one
    still brings text."""
    if isinstance(v, dict):
        ends = v.get("finish_reason") is not None and "delta" in v
        return {k: [{}] if k == "top_logprobs" and x else hollow({} if ends and k == "delta" else x) for k, x in v.items()}
    if isinstance(v, list):
        return [hollow(x) for x in v[:1]]
    return {"string": "", "number": 0, "bool": False, "null": None}[kind(v)]


def fold(events):
    """A stream as what a client makes of it, and one event of each kind for its shape."""
    if any(isinstance(e, dict) and "event" in e for e in events):
        return fold_named(events)
    folded = {"choices": {}, "done": events[-1:] == ["data: [DONE]"], "chunks": {}}
    for e in events:
        if isinstance(e, str):
            continue
        what = kind_of_chunk(e)
        # usage and error: all of it; others: the first of a kind, its shape
        if what in ("usage", "error"):
            folded[what] = e
            continue
        # a first text chunk of a plain stream has more: it is a kind of its own
        if what == "text" and "text" not in folded["chunks"] and "role" not in folded["chunks"]:
            what = "first"
        if what == "call" and e["choices"][0]["delta"]["tool_calls"][0].get("id"):
            what = "call head"
        folded["chunks"].setdefault(what, hollow(e))
        for choice in e["choices"]:
            fold_choice(choice, folded["choices"].setdefault(str(choice["index"]), {}))
    return folded


def fold_named(events):
    folded = {"order": [], "last": {}, "text": ""}
    for e in events:
        if isinstance(e, str):
            folded["done"] = True
            continue
        if e["event"] not in folded["order"][-1:]:
            folded["order"].append(e["event"])
        folded["last"][e["event"]] = hollow(e["data"])
        delta = e["data"].get("delta")
        folded["text"] += delta if isinstance(delta, str) else (delta or {}).get("text") or ""
    return folded


def differences(theirs, ours):
    """[(path, what)] of one case."""
    if theirs["status"] != ours["status"]:
        return [("status", f"{theirs['status']} → {ours['status']}")]
    if theirs["type"] != ours["type"]:
        return [("type", f"{theirs['type'] or 'none'} → {ours['type'] or 'none'}")]
    out = []
    for part in ("headers", "json", "text", "events"):
        a, b = theirs.get(part), ours.get(part)
        if part == "events" and a is not None and b is not None:
            for side in (a, b):  # whether the last chunk still brings a token depends on when it came
                for choice in side.get("chunks", {}).get("finish", {}).get("choices", []):
                    choice["logprobs"] = None
            for what in {"first", "text"} & (a.get("chunks", {}).keys() ^ b.get("chunks", {}).keys()):
                for side in (a, b):  # one of them said all of it at once, with its end
                    side["chunks"].pop(what, None)
                    for choice in side["chunks"].get("finish", {}).get("choices", []):
                        choice.pop("prompt_token_ids", None)
        if a is not None or b is not None:
            walk(a or ({} if part == "headers" else a), b or ({} if part == "headers" else b), "$.headers" if part == "headers" else "$", out)
    return sorted(set(out))


def quiet(v):
    """Without the values that no two runs share; numbers as exact as they are compared."""
    if isinstance(v, dict):
        return {k: hollow(x) if k in VOLATILE and not isinstance(x, (dict, list)) else quiet(x) for k, x in v.items()}
    if isinstance(v, list):
        return [quiet(x) for x in v]
    return round(v, 4) if isinstance(v, float) else v


def reduced(answer):
    """An answer as it is compared: a stream folded."""
    events = answer.get("events")
    return quiet({**answer, "events": fold(events)} if isinstance(events, list) else answer)


def load(path):
    return {r["name"]: reduced(r) for r in map(json.loads, pathlib.Path(path).read_text(encoding="utf-8").splitlines())}


def accepted_by(name, path, what):
    for entry in ACCEPTED:
        if any(fnmatch.fnmatchcase(name, p) for p in entry["cases"].split()) and re.fullmatch(entry["where"], f"{path} {what}"):
            return entry
    return None


def as_list(used, cases, equal, differ):
    names = set().union(*(used[e["id"]] for e in ACCEPTED if e["id"].split(" ")[0] in ("type", "param")))
    others = set().union(*(used[e["id"]] for e in ACCEPTED if e["id"].split(" ")[0] not in ("type", "param")))
    told = (f"{cases} requests: {equal} answered alike, {differ} with a difference from this list, {len(names - others)} of these only in how an "
            "error's `type` and `param` are named.")
    lines = [BEGIN, "", textwrap.fill(told, 120), ""]
    lines += [f"- **{e['id']}**: vLLM: {e['theirs']}; here: {e['ours']}." for e in ACCEPTED]
    return "\n".join(lines + ["", END])


def write(doc, text):
    page = pathlib.Path(doc).read_text(encoding="utf-8")
    head, rest = page.split(BEGIN)
    pathlib.Path(doc).write_text(head + text + rest.split(END)[1], encoding="utf-8")


def main(theirs_path, ours_path, *rest):
    theirs, ours = load(theirs_path), load(ours_path)
    used = {e["id"]: set() for e in ACCEPTED}
    unlisted, equal = [(name, "case", "not recorded") for name in ours if name not in theirs], 0
    for name in theirs:
        found = differences(theirs[name], ours[name]) if name in ours else [("case", "not asked")]
        equal += not found
        for path, what in found:
            entry = accepted_by(name, path, what)
            if entry:
                used[entry["id"]].add(name)
            if not entry or "--all" in rest:
                unlisted.append((name, path, what))
    for name, path, what in unlisted:
        print(f"  {name}: {path} {what}")
    stale = [i for i, names in used.items() if not names]
    for i in stale:
        print(f"  no longer seen, take it from differences.py: {i}")
    bad = {n for n, _, _ in unlisted}
    listed = set().union(*used.values()) - bad if used else set()
    print(f"{len(theirs)} requests: {equal} alike, {len(listed)} with listed differences, {len(bad)} with others")
    if "--keep" in rest:
        lines = (json.dumps(a, ensure_ascii=False, sort_keys=True, separators=(",", ":")) for a in theirs.values())
        pathlib.Path(rest[rest.index("--keep") + 1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    if "--write" in rest:
        write(rest[rest.index("--write") + 1], as_list(used, len(theirs), equal, len(theirs) - equal))
    return bool(unlisted or stale) and "--all" not in rest


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
