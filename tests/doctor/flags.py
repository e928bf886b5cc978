#!/usr/bin/env python3
"""Checks the list `flags` of supervisor/doctor/signatures.yaml against the engine's own sources.

usage: flags.py DIR [SGLANG_DIR]       DIR holds unpacked source distributions of vLLM, one folder a version: v0.6.0, v0.11.2, ...
                          (pip download --no-deps --no-binary :all: vllm==VERSION, or a checkout of each tag)

A version has a flag when its argument parser or its table of environment variables names it. What a version between two that were looked at has is not
known; the bounds of the list must lie in that gap. Prints a table, and status 1 when a bound is contradicted. Every --flag that a remedy for vLLM or one of
`helps` names is looked for as well: one that no version of DIR has is an error of the catalog.

SGLANG_DIR holds unpacked wheels of SGLang likewise (pip download --no-deps sglang==VERSION): each flag that the catalog has for SGLang, as another engine's
name or in a step for it alone, must be in the newest of them; the table says since when.
"""
import pathlib
import re
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FILES = ["vllm/engine/arg_utils.py", "vllm/entrypoints/openai/cli_args.py", "vllm/entrypoints/cli", "vllm/entrypoints/launchers", "vllm/entrypoints/serve", "vllm/entrypoints/common",
         "vllm/entrypoints/openai/api_server.py", "vllm/envs.py", "vllm/config.py", "vllm/config"]
# Flags of SGLang, llama.cpp and docker that entries for several engines and helps name.
OTHER = re.compile(r"--(?:mem-fraction-static|chunked-prefill-size|max-running-requests|ctx-size|n-gpu-layers|ubatch-size|parallel|jinja|host|disaggregation\S*|shm-size|watchdog-timeout)$")
# A remedy that is told of these engines alone.
ELSEWHERE = re.compile(r"\(?is_(?:sglang|llamacpp) \?\? 0(?:\) > 0)?$")


def version(text):
    parts = [int(x) for x in re.findall(r"\d+", text)[:3]]
    return tuple(parts + [0] * (3 - len(parts)))


def text_of(tree, files=FILES):
    out = []
    for name in files:
        at = tree / name
        for f in sorted(at.rglob("*.py")) if at.is_dir() else [at] if at.is_file() else []:
            out.append(f.read_text(errors="replace"))
    return "\n".join(out)


def has(text, flag):
    """A flag stands as it is given, or as the field of a configuration from which the parser makes it."""
    if not flag.startswith("--"):
        return re.search(rf"\b{re.escape(flag)}\b", text) is not None
    front = "".join(re.findall(r"^class \w*FrontendArgs.*?(?=^class |^def |\Z)", text, re.M | re.S))
    field = flag[2:].replace("-", "_")
    return re.search(rf"[\"']{re.escape(flag)}[\"',]", text) is not None or re.search(rf"^ +{field}: ", front, re.M) is not None


def check(flag, have):
    """(from, until) as the versions show it: the first that has it, the first later one that has it not; None where DIR does not say."""
    got = [v for v, yes in have if yes]
    if not got:
        return None
    after = [v for v, yes in have if v > got[-1] and not yes]
    return got[0], after[0] if after else None


def bound_errors(rule, have):
    start, until = version(str(rule.get("from", "0"))), version(str(rule["until"])) if "until" in rule else (999, 0, 0)
    return [".".join(map(str, v)) + (" has it" if yes else " lacks it") for v, yes in have if yes != (start <= v < until)]


SGLANG_FILES = ["sglang/srt/server_args.py", "sglang/srt/arg_groups", "sglang/srt/environ.py"]


def sglang_flags(catalog):
    """Flags that are told of a log of SGLang."""
    told = {f["sglang"] for f in catalog["flags"] if "sglang" in f}
    for entry in catalog["signatures"] + catalog["helps"]:
        told |= {s["flag"] for s in entry.get("do", []) if isinstance(s, dict) and re.match(r"\(?is_sglang \?\? 0(?:\) > 0)?$", s.get("when", ""))}
    return sorted(f for f in told if f.startswith(("--", "SGLANG_")))


def check_sglang(catalog, folder):
    trees = sorted((version(d.name), d) for d in folder.iterdir() if d.is_dir())
    texts, wrong = [(v, text_of(d, SGLANG_FILES)) for v, d in trees], 0
    print(f"SGLang: {len(trees)} versions, {'.'.join(map(str, trees[0][0]))} to {'.'.join(map(str, trees[-1][0]))}")
    for flag in sglang_flags(catalog):
        field = flag[2:].replace("-", "_") if flag.startswith("--") else flag
        have = [(v, re.search(rf"[\"']{re.escape(flag)}[\"']|^ +{field}: |\b{field}\b *=", t, re.M) is not None) for v, t in texts]
        seen = check(flag, have)
        bad = not have[-1][1]
        print(f"{flag:<36} seen {'-' if not seen else '.'.join(map(str, seen[0]))}" + ("   WRONG: the newest lacks it" if bad else ""))
        wrong += bad
    return wrong


def main():
    trees = sorted((version(d.name), d) for d in pathlib.Path(sys.argv[1]).iterdir() if d.is_dir())
    texts = [(v, text_of(d)) for v, d in trees]
    catalog = yaml.safe_load((ROOT / "supervisor/doctor/signatures.yaml").read_text())
    rules = {f["flag"]: f for f in catalog["flags"] if f["engine"] == "vllm"}
    of_vllm = [s for s in catalog["signatures"] if "vLLM" in s.get("engines", "")] + catalog["helps"]
    told = {step["flag"] for s in of_vllm for step in s.get("do", []) if isinstance(step, dict) and "flag" in step and not ELSEWHERE.match(step.get("when", ""))}
    told = {f for f in told if f.startswith(("--", "VLLM_")) and not OTHER.match(f)}
    wrong = 0
    print(f"{len(trees)} versions, {'.'.join(map(str, trees[0][0]))} to {'.'.join(map(str, trees[-1][0]))}")
    for flag in sorted(told | set(rules)):
        have = [(v, has(t, flag)) for v, t in texts]
        seen = check(flag, have)
        errors = bound_errors(rules.get(flag, {}), have) if seen else ["no version has it"]
        shown = "-" if not seen else ".".join(map(str, seen[0])) + " to " + (".".join(map(str, seen[1])) if seen[1] else "now")
        print(f"{flag:<36} seen {shown:<20} listed {rules.get(flag, {}).get('from', '-')} to {rules.get(flag, {}).get('until', '-')}" + (f"   WRONG: {'; '.join(errors[:4])}" if errors else ""))
        wrong += bool(errors)
    if len(sys.argv) > 2:
        wrong += check_sglang(catalog, pathlib.Path(sys.argv[2]))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
