"""Protects: the lines of docs/clients.md that are said to be tried are, as they stand there but for the address."""
import importlib.util
import os
import re

import pytest

from conftest import ROOT, Appliance

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no look-ups elsewhere
DOCUMENT = (ROOT / "docs/clients.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", DOCUMENT.split("## Not tried here")[0], re.S)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    a = Appliance(tmp_path_factory.mktemp("document")).start().ready()
    yield f"http://127.0.0.1:{a.port}"
    a.destroy()


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda s: re.search(r"(?:import|from) (\w+)", s)[1])
def test_snippet(address, snippet):
    package = re.search(r"(?:import|from) (\w+)", snippet)[1]
    if not importlib.util.find_spec(package):
        pytest.skip(f"{package} is not installed")
    assert "http://127.0.0.1:8000" in snippet
    names = {}
    exec(compile(snippet.replace("http://127.0.0.1:8000", address), "docs/clients.md", "exec"), names)
    assert names["answer"]


def test_there_are_snippets():
    assert len(SNIPPETS) >= 4
