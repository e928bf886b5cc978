"""Protects: the examples in packaging/deploy: read by the programs that they are for, or, where those are not here, checked field by field."""
import json
import re
import shlex
import shutil
import subprocess

import pytest
import yaml

from conftest import BUILD, MODEL, ROOT

DEPLOY = ROOT / "packaging/deploy"


def run(*words, **more):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=60, **more)


@pytest.mark.skipif(not shutil.which("haproxy"), reason="needs HAProxy (tools/deps.sh test)")
def test_haproxy():
    done = run("haproxy", "-c", "-f", DEPLOY / "haproxy.cfg")
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr


def test_weights_that_haproxy_can_share():
    """The agent sends shares of the weight: every server line that anybody copies has one of 100, and the words beside it say why."""
    places = [f for pattern in ("*.md", "docs/*.md", "docs/man/*", "packaging/**/*", "supervisor/ctl/*.c") for f in ROOT.glob(pattern) if f.is_file()]
    lines = [(f, line) for f in places for line in f.read_text(errors="replace").splitlines() if re.search(r"\bserver \S+ \S+:\S+ .*\bcheck\b", line)]
    assert {f.name for f, _ in lines} >= {"haproxy.cfg", "control.md", "vllm.md", "snippet.c"}
    assert not [(f.name, line) for f, line in lines if "weight 100" not in line]
    for page in ("packaging/deploy/haproxy.cfg", "packaging/deploy/README.md", "docs/control.md", "docs/vllm.md", "docs/options.md"):
        assert re.search(r"weight\W* (of |must be |in \w+ \w+: \w+ |)?.*100|100.*weight", (ROOT / page).read_text()), page


def test_prometheus(tmp_path):
    text = (DEPLOY / "prometheus.yml").read_text().replace("/usr/share/evenkeel", str(ROOT))
    (tmp_path / "prometheus.yml").write_text(text)
    shutil.copytree(DEPLOY / "evenkeel", tmp_path / "evenkeel")
    done = run("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = {t["labels"]["job"] for t in yaml.safe_load((DEPLOY / "evenkeel/gpu1.yml").read_text())}
    assert jobs == {"evenkeel-server", "evenkeeld"}, "alerts and dashboards select by these"


def test_envoy():
    """envoy --mode validate is in make check-fleet, which has the program."""
    cluster = yaml.safe_load((DEPLOY / "envoy.yaml").read_text())["static_resources"]["clusters"][0]
    assert cluster["health_checks"][0]["http_health_check"]["path"] == "/health" and cluster["outlier_detection"]


def test_kubernetes():
    documents = {d["kind"]: d for d in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
    pod = documents["Deployment"]["spec"]["template"]
    labels, spec = pod["metadata"]["labels"], pod["spec"]
    assert labels["llm-d.ai/engine-type"] == "vllm"
    for kind in ("Service", "PodDisruptionBudget"):
        selector = documents[kind]["spec"]["selector"]
        assert (selector.get("matchLabels") or selector).items() <= labels.items()
    container = spec["containers"][0]
    flags = [a.replace("$(POD_IP)", "10.0.0.1") for a in container["args"][1:]]
    timeout = int(next(f for f in flags if f.startswith("--shutdown-timeout=")).split("=")[1])
    wait = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] > timeout + wait, "the kill would cut what may finish"
    done = run(BUILD / "evenkeel-server", *[f"--model={MODEL}" if f.startswith("--model=") else f for f in flags], "--check-config")
    assert done.returncode == 0, done.stderr
    assert not any(f.startswith("--kv-events-config") for f in flags) and "--require-api-key" in flags
    assert any(f.startswith("--host=") for f in flags) and any(f.startswith("--api-key-file=") for f in flags)
    for part in (spec["securityContext"], container["securityContext"]):
        assert part.get("runAsNonRoot") or (part["readOnlyRootFilesystem"] and not part["allowPrivilegeEscalation"] and part["capabilities"] == {"drop": ["ALL"]})
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"} and spec["automountServiceAccountToken"] is False
    mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
    assert set(mounts.values()) == {v["name"] for v in spec["volumes"]}
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert f"--port={ports['http']}" in flags
    routes = (ROOT / "server/net/route.c").read_text()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        get = container[probe]["httpGet"]
        assert f'"GET", "{get["path"]}"' in routes and get["port"] in ports
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 600, "loading takes minutes"


def test_keda():
    spec = yaml.safe_load((DEPLOY / "keda.yaml").read_text())["spec"]
    known = run(BUILD / "evenkeel-server", "--print-metrics").stdout
    for trigger in spec["triggers"]:
        for name in re.findall(r"\b(?:vllm:|evenkeel_)\w+", trigger["metadata"]["query"]):
            assert f"\n{name} " in "\n" + known, name
    assert spec["scaleTargetRef"]["name"] == "evenkeel"


def test_llm_d():
    for e in yaml.safe_load((DEPLOY / "llm-d-endpoints.yaml").read_text()):
        assert re.fullmatch(r"\d+(\.\d+){3}", e["address"]) and isinstance(e["port"], str) and e["labels"]["model"]


def test_docker_compose():
    services = yaml.safe_load((DEPLOY / "docker-compose.yaml").read_text())["services"]
    for name, s in services.items():
        assert set(s.get("depends_on", [])) <= set(services), name
        for volume in s.get("volumes", []):
            source = volume.split(":")[0]
            assert source.startswith("/") or source == "./evenkeeld.yaml" or (DEPLOY / source).exists(), volume
    assert services["gpu2"]["command"] == services["gpu1"]["command"]


@pytest.mark.parametrize("form", ["haproxy", "prometheus", "envoy", "llm-d", "vllm-router"])
def test_snippets_fit_into_the_examples(appliance, tmp_path, form):
    a = appliance(extra="    edge: 127.0.0.1:29465\n")
    done = a.ctl("endpoint-snippet", form, "--address", "127.0.0.1", check=False)
    assert done.returncode in (0, 2)
    text = run(BUILD / "evenkeelctl", "endpoint-snippet", form, "--address", "127.0.0.1", "--socket", a.run / "evenkeeld.sock").stdout
    assert str(a.port) in text
    if form == "haproxy":
        (tmp_path / "h.cfg").write_text((DEPLOY / "haproxy.cfg").read_text().split("    # servers")[0] + text)
        assert run("haproxy", "-c", "-f", tmp_path / "h.cfg").returncode == 0
        assert "agent-port 29465" in text
    elif form == "vllm-router":
        assert shlex.split(text)[1:] == ["--worker-urls", f"http://127.0.0.1:{a.port}"]
    else:
        parsed = yaml.safe_load(text)
        shape = yaml.safe_load((DEPLOY / {"prometheus": "evenkeel/gpu1.yml", "llm-d": "llm-d-endpoints.yaml"}.get(form, "envoy.yaml")).read_text())
        if form == "envoy":
            shape = shape["static_resources"]["clusters"][0]["load_assignment"]["endpoints"]
            assert json.dumps(shape[0]["lb_endpoints"][0]).replace("gpu1.example", "127.0.0.1").replace("8000", str(a.port)) == json.dumps(parsed[0]["lb_endpoints"][0])
        else:
            assert set(parsed[0]) == set(shape[0]) and set(parsed[0]["labels"]) == set(shape[0]["labels"])
    bad = run(BUILD / "evenkeelctl", "endpoint-snippet", form, "--address", "a b", "--socket", a.run / "evenkeeld.sock")
    assert bad.returncode == 2 and "host name" in bad.stderr
