"""The appliance of the end-to-end tests, and a server without evenkeeld."""
import importlib.util
import pathlib

SPEC = importlib.util.spec_from_file_location("e2e", pathlib.Path(__file__).resolve().parents[1] / "e2e/conftest.py")
E2E = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(E2E)
Appliance, BUILD, MODEL, ROOT = E2E.Appliance, E2E.BUILD, E2E.MODEL, E2E.ROOT
free_port, get, metric, wait_for = E2E.free_port, E2E.get, E2E.metric, E2E.wait_for
from bare import Bare  # noqa: E402, F401  # which has these from here
