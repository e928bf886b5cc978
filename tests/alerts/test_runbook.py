"""Protects: that what the runbook tells people to type exists. Every command of every entry: those of ours and curl are run on a live appliance
(what they grep for must be there), of the others the verbs and options are looked up in their help. Ids of signatures, reason codes,
classes and flags that the texts name exist too."""
import functools
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from conftest import BUILD, MODEL, Appliance, get  # noqa: E402

TEXT = (ROOT / "docs/runbook.md").read_text()
ENTRIES = {part.splitlines()[0].strip(): part for part in re.split(r"^## ", TEXT, flags=re.M)[1:]}
ALERTS = {a for f in (ROOT / "alerts").glob("*.rules.yml") for a in re.findall(r"- alert: (\w+)", f.read_text())}
# Not on every machine, and nothing to look up without them.
ELSEWHERE = ("nvidia-smi",)


def commands(entry):
    block = re.search(r"```sh\n(.*?)```", ENTRIES[entry], re.S)
    return [line.split("   #")[0].strip() for line in block[1].splitlines()] if block else []


ALL = sorted({c for entry in ENTRIES for c in commands(entry)})


@functools.cache
def help_of(*words):
    said = [subprocess.run([*words, *ask], capture_output=True, text=True, timeout=20) for ask in (["--help"], ["--help", "all"])]
    return "".join(s.stdout + s.stderr for s in said)


def test_each_alert_has_a_whole_entry():
    assert set(ENTRIES) == ALERTS
    for name in ENTRIES:
        assert len(commands(name)) >= 3, name
        assert re.search(r"\bDo not |, and do not |\. Do not", ENTRIES[name]), f"{name}: no dead end"


def test_names_in_the_texts_exist():
    catalog = {entry["id"] for entry in yaml.safe_load((ROOT / "supervisor/doctor/signatures.yaml").read_text())["signatures"]}
    codes = set(re.findall(r'"([A-Z_]{4,})"', (ROOT / "supervisor/law/oom.c").read_text())) | {"NO_FIT"}
    codes |= set(re.findall(r"^REASON\((\w+),", (ROOT / "supervisor/law/reasons.def").read_text(), re.M))
    flags = help_of(str(BUILD / "evenkeel-server")) + help_of(str(BUILD / "evenkeeld"))
    named = set()
    for line in re.findall(r"[Ss]ignatures? ?:? (?:`[^`]+`[^`]*)+", TEXT):
        named |= set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", line))
    assert len(named) > 30 and named <= catalog, named - catalog
    for code in re.findall(r"`([A-Z][A-Z_]{4,})`", TEXT):
        assert code in codes or code.startswith("SIG"), code
    for flag in re.findall(r"`(--[a-z-]+)", TEXT):
        assert flag in flags or flag in help_of(str(BUILD / "evenkeelctl")), flag


def options(words):
    return [re.match(r"--?[\w-]+", w)[0] for w in words if re.match(r"-[\w-]", w) and not re.fullmatch(r"-\d+", w)]


@pytest.mark.parametrize("command", ALL)
def test_words_exist(command):
    for part in re.split(r"\s\|\s", command.replace("(umask 077; ", "").rstrip(")")):
        words = shlex.split(re.sub(r"\$\([^)]*\)", "1", part))
        program, rest = words[0], words[1:]
        if program in ELSEWHERE and not shutil.which(program):
            continue
        ours = (BUILD / program).exists()
        assert ours or shutil.which(program) or program in ("kill",), f"{program} does not exist"
        if program == "evenkeelctl":
            verbs = help_of(str(BUILD / program))
            verb = " ".join(w for w in rest[:2] if re.fullmatch("[a-z-]+", w))
            assert re.search(rf"^  {verb}\b", verbs, re.M) or re.search(rf"^  {rest[0]}\b", verbs, re.M), verb
            text = verbs if "of their own" not in verbs.split(f"  {rest[0]}")[0] else help_of(str(BUILD / program), rest[0])
        elif program in ("promtool", "amtool", "openssl"):
            verb = [w for w in rest if re.fullmatch("[a-z0-9]+", w)][:1 if program == "openssl" else 2]
            asked = subprocess.run([program, *verb, "-help" if program == "openssl" else "--help"], capture_output=True, text=True, timeout=20)
            text = asked.stdout + asked.stderr
            assert asked.returncode == 0, text
        elif program in ("cat", "grep", "head", "tail", "kill"):
            continue
        else:
            text = help_of(str(BUILD / program) if ours else program)
        for option in options(rest):
            for one in ([option] if option.startswith("--") or program in ("openssl", "ps") else [f"-{c}" for c in option[1:]]):
                assert re.search(rf"(^|[\s,\[|]){re.escape(one)}\b", text) or program == "ps", f"{program} has no {one}: {text[:300]}"


@pytest.fixture(scope="module")
def appliance(tmp_path_factory):
    a = Appliance(tmp_path_factory.mktemp("run"), server_flags=["--swap-space", "0.1"]).start().ready()
    yield a
    a.destroy()


def runs_here(command):
    """What may be typed at an appliance of a test: ours and curl, but nothing that a service manager, a GPU or another machine must answer."""
    return re.match(r"evenkeelctl |curl |evenkeeld |evenkeel-server |promtool ", command) and "https:" not in command and command != "evenkeelctl restart"


def test_links_lead_there(appliance):
    """evenkeeld serves the runbook, with a place for each alert; nothing else is loaded."""
    with urllib.request.urlopen(f"http://127.0.0.1:{appliance.page}/runbook", timeout=10) as reply:
        page = reply.read().decode()
        assert reply.headers["Content-Type"].startswith("text/html") and "default-src 'none'" in reply.headers["Content-Security-Policy"]
    for name in ALERTS:
        assert f'<h2 id="{name.lower()}">{name}</h2>' in page, name
    assert page.count("<pre>") == page.count("</pre>") == TEXT.count("```sh") and "<script" not in page
    assert b'href="/runbook"' in get(appliance.page, "/")[1]


@pytest.mark.parametrize("command", [c for c in ALL if runs_here(c)])
def test_runs(appliance, command):
    typed = (command.replace("localhost:8000", f"127.0.0.1:{appliance.port}").replace("INSTANCE", f"127.0.0.1:{appliance.port}")
             .replace("/run/evenkeel/NAME/control.sock", str(next(appliance.run.rglob("control.sock"))))
             .replace("/etc/evenkeel/evenkeeld.yaml", str(appliance.config)).replace("/usr/share/evenkeel/alerts", str(ROOT / "alerts"))
             .replace("--config /etc/evenkeel/servers/NAME.yaml", f"--model {MODEL}").replace("evenkeelctl top", "evenkeelctl top --once"))
    typed = re.sub(r"^evenkeelctl", f"{BUILD}/evenkeelctl --socket {appliance.run}/evenkeeld.sock", re.sub(r"^(evenkeeld|evenkeel-server) ", rf"{BUILD}/\1 ", typed))
    done = subprocess.run(["bash", "-o", "pipefail", "-c", typed], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and (done.stdout + done.stderr).strip(), (typed, done.stdout[-300:], done.stderr[-300:])
    for pattern in re.findall(r"grep -E '([^']+)'", command):  # each alternative finds something
        for word in pattern.split("|"):
            assert word in done.stdout, f"nothing with {word}"
