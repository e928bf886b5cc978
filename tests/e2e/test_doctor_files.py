"""Protects: the doctor reads archives that mean harm, halves of files, the journal and logs of any size, in little memory and with a bar."""
import gzip
import io
import json
import os
import pathlib
import pty
import select
import subprocess
import tarfile

import pytest
from conftest import BUILD, ROOT

LOG = "\n".join(line[1:] for line in (ROOT / "tests/fixtures/signatures.txt").read_text().splitlines() if line.startswith("+"))
OOM = "\n".join(LOG.splitlines()[:4]) + "\n"
NOISE = "INFO 11-21 10:00:00 metrics.py:455] Avg prompt throughput: 1234.5 tokens/s, Running: 12 reqs, Waiting: 0 reqs, GPU KV cache usage: 31.2%\n"


def diagnose(*words, env=None, **more):
    return subprocess.run([BUILD / "evenkeelctl", "diagnose", *map(str, words)], capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})}, **more)


def ids(done):
    assert done.returncode == 0, done.stderr
    return [f["id"] for f in json.loads(done.stdout)["findings"]]


def archive(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as t:
        for name, data in members:
            if isinstance(data, bytes):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                t.addfile(info, io.BytesIO(data))
            else:
                t.addfile(data)
    return path


def test_each(tmp_path):
    (tmp_path / "a.log").write_text(OOM)
    (tmp_path / "b.log").write_text(NOISE)
    (tmp_path / "c.log").write_text("OSError: [Errno 98] Address already in use\n")
    (tmp_path / "folder").mkdir()
    done = diagnose(tmp_path, "--each", "--json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(pathlib.Path(t["source"]).name, [f["id"] for f in t["findings"]]) for t in told] == [("a.log", ["cuda-oom"]), ("b.log", []), ("c.log", ["port-in-use"])], done.stderr
    assert told == [json.loads(diagnose(tmp_path / f"{n}.log", "--json").stdout) for n in "abc"]  # as if each had been asked alone
    assert "a.log" in (text := diagnose(tmp_path, "--each").stdout) and "c.log" in text
    assert (refused := diagnose("--each")).returncode == 2 and "directory" in refused.stderr
    assert diagnose(tmp_path / "none", "--each").returncode == 1
    (tmp_path / "b.gz").write_bytes(b"\x1f\x8b\x08 and no more of it")
    done = diagnose(tmp_path, "--each", "--json")  # one that cannot be read keeps none of the others from being told
    assert done.returncode == 1 and "b.gz" in done.stderr and [pathlib.Path(json.loads(line)["source"]).name for line in done.stdout.splitlines()] == ["a.log", "b.log", "c.log"]


def test_archives(tmp_path):
    assert ids(diagnose(archive(tmp_path / "b.tar.gz", [("bundle/01-journal.txt", NOISE.encode()), ("bundle/02-server.log", OOM.encode())]), "--json")) == ["cuda-oom"]
    assert ids(diagnose(archive(tmp_path / "b.tar", [("x" * 180, OOM.encode())], "w"), "--json")) == ["cuda-oom"]
    link = tarfile.TarInfo("log")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    evil = archive(tmp_path / "evil.tar.gz", [("../../../../etc/evil", OOM.encode()), ("/etc/absolute", b""), ("log", link)])
    before = sorted(os.listdir(tmp_path))
    assert ids(diagnose(evil, "--json", cwd=tmp_path)) == ["cuda-oom"]
    assert sorted(os.listdir(tmp_path)) == before  # nothing is written
    # One that says it holds 8 GiB and breaks off, one whose second header is damaged, half of a gzip.
    info = tarfile.TarInfo("huge")
    info.size = (8 << 30) - 1
    (tmp_path / "huge.tar").write_bytes(info.tobuf(tarfile.USTAR_FORMAT) + OOM.encode())
    done = diagnose(tmp_path / "huge.tar", "--json")
    assert ids(done) == ["cuda-oom"] and "breaks off" in done.stderr
    raw = bytearray((tmp_path / "b.tar").read_bytes())
    raw[5] ^= 1
    (tmp_path / "odd.tar").write_bytes(raw)  # no archive then, but a file with a log in it
    assert ids(diagnose(tmp_path / "odd.tar", "--json")) == ["cuda-oom"]
    packed = gzip.compress((OOM + NOISE * 20000 + os.urandom(9000).hex()).encode())
    (tmp_path / "half.gz").write_bytes(packed[:len(packed) // 2])
    done = diagnose(tmp_path / "half.gz", "--json")
    assert ids(done) == ["cuda-oom"] and "what was read before is told" in done.stderr


def test_a_bundle_of_our_own(appliance):
    """What evenkeelctl support-bundle writes is what diagnose reads."""
    a = appliance()
    a.ctl("support-bundle", str(a.run / "bundle.tar.gz"))
    assert ids(diagnose(a.run / "bundle.tar.gz", "--json")) == []
    with tarfile.open(a.run / "bundle.tar.gz") as t:
        members = [(m.name, t.extractfile(m).read()) for m in t.getmembers() if m.isfile()]
    assert ids(diagnose(archive(a.run / "more.tar.gz", [*members, ("server.log", OOM.encode())]), "--json")) == ["cuda-oom"]


def test_ranks_and_colours():
    """Two ranks whose lines are interleaved, in colours, cut in the middle: one failure, of both."""
    lines = []
    for line in OOM.splitlines():
        lines += [f"\x1b[1;36m(Worker_TP0 pid=11)\x1b[0;0m {line}", f"\x1b[1;36m(Worker_TP1 pid=12)\x1b[0;0m {line}"]
    text = "\n".join(lines)
    assert ids(diagnose("--json", input=text)) == ["cuda-oom"]
    assert ids(diagnose("--json", input=text[7:])) == ["cuda-oom"]


def peak_bytes(pid):
    """The most memory a process that runs has held. The kernel's figure at its end (ru_maxrss) begins with what the caller held."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0  # it has ended


def watched(*words):
    """What stands on the terminal while it runs, its status, and the most memory it took until the last it wrote."""
    parent, child = pty.openpty()
    process = subprocess.Popen([BUILD / "evenkeelctl", "diagnose", *map(str, words)], stdout=subprocess.DEVNULL, stderr=child, stdin=subprocess.DEVNULL)
    os.close(child)
    seen, most = b"", 0
    while True:
        if not select.select([parent], [], [], 60)[0]:
            break
        most = max(most, peak_bytes(process.pid))
        try:
            block = os.read(parent, 65536)
        except OSError:  # its end is closed
            break
        if not block:
            break
        seen += block
    status = process.wait(60)
    os.close(parent)
    return seen.decode(), status, most


def test_large_logs_take_little_memory(tmp_path):
    large = tmp_path / "large.log"
    with open(large, "w") as f:
        for _ in range(200):
            f.write(NOISE * 3000)
        f.write(OOM)
    assert large.stat().st_size > 80e6
    seen, status, most = watched(large)
    assert status == 0 and 1 << 20 < most < 64 << 20, most
    drawn = [x for x in seen.split("\r") if x.startswith("[")]
    assert len(drawn) > 20 and "100 %" in drawn[-1] and all(len(x) <= 50 for x in drawn)
    assert "MiB of memory" in seen.split("\r")[-2] + seen.split("\r")[-1]
    assert seen.index(" " * 50) > seen.rindex("[")  # the bar is taken away


@pytest.fixture(scope="module")
def fake_journal(tmp_path_factory):
    out = tmp_path_factory.mktemp("journal") / "libfake-journal.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", out, ROOT / "tests/e2e/fake_journal.c"], check=True)
    return out


def test_the_journal(tmp_path, fake_journal):
    entries = [f"vllm.service {line}" for line in OOM.splitlines()] + ["other.service torch.cuda is unhappy", "kernel NVRM: Xid (PCI:0000:65:00): 79, pid=1, GPU has fallen off the bus."]
    (tmp_path / "journal").write_text("\n".join(entries) + "\n")
    env = {"LD_PRELOAD": str(fake_journal), "FAKE_JOURNAL": str(tmp_path / "journal"), "ASAN_OPTIONS": "verify_asan_link_order=0"}
    assert set(ids(diagnose("--journal", "vllm", "--json", env=env))) == {"cuda-oom", "xid-79"}
    alone = diagnose("--journal", "nobody.service", "--json", env=env)
    assert ids(alone) == ["xid-79"] and "no line of nobody.service" in alone.stderr
    done = diagnose("--journal", "vllm", "--json", env={**env, "FAKE_JOURNAL": "/nonexistent"})
    assert done.returncode == 1 and "journal" in done.stderr
