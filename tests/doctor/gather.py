#!/usr/bin/env python3
"""Makes a blind set for `make bench-doctor LOGS=OUT` out of a folder of raw issue texts, without anybody reading them.

usage: gather.py RAW OUT [--most 150] [--seed 1] [--without OTHER ...]

RAW holds .json files (a list of issues, or {"issues": [...]}, each with html_url, title, labels and body, as GitHub's API gives them) or .md files (one issue
each, its title after "# "). Of each issue whose title asks for no feature, the fenced blocks that look like a log of a failure are joined; a draw by seed takes
--most of them, none that is in an OTHER set. OUT gets NNN.log, sources.tsv (file, address, labels of the issue, title) for the one who labels them later, and
an empty labels.tsv. The texts belong to those who wrote them: keep OUT out of the repository.
"""
import argparse
import json
import pathlib
import random
import re

FENCE = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.M | re.S)
FAILS = re.compile(r"Traceback \(most|\w+Error\b|\w+Exception\b|^.{0,80}\berror\b|ERROR|FATAL|[Kk]illed|NCCL WARN|Xid|panic|Segmentation fault|core dumped|[Aa]borted|ASSERT|[Ff]ailed", re.M)
ENVIRONMENT = re.compile(r"Collecting environment information|PyTorch version:|^\s*(?:\*\*)?(?:Python|CUDA) ?(?:version)?:|Your current environment", re.M)
WISH = re.compile(r"feature|rfc|roadmap|\bdocs?\b|documentation|proposal|enhancement|new model|tracker|performance\]|release|question about how", re.I)


def issues(raw):
    """(address, title, labels, body) of each issue, once."""
    seen = {}
    for path in sorted(raw.rglob("*")):
        if path.suffix == ".json":
            try:
                data = json.loads(path.read_text(errors="replace"))
            except ValueError:
                continue
            for i in data if isinstance(data, list) else data.get("issues", []) if isinstance(data, dict) else []:
                if isinstance(i, dict) and i.get("body") and i.get("html_url"):
                    labels = [x.get("name", "") if isinstance(x, dict) else str(x) for x in i.get("labels") or []]
                    seen[i["html_url"]] = (i.get("title") or "", labels, i["body"])
        elif path.suffix == ".md":
            text = path.read_text(errors="replace")
            title = re.search(r"^#+ *(.+)", text)
            seen[str(path.relative_to(raw))] = (title[1] if title else path.stem, [], text)
    return [(url, *rest) for url, rest in sorted(seen.items())]


def log_of(body):
    """The blocks of an issue that are a log of a failure, or ""."""
    blocks = [b.replace("\r", "") for b in FENCE.findall(body)]
    kept = [b for b in blocks if FAILS.search(b) and not ENVIRONMENT.search(b[:2000]) and (b.count("\n") > 1 or "rror" in b)]
    return "\n".join(kept)


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("raw", type=pathlib.Path)
    ask.add_argument("out", type=pathlib.Path)
    ask.add_argument("--most", type=int, default=150)
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--without", type=pathlib.Path, action="append", default=[])
    o = ask.parse_args()
    taken = {line.split("\t")[1] for other in o.without for line in (other / "sources.tsv").read_text().splitlines()}
    found = [(url, title, labels, log_of(body)) for url, title, labels, body in issues(o.raw) if url not in taken and not WISH.search(title)]
    found = [f for f in found if len(f[3]) >= 80]
    drawn = random.Random(o.seed).sample(found, min(o.most, len(found)))
    o.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for i, (url, title, labels, log) in enumerate(drawn):
        (o.out / f"{i:03}.log").write_text(log)
        rows.append(f"{i:03}.log\t{url}\t{','.join(labels)}\t{' '.join(title.split())}\n")
    (o.out / "sources.tsv").write_text("".join(rows))
    (o.out / "labels.tsv").touch()
    print(f"{len(drawn)} of {len(found)} failure texts in {o.out}")


if __name__ == "__main__":
    main()
