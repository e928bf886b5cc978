#!/usr/bin/env python3
"""Every relative link of the documents in a folder leads to a file in it: tests/packages/links.py FOLDER

The licence is where Debian and RPM have theirs."""
import pathlib
import re
import sys


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    pages = sorted(root.rglob("*.md"))
    links = [(page, target) for page in pages for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()) if "://" not in target and target != "LICENSE"]
    lost = [f"{page.relative_to(root)} has {target}" for page, target in links if not (page.parent / target).is_file()]
    print("; ".join(lost) if lost else f"{len(links)} links of {len(pages)} installed documents lead somewhere")
    return 1 if lost or not links else 0


if __name__ == "__main__":
    sys.exit(main())
