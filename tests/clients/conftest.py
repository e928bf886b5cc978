"""The appliance of the end-to-end tests."""
import importlib.util
import pathlib

SPEC = importlib.util.spec_from_file_location("e2e", pathlib.Path(__file__).resolve().parents[1] / "e2e/conftest.py")
E2E = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(E2E)
Appliance, ROOT = E2E.Appliance, E2E.ROOT
