"""Faults inside an engine's process, made by a library that is preloaded (engine_faults.c)."""
import mmap
import struct
import subprocess

from conftest import ROOT

WORDS = ("hold", "no_memory", "after", "place", "what", "poison", "poison_what", "done")
PLACES = ("before forward", "after forward", "after sample")
WHAT = {"abort": 1, "segv": 2, "device": 3, "device memory": 4, "host memory": 5, "hang": 6}


class EngineFaults:
    """Words that a server with `env` obeys at once: faults.hold = 1."""

    def __init__(self, folder):
        library, path = folder / "engine_faults.so", folder / "faults"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", f"-I{ROOT}", "-o", library, ROOT / "tests/e2e/engine_faults.c"], check=True)
        path.write_bytes(bytes(4096))
        with open(path, "r+b") as file:
            self.__dict__["map"] = mmap.mmap(file.fileno(), 4096)
        self.__dict__["env"] = {"LD_PRELOAD": str(library), "ENGINE_FAULTS": str(path), "ASAN_OPTIONS": "verify_asan_link_order=0"}

    def __getattr__(self, name):
        return struct.unpack_from("i", self.map, 4 * WORDS.index(name))[0]

    def __setattr__(self, name, value):
        struct.pack_into("i", self.map, 4 * WORDS.index(name), value)

    def once(self, what, place="after forward", after=0):
        """So many steps later, at that place of a step."""
        self.place, self.after = PLACES.index(place), after
        self.what = WHAT[what]  # the last one: from then on it holds
