"""Protects: that no alert is without a test, a page in the runbook and somebody who gets it. The rules, their promtool cases, the runbook and
the example of Alertmanager are read as they are shipped."""
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = [r for f in sorted((ROOT / "alerts").glob("*.rules.yml")) for g in yaml.safe_load(f.read_text())["groups"] for r in g["rules"] if "alert" in r]
NAMES = sorted({r["alert"] for r in RULES})


def verdicts():
    """{alert: which of "fires" and "silent" its cases show}."""
    seen = {name: set() for name in NAMES}
    for f in (ROOT / "alerts/tests").glob("*.test.yml"):
        for case in yaml.safe_load(f.read_text())["tests"]:
            for t in case.get("alert_rule_test", []):
                seen[t["alertname"]].add("fires" if t.get("exp_alerts") else "silent")
            for t in case.get("promql_expr_test", []):
                name = re.search(r'alertname="(\w+)"', t["expr"])
                if name and "ALERTS" in t["expr"]:
                    seen[name[1]].add("fires" if t.get("exp_samples") else "silent")
    return seen


@pytest.mark.parametrize("name", NAMES)
def test_fires_and_stays_silent(name):
    wanted = {"fires"} if name == "EvenkeelDeadMan" else {"fires", "silent"}  # it is silent only when nothing works
    assert verdicts()[name] >= wanted


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r["alert"])
def test_says_what_is_needed(rule):
    said = rule["annotations"]
    assert rule["labels"]["severity"] in ("critical", "warning", "info", "none")
    assert said["summary"] and said["description"]
    place = "{{ with $externalLabels.runbook }}{{ . }}{{ else }}%s{{ end }}#" + rule["alert"].lower()
    host = 'http://{{ reReplaceAll ":[0-9]+$" "" $labels.instance }}:9464/runbook'
    file = "file:///usr/share/doc/evenkeel-monitoring/runbook.md"
    # Where evenkeeld cannot answer, or the alert has no host, the package's file.
    assert said["runbook_url"] in (place % host, place % file)
    nobody = rule["alert"].startswith("Vllm") or rule["alert"] in ("EvenkeeldDown", "EvenkeelDeadMan", "EvenkeelScrapeStale", "EvenkeelSloBurn")
    assert ("file://" in said["runbook_url"]) == nobody
    numbers = re.search(r"\$value|\d", said["summary"] + said["description"])
    no_number = ("EvenkeeldDown", "EvenkeelConfigRejected", "EvenkeelOpenWithoutKey", "EvenkeelDeadMan", "EvenkeelDrainOverdue")
    assert numbers or rule["alert"] in no_number


@pytest.mark.skipif(not shutil.which("amtool"), reason="needs amtool (tools/deps.sh test)")
@pytest.mark.parametrize("name,labels", sorted({(r["alert"], tuple(sorted(r["labels"].items()))) for r in RULES}), ids=lambda v: v if isinstance(v, str) else "")
def test_who_gets_it(name, labels):
    severity = dict(labels)["severity"]
    want = {"critical": "page", "warning": "ticket", "info": "ticket", "none": "deadman" if name == "EvenkeelDeadMan" else "nobody"}[severity]
    words = [f"{k}={v}" for k, v in labels]
    got = subprocess.run(["amtool", "config", "routes", "test", f"--config.file={ROOT}/alerts/alertmanager.example.yml", f"alertname={name}", *words],
                         capture_output=True, text=True, timeout=20)
    assert got.stdout.split() == [want], got
