#!/usr/bin/env python3
"""Finds names that Python files of the tree import and do not use (`make lint`).

A name is used when it is read, stands in `__all__`, or its line says noqa, as where a module hands on what others import from it.
"""
import ast
import subprocess
import sys


def unused(path):
    """(line, name) of each import of the file that nothing reads."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    tree, lines = ast.parse(text), text.split("\n")
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and "noqa" not in "".join(lines[node.lineno - 1:node.end_lineno]) and getattr(node, "module", "") != "__future__":
            imported |= {(a.asname or a.name).split(".")[0]: node.lineno for a in node.names}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for node in tree.body:
        if isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == ["__all__"]:
            used |= set(ast.literal_eval(node.value))
    return sorted((line, name) for name, line in imported.items() if name not in used)


def main():
    files = subprocess.run(["git", "ls-files", "*.py"], check=True, capture_output=True, text=True).stdout.split()
    found = [f"{path}:{line}: {name} is imported and not used" for path in files for line, name in unused(path)]
    print("\n".join(found) if found else f"  ok    {len(files)} Python files use what they import")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
