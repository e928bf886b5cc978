"""The appliance of the end-to-end tests, and a server without evenkeeld."""
import importlib.util
import os
import pathlib

SPEC = importlib.util.spec_from_file_location("e2e", pathlib.Path(__file__).resolve().parents[1] / "e2e/conftest.py")
E2E = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(E2E)
Appliance, BUILD, MODEL, ROOT = E2E.Appliance, E2E.BUILD, E2E.MODEL, E2E.ROOT
free_port, get, metric, wait_for = E2E.free_port, E2E.get, E2E.metric, E2E.wait_for
from bare import Bare  # noqa: E402, F401  # which has these from here

TURNS = {"test_clients": 0, "test_table": 1, "test_document": 2, "test_retry": 2}  # whole files: each has servers and imports of its own


def pytest_collection_modifyitems(config, items):
    """EVENKEEL_SHARE=N EVENKEEL_DAY=D: a file of TURNS has one day in three (tests/share.h), others have all; all when they are not set."""
    share, day = (int(os.environ.get(f"EVENKEEL_{v}", "0")) for v in ("SHARE", "DAY"))
    others = [i for i in items if share > 1 and TURNS.get(i.path.stem, day % 3) != day % 3]
    config.hook.pytest_deselected(items=others)
    items[:] = [i for i in items if i not in others]
