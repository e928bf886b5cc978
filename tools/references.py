#!/usr/bin/env python3
"""What documents and comments name exists: links and their headings, files, flags, make targets and variables of the environment.
`make lint` runs it; metric names are tools/names.sh's.

A link's target is a file of the tree, with a heading where it has "#". A path in backquotes is one of the tree, or ends in one: docs
name `law/policy.c` for supervisor/law/policy.c. A flag, a target or a variable is known when a file that is no document has it. In
comments of C the names of source files are looked up.

usage: tools/references.py
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOUND = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
TREE = [n for n in FOUND.stdout.split("\n") if n and (ROOT / n).is_file()]
FOLDERS = {str(p) for name in TREE for p in pathlib.PurePosixPath(name).parents}
# Written by tools/reference.sh from tables, or quoting logs of others: what they name is theirs.
GENERATED = {"docs/signatures.md", "docs/options.md", "docs/metrics.md"}
# Flags of programs that documents tell to run: vllm bench, mpirun, srun, journalctl, numactl.
FOREIGN = {"endpoint-type", "allow-run-as-root", "bind-to", "kill-on-bad-exit", "disk-usage", "cpunodebind", "membind",
           "EVENKEEL_KEY"}  # and a variable of the reader's shell
# Headers of libraries, one that the build writes, and a name for many.
ELSEWHERE = {"cmocka.h", "cublasLt.h", "images.h", "mpi.h", "verb_NAME.c"}
SOURCE = re.compile(r"\b[\w/-]+\.(?:c|h|cu|cuh)\b")
PATH = re.compile(r"`([\w.-]+(?:/[\w.*-]+)+/?)`")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)


def text_of(name):
    return (ROOT / name).read_text(errors="replace")


def ends():
    """Every end of every path: a/b/c.h is also b/c.h and c.h."""
    out = set()
    for name in [*TREE, *FOLDERS]:
        parts = name.split("/")
        out.update("/".join(parts[i:]) for i in range(len(parts)))
    return out


def anchors(name):
    """As GitHub makes them of headings."""
    out, seen = set(), {}
    for line in FENCE.sub("", text_of(name)).split("\n"):
        if m := re.match(r"#+\s+(.*?)\s*$", line):
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", m[1]).lower()
            a = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            n = seen[a] = seen.get(a, -1) + 1
            out.add(f"{a}-{n}" if n else a)
    return out | set(re.findall(r'<a (?:id|name)="([^"]+)"', text_of(name)))


def links(name):
    text = FENCE.sub("", text_of(name))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / name).parent / path if path else ROOT / name
        if os.path.relpath(there, ROOT) not in {*TREE, *FOLDERS}:
            yield f"{name}: no file for the link {target}"
        elif anchor and there.suffix == ".md" and anchor not in anchors(there.resolve().relative_to(ROOT)):
            yield f"{name}: no heading for the link {target}"


def named(name, known, words):
    """Paths, flags, targets and variables of a document."""
    text = text_of(name)
    for path in PATH.findall(text):
        top = path.split("/")[0]
        ours = top in FOLDERS or SOURCE.fullmatch(path)
        if ours and "*" not in path and path.rstrip("/") not in known and not path.startswith("build/"):
            yield f"{name}: no file `{path}`"
    for flag in sorted(set(re.findall(r"(?<![\w-])--([a-z][a-z0-9-]+[a-z0-9])", text))):
        if flag not in words and flag.removeprefix("no-") not in words:
            yield f"{name}: no flag --{flag}"
    for target in sorted(set(re.findall(r"\bmake ((?:[a-z]+-)+[a-z]+)\b", text))):
        if target not in words:
            yield f"{name}: no target `make {target}`"
    for variable in sorted(set(re.findall(r"\bEVENKEEL_[A-Z0-9_]+[A-Z0-9]\b", text))):
        if variable not in words:
            yield f"{name}: no variable {variable}"


def comments(name, known):
    for comment in re.findall(r"/\*.*?\*/", text_of(name), re.S):
        for path in SOURCE.findall(re.sub(r"\s*\n \* ?", " ", comment)):
            if path.lstrip("/") not in known:
                yield f"{name}: its comment names {path}"


def main():
    if FOUND.returncode:
        print("  skipped: this is no git repository, so what is of the tree is not known")
        return False
    known = ends() | ELSEWHERE
    documents = [n for n in TREE if n.endswith(".md") and (n.startswith("docs/") or "/" not in n) and n not in GENERATED]
    words = set()
    for name in TREE:
        if not re.search(r"\.(md|safetensors|json|log|txt|png|svg|\d)$", name) or name == "docs/options.md":
            words.update(re.findall(r"[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]", text_of(name)))
    bad = []
    for name in documents:
        bad += links(name)
        bad += named(name, known, words | FOREIGN)
    for name in TREE:
        if re.match(r"(common|kernels|server|supervisor|tests)/.*\.(c|h|cu|cuh)$", name):
            bad += comments(name, known)
    print("\n".join(bad) if bad else f"  ok    {len(documents)} documents and the comments name what exists")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
