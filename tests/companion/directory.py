"""The companion's modules beside FAKES of vLLM's classes, and a directory of its own for each test."""
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "supervisor/companion"), str(pathlib.Path(__file__).parent)]
import vllm_stub  # noqa: E402

vllm_stub.install()


class InDirectory(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = temporary.name
        os.environ["EVENKEEL_COMPANION_DIR"] = self.dir
        self.addCleanup(os.environ.pop, "EVENKEEL_COMPANION_DIR")
        self.addCleanup(os.environ.pop, "EVENKEEL_COMPANION_OWN", None)
        os.makedirs(self.dir + "/boards")
