"""Protects: shells propose what the program knows: commands, verbs, their options and choices. The files are written by the program
(tools/reference.sh checks that they are the same)."""
import os
import shutil
import subprocess

import pytest

from conftest import BUILD, ROOT

DIR = ROOT / "packaging/completions"
CASES = [("", {"status", "top", "limits", "diagnose", "support-bundle", "debug", "help"}, {"--json", "haproxy"}),
         ("limits ", {"get", "set", "pin", "unpin"}, {"status"}),
         ("limits pin max", {"max_num_running_seqs", "max_num_batched_tokens"}, {"get"}),
         ("endpoint-snippet ", {"haproxy", "prometheus", "envoy", "vllm-router", "llm-d"}, {"status"}),
         ("debug ", {"on", "off"}, {"status"}),
         ("top --", {"--url", "--once", "--price", "--help"}, {"--reason", "--follow"}),
         ("events --", {"--follow", "--since"}, {"--url"}),
         ("--", {"--server", "--socket", "--json", "--reason"}, {"--url"}),
         ("diagnose --lang ", {"en", "zh"}, {"--live"})]


def environment():
    return {**os.environ, "PATH": f"{BUILD}:{os.environ['PATH']}", "HOME": "/nonexistent"}


@pytest.mark.parametrize("line, wanted, unwanted", CASES)
def test_bash(line, wanted, unwanted):
    script = f"""source {DIR}/evenkeelctl.bash; compopt() {{ :; }}
COMP_LINE=$1; IFS=' ' read -r -a COMP_WORDS <<<"evenkeelctl $1"; [[ $1 == *' ' || -z $1 ]] && COMP_WORDS+=('')
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _evenkeelctl; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", script, "bash", line], capture_output=True, text=True, env=environment(), timeout=60)
    got = set(done.stdout.split())
    assert not done.stderr and wanted <= got and not unwanted & got, (got, done.stderr)


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
@pytest.mark.parametrize("line, wanted, unwanted", CASES)
def test_fish(line, wanted, unwanted, tmp_path):
    done = subprocess.run(["fish", "--no-config", "-c", f"source {DIR}/evenkeelctl.fish; complete -C 'evenkeelctl {line}'"], capture_output=True, text=True,
                          env={**environment(), "HOME": str(tmp_path)}, timeout=60)
    got = {row.split("\t")[0].rstrip("=") for row in done.stdout.splitlines()}
    assert wanted <= got, (got, done.stderr)


@pytest.mark.parametrize("shell, file", [("bash", "evenkeelctl.bash"), ("zsh", "_evenkeelctl"), ("fish", "evenkeelctl.fish")])
def test_well_formed_and_whole(shell, file):
    text = (DIR / file).read_text()
    said = subprocess.run([BUILD / "evenkeelctl", "--print-completion", shell], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0 and said.stdout == text
    if shutil.which(shell):
        done = subprocess.run([shell, "-n", DIR / file], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and not done.stderr, done.stderr


def test_other_shells_are_refused():
    done = subprocess.run([BUILD / "evenkeelctl", "--print-completion", "csh"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "bash, zsh or fish" in done.stderr
