"""Protects: the form of the products of each shape of weights is measured once and kept with the CPU's name and the model's; a server that starts again,
an engine that takes the place of another one and every rank compute with the same. What is damaged, or another CPU's, is set aside and measured anew."""
import concurrent.futures
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import zlib

import pytest

from bare import Bare
from conftest import ROOT, wait_for
from engines import another_engine, engine, pauses, tokens

BODY = json.dumps({"model": "tiny", "prompt": "The keel of a boat", "max_tokens": 120, "temperature": 0, "ignore_eos": True, "logprobs": 1})


def products(server):
    """The line about them."""
    return next((line for line in server.log().splitlines() if "Products: " in line), "")


def kept(folder):
    """The one file, its lines without the sum."""
    files = [f for f in folder.iterdir() if f.name.startswith("cpu-forms.") and not f.name.endswith(".old")]
    assert len(files) == 1, files
    *lines, last = files[0].read_text().splitlines()
    whole = "".join(line + "\n" for line in lines)
    assert last == f"sum {zlib.crc32(whole.encode()):08x}"
    return files[0], lines


def write(path, lines):
    """By somebody who keeps to the format."""
    whole = "".join(line + "\n" for line in lines)
    path.write_text(whole + f"sum {zlib.crc32(whole.encode()):08x}\n")


def answer(server):
    status, _, body = server.ask("/v1/completions", "POST", BODY)
    assert status == 200, body
    choice = json.loads(body)["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def shapes(lines):
    return sorted(line.split(":")[0] for line in lines[3:])


def test_measured_once(tmp_path):
    """Kept where --state-dir says, and used by the next start; the file is only read then."""
    state = tmp_path / "state"
    state.mkdir()
    server = Bare(tmp_path, "--state-dir", state)
    first = answer(server)
    assert re.search(r"Products: \d+ shapes of weights .*as tier \S+.*, measured in \d+ ms; kept in " + re.escape(str(state)), products(server))
    assert server.stop() == 0
    path, lines = kept(state)
    assert lines[0] == "evenkeel cpu forms 2" and lines[1].startswith("cpu ") and path.name == f"cpu-forms.{lines[2].split()[1]}.evenkeel-tiny"
    before = path.stat()
    server = Bare(tmp_path, "--state-dir", state)
    assert f"; as kept in {path}" in products(server) and ", measured in" not in products(server)
    assert answer(server) == first
    assert server.stop() == 0
    assert path.stat().st_mtime_ns == before.st_mtime_ns and path.stat().st_ino == before.st_ino


def drawn(lines):
    """Another form for every second shape than what was measured: plain C, whose sums are rounded otherwise."""
    return lines[:3] + [re.sub(r": \S+", ": ref", line) if i % 2 == 0 else line for i, line in enumerate(lines[3:])]


@pytest.mark.parametrize("flags", [(), ("--engine-process",), ("--tensor-parallel-size", 2), ("--tensor-parallel-size", 2, "--engine-process")],
                         ids=["alone", "engine", "ranks", "ranks-engine"])
def test_kept_forms_are_obeyed(tmp_path, flags):
    """By the server's device, its engine's process and each rank: with a file that names other forms the logprobs differ, and are the same every time."""
    server = Bare(tmp_path, *flags)
    own = answer(server)
    assert server.stop() == 0
    path, lines = kept(tmp_path)
    if "--tensor-parallel-size" in flags:
        assert len(lines) > 3 and any(" 256 x 128," in line for line in lines), "shapes of a rank's half"
    write(path, drawn(lines))
    server = Bare(tmp_path, *flags)
    other = answer(server)
    assert " as ref (" in products(server)
    assert other[1] != own[1], "bits"
    assert all(abs(a - b) < 0.25 for a, b in zip(other[1][:10], own[1])), "and no more than bits"
    assert answer(server) == other
    if "--engine-process" in flags:  # and the next engine has the same
        with another_engine(server):
            os.kill(engine(server), signal.SIGKILL)
        assert answer(server) == other
    assert server.stop() == 0
    assert shapes(kept(tmp_path)[1]) == shapes(lines)


def test_a_text_goes_on_with_its_forms(tmp_path):
    """Computed again by another engine in the middle, it has the same logprobs to the last bit."""
    server = Bare(tmp_path, "--engine-process")
    whole = answer(server)
    path, lines = kept(tmp_path)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        write(path, drawn(lines))  # for the next start, not for the next engine
        before = pauses(server)
        for _ in range(20):  # until it is caught in the middle
            at, pid = tokens(server), engine(server)
            asked = pool.submit(answer, server)
            wait_for("tokens", lambda at=at, asked=asked: tokens(server) > at + 5 or asked.done(), 60, 0.001)
            os.kill(pid, signal.SIGSTOP)
            caught = at + 5 < tokens(server) < at + 115
            os.kill(pid, signal.SIGKILL if caught else signal.SIGCONT)
            assert asked.result() == whole
            if caught:
                break
        assert caught
    wait_for("another engine", lambda: pauses(server) > before, 60)
    assert answer(server) == whole
    server.stop()


def test_engines_have_the_servers_tier(tmp_path):
    """The tier is decided once, by the server: an engine's process that would come to another one computes with the server's."""
    library = tmp_path / "first_tier.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, ROOT / "tests/e2e/first_tier.c"], check=True)
    said = []
    for flags in [], ["--cpu-isa", "ref"]:
        server = Bare(tmp_path, "--cpu-forms", "tier", *flags)
        said.append(answer(server))
        assert server.stop() == 0
    best, plain = said
    if best == plain:
        pytest.skip("this machine has one tier")
    server = Bare(tmp_path, "--cpu-forms", "tier", "--engine-process",
                  env={"EVENKEEL_CPU_ISA": "ref", "LD_PRELOAD": str(library), "ASAN_OPTIONS": "verify_asan_link_order=0"})
    assert answer(server) == plain
    with another_engine(server):
        os.kill(engine(server), signal.SIGKILL)
    assert answer(server) == plain
    assert server.stop() == 0


def test_servers_that_start_together(tmp_path):
    """With one folder: who comes second waits for what the first one measures, and computes with that."""
    server = Bare(tmp_path)
    assert server.stop() == 0
    path, lines = kept(tmp_path)
    path.unlink()
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)  # as the first one, which measures
    fcntl.flock(folder, fcntl.LOCK_EX)
    server = Bare(tmp_path, ready=False)
    fds = pathlib.Path(f"/proc/{server.process.pid}/fd")
    wait_for("it waits", lambda: any(os.path.realpath(fd) == str(tmp_path.resolve()) for fd in fds.iterdir()), 60, 0.01)
    assert not products(server)
    write(path, drawn(lines))
    os.close(folder)
    wait_for("server ready", lambda: server.process.poll() is not None or server.local("/readyz")[0] == 200, 90)
    assert f"; as kept in {path}" in products(server) and " as ref (" in products(server)
    assert server.stop() == 0
    assert kept(tmp_path)[1] == drawn(lines)


def test_the_unit_keeps_them():
    """evenkeel-server@ alone: its folder in /run is gone after each stop, so they are in the one that stays."""
    unit = (ROOT / "packaging/systemd/evenkeel-server@.service.in").read_text()
    command, = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
    stays, = re.findall("^StateDirectory=(.*)$", unit, re.MULTILINE)
    assert command.split()[command.split().index("--state-dir") + 1] == f"%S/{stays}"


def damage(text):
    return text[:len(text) // 2]


def other_cpu(text):
    lines = text.splitlines()[:-1]
    lines[1] = "cpu 80386DX"
    whole = "".join(line + "\n" for line in lines)
    return whole + f"sum {zlib.crc32(whole.encode()):08x}\n"


@pytest.mark.parametrize("how, why", [(damage, "it is damaged"), (other_cpu, "it is of another CPU"), (lambda text: text.replace("forms 2", "forms 1", 1), "it is of another version"),
                                      (lambda text: "", "it is damaged")], ids=["damaged", "cpu", "version", "empty"])
def test_what_is_not_taken_is_set_aside(tmp_path, how, why):
    """With a warning; the old file stays beside the new one."""
    server = Bare(tmp_path)
    assert server.stop() == 0
    path, lines = kept(tmp_path)
    spoilt = how(path.read_text())
    path.write_text(spoilt)
    server = Bare(tmp_path)
    aside = path.with_name(path.name + ".old")
    assert f"The forms of products in {path} are not used, as {why}; it is now {aside}: measuring" in server.log()
    assert ", measured in " in products(server)
    assert server.stop() == 0
    assert aside.read_text() == spoilt and shapes(kept(tmp_path)[1]) == shapes(lines)


def test_no_choice(tmp_path):
    """--cpu-forms tier measures nothing and keeps nothing, whatever lies there."""
    server = Bare(tmp_path, "--cpu-forms", "tier")
    own = answer(server)
    assert not products(server) and not list(tmp_path.glob("cpu-forms.*"))
    assert server.stop() == 0
    server = Bare(tmp_path)
    assert server.stop() == 0
    path, lines = kept(tmp_path)
    write(path, drawn(lines))
    server = Bare(tmp_path, "--cpu-forms", "tier")
    assert answer(server) == own and not products(server)
    server.stop()


def test_no_place_for_it(tmp_path):
    """A state directory that takes no files is a warning; a link in its place is not followed."""
    state = tmp_path / "gone"
    server = Bare(tmp_path, "--state-dir", state)
    assert f"The forms of products cannot be kept in {state}/cpu-forms." in server.log()
    assert "; not kept in " in products(server) and answer(server)
    assert server.stop() == 0
    server = Bare(tmp_path)
    assert server.stop() == 0
    path, lines = kept(tmp_path)
    target = tmp_path / "elsewhere"
    path.rename(target)
    path.symlink_to(target)
    server = Bare(tmp_path)
    assert f"{path} are not used, as it is not to be read" in server.log()
    assert server.stop() == 0
    assert not path.is_symlink() and target.read_text().startswith("evenkeel cpu forms 2")
