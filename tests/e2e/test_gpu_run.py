"""Protects: the runner of tools/gpu-check.sh keeps its budget, ends what hangs with its children, loses no row, goes on where it stopped, and
runs on a (simulated) card; the programs of the first tests are stand-ins that do what they are told."""
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from conftest import BUILD, ROOT, slower

FAKE = BUILD / "tests/cuda/libfake-cuda.so"
ROW = '{"cell": "%s", "value": %g, "unit": "token/s"}'

# Stand-ins: a card that is there, a bench whose section says what becomes of it.
SERVER = "#!/bin/sh\necho 'cpu  this machine'\necho 'cuda  Stand-in card, sm_90'\n"
BENCH = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in --section) section=$2 ;; --report) report=$2 ;; esac
    shift
done
case $section in
probe) echo "large products: cuBLASLt (/lib/libcublasLt.so.13)" ;;
decode) # says one figure, then hangs with a child
    printf '{"target": "cuda", "rows": [\\n  ROW1,' >"$report"
    sleep 300 &
    echo $! >"${report%/*}/child"
    trap '' TERM
    sleep 300 ;;
first) printf '{"target": "cuda", "rows": [ROW2]}' >"$report" ;;
*) echo "[  FAILED  ] something"; exit 7 ;;
esac
"""


@pytest.fixture
def stand_in(tmp_path):
    build = tmp_path / "build"
    (build / "tests/unit/cuda").mkdir(parents=True)
    bench = BENCH.replace("ROW1", ROW % ("8b.decode.1.1024", 240)).replace("ROW2", ROW % ("8b.prefill.2048", 100))
    for name, text in (("evenkeel-server", SERVER), ("evenkeel-bench-cuda", bench), ("libevenkeel-cuda.so", "")):
        (build / name).write_text(text)
        (build / name).chmod(0o755)
    return build


def run(build, out, *words, timeout=120, **env):
    done = subprocess.run([sys.executable, ROOT / "tools/gpu_run.py", "--build", build, "--out", out, *map(str, words)], capture_output=True, text=True,
                          timeout=timeout, env={**os.environ, **env})
    report = out / "all.json"
    return done, json.loads(report.read_text()) if report.exists() else None


def test_time_is_over(stand_in, tmp_path):
    """What hangs is ended with what it began, though it will not; the figure that it had told stays, with its goal."""
    begin = time.monotonic()
    done, report = run(stand_in, tmp_path / "out", "--budget", 3, "decode", timeout=60)
    assert time.monotonic() - begin < 30 * slower() and done.returncode == 1
    section = report["sections"][-1]
    assert section["result"] == "FAILED" and "its time was over" in section["why"][0]
    row = next(r for r in report["rows"] if r["cell"] == "8b.decode.1.1024")
    assert row["value"] == 240 and row["goal"] == 227 and row["met"]
    assert report["machine"]["large_products"].startswith("cuBLASLt")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "out/child").read_text()), 0)


def test_goes_on(stand_in, tmp_path):
    """What passed is not run again, on another machine too; a failure says its lines; what does not fit is left, and said."""
    done, report = run(stand_in, tmp_path / "a", "first", "prefill-fp8")
    assert done.returncode == 1 and [s["result"] for s in report["sections"]] == ["passed", "FAILED"]
    assert "something" in "".join(report["sections"][1]["why"]) and "exit status 7" in report["sections"][1]["why"][0]
    done, report = run(stand_in, tmp_path / "b", "--resume", tmp_path / "a/all.json", "--budget", 5)
    results = {s["name"]: s["result"] for s in report["sections"]}
    assert results["first"] == "passed" and "== first" not in done.stdout
    assert results["decode"] == "left" and any(r["cell"] == "8b.prefill.2048" for r in report["rows"])
    assert run(stand_in, tmp_path / "c", "no-such")[0].returncode == 2


def test_switch(stand_in, tmp_path):
    """The same cell with every value of a switch, each against the first; the switch reaches the program."""
    bench = stand_in / "evenkeel-bench-cuda"
    row = (ROW % ("8b.prefill.2048", 0)).replace(" 0,", " 10$EVENKEEL_CUBLASLT_CANDIDATE,").replace('"', '\\"')
    bench.write_text(BENCH.replace("first)", f'prefill) echo "{{\\"rows\\": [{row}]}}" >"$report" ;;\nfirst)'))
    done, report = run(stand_in, tmp_path / "out", "ab-candidate")
    assert done.returncode == 0, done.stdout + done.stderr
    values = {r["cell"]: r["value"] for r in report["rows"]}
    cell = "8b.prefill.2048@EVENKEEL_CUBLASLT_CANDIDATE="
    assert values[cell + "0"] == 100 and values[cell + "7"] == 107
    assert values[cell + "7.ratio"] == 1.07 and values[cell + "0.ratio"] == 1 and "8b.prefill.2048" not in values


def test_measured_against_the_default(stand_in, tmp_path):
    """A choice's values are held against the one that is taken without it, whatever their names; several batches reach the program."""
    bench = stand_in / "evenkeel-bench-cuda"
    row = (ROW % ("8b.decode.1.1024", 0)).replace(" 0,", " $value,").replace('"', '\\"')
    bench.write_text(BENCH.replace("while [", "words=$*\nwhile [", 1).replace("decode)", f"""decode)
    case $EVENKEEL_CUDA_CARVEOUT in driver) value=200 ;; *) value=1$EVENKEEL_CUDA_CARVEOUT ;; esac
    case $words in *"--only 1 --only 8 --only 64") ;; *) exit 1 ;; esac
    echo "{{\\"rows\\": [{row}]}}" >"$report" ;;
unused)"""))
    done, report = run(stand_in, tmp_path / "out", "ab-carveout")
    assert done.returncode == 0, done.stdout + done.stderr
    values = {r["cell"]: r["value"] for r in report["rows"]}
    cell = "8b.decode.1.1024@EVENKEEL_CUDA_CARVEOUT="
    assert values[cell + "driver.ratio"] == 1 and values[cell + "50.ratio"] == 0.75 and values[cell + "0.ratio"] == 0.05


def test_one_of_many_hangs(stand_in, tmp_path):
    """Of tests that run beside each other, what the one says that hangs is told, not what the others said after it; in few lines."""
    for name in ("test_wgmma", "test_lt", "test_rounded", "test_cuda", "test_packed", "test_sampler", "test_choices"):
        hangs = "echo '[ RUN      ] test_of_it'; sleep 300" if name == "test_lt" else "for i in $(seq 99); do echo \"[       OK ] test_$i\"; done"
        (stand_in / "tests/unit/cuda" / name).write_text(f"#!/bin/sh\n{hangs}\n")
        (stand_in / "tests/unit/cuda" / name).chmod(0o755)
    (stand_in / "tests/unit/cuda/test_packed").unlink()  # nor does what cannot be begun stop the others
    done, report = run(stand_in, tmp_path / "out", "--budget", 15 * slower(), "ops")
    why = report["sections"][0]["why"]
    assert done.returncode == 1 and len(why) <= 30 and not [line for line in why if "OK" in line], why
    assert "test_lt: stopped, its time was over" in why and "[ RUN      ] test_of_it" in why and any("test_packed" in line for line in why)
    assert (tmp_path / "out/ops.test_cuda.log").read_text().count("OK") == 99


def test_marks(stand_in, tmp_path):
    """A call for one section keeps what others have shown for this commit; what another commit has shown is put aside."""
    out = tmp_path / "out"
    run(stand_in, out, "first")
    _, report = run(stand_in, out, "prefill-fp8")
    assert [(s["name"], s["result"]) for s in report["sections"]] == [("first", "passed"), ("prefill-fp8", "FAILED")]
    report["commit"] = "0abcdef"
    (out / "all.json").write_text(json.dumps(report))
    _, report = run(stand_in, out, "prefill-fp8")
    assert [s["name"] for s in report["sections"]] == ["prefill-fp8"] and report["rows"] == []
    assert json.loads((out / "0abcdef/all.json").read_text())["rows"][0]["cell"] == "8b.prefill.2048"


def test_bars(stand_in, tmp_path):
    """One word runs what measures every figure with a goal, and its end says of each whether it was met, missed or not measured."""
    bench = BENCH.replace("ROW2", f"{ROW % ('8b.decode.1.1024', 230)}, {ROW % ('8b.host_us.256', 200)}").replace("decode) #", "decode) exit 0 #")
    (stand_in / "evenkeel-bench-cuda").write_text(bench)
    done, report = run(stand_in, tmp_path / "out", "bars", "--budget", 200, PATH="/usr/bin:/bin")
    assert [s["name"] for s in report["sections"]][:2] == ["first", "decode-fp8-1"]
    told = {b["bar"]: b["met"] for b in report["bars"]}
    assert told["8b.decode.1.1024"] is True and told["8b.host_us.256"] is False
    assert {bar for bar, met in told.items() if met is None} == {
        "8b.decode.8.1024", "8b.decode.64.1024", "8b.decode.256.1024", "8b.prefill.2048", "8b.prefill.8192", "8b.fp8.decode.1.1024",
        "8b.sample_us.greedy.1", "memory.off", "oom.lost", "oom.served", "memcheck", "racecheck"}
    assert re.search(r"8b.host_us.256 +200 +150 MISSED", done.stdout) and re.search(r"racecheck .*not measured", done.stdout)


def test_no_card(stand_in, tmp_path):
    (stand_in / "evenkeel-server").write_text("#!/bin/sh\necho 'cuda  not usable: no NVIDIA driver'\n")
    done, report = run(stand_in, tmp_path / "out")
    assert done.returncode == 3 and "no NVIDIA driver" in done.stderr and report["sections"][0]["name"] == "probe"


def test_no_nccl(stand_in, tmp_path):
    """What needs NCCL is left out where it is not, and the report says so."""
    driver = tmp_path / "driver.c"
    driver.write_text("int cuInit(unsigned f) { return 0 * f; }\nint cuDriverGetVersion(int *v) { *v = 12080; return 0; }\n"
                      "int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 102 && d == 0; return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "driver.so", driver], check=True)
    _, report = run(stand_in, tmp_path / "out", "nccl", EVENKEEL_CUDA_DRIVER=str(tmp_path / "driver.so"), EVENKEEL_NCCL="/nowhere/libnccl.so.2")
    assert report["machine"]["nccl"] == "not found" and report["machine"]["driver_cuda"] == 12.8 and report["machine"]["virtual_memory"]
    assert [(s["name"], s["result"], s["why"]) for s in report["sections"]] == [("nccl", "skipped", ["there is no NCCL"])]


def test_no_cublaslt(stand_in, tmp_path):
    """Figures without cuBLASLt are not what was wanted: nothing is run, unless it was turned off."""
    bench = stand_in / "evenkeel-bench-cuda"
    bench.write_text(BENCH.replace("cuBLASLt (/lib/libcublasLt.so.13)", "own kernels"))
    done, report = run(stand_in, tmp_path / "out", "first")
    assert done.returncode == 3 and "cuBLASLt is not found" in report["sections"][0]["why"][0]
    assert run(stand_in, tmp_path / "off", "first", EVENKEEL_CUBLASLT="off")[0].returncode == 0


@pytest.mark.parametrize("took, met", [(149, True), (151, False)])
def test_most(stand_in, tmp_path, took, met):
    """Host time a step: less is better."""
    bench = BENCH.replace("ROW2", ROW % ("8b.host_us.256", took))
    (stand_in / "evenkeel-bench-cuda").write_text(bench)
    _, report = run(stand_in, tmp_path / "out", "first")
    assert report["rows"][0]["goal"] == 150 and report["rows"][0]["met"] is met


def test_versions(stand_in, tmp_path):
    """Of CUDA's libraries in Python packages, in the report."""
    info = tmp_path / "packages/nvidia_cublas-13.1.0.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cublas\nVersion: 13.1.0.3\n")
    _, report = run(stand_in, tmp_path / "out", "first", PYTHONPATH=str(tmp_path / "packages"))
    assert report["machine"]["versions"]["nvidia-cublas"] == "13.1.0.3"


def test_stopped_from_outside(stand_in, tmp_path):
    """A runner that is killed itself has written what it had."""
    p = subprocess.Popen([sys.executable, ROOT / "tools/gpu_run.py", "--build", stand_in, "--out", tmp_path / "out", "first", "decode"],
                         stdout=subprocess.PIPE, text=True)
    assert any("== first: passed" in line for line in iter(p.stdout.readline, ""))
    child = tmp_path / "out/child"
    for _ in range(600):
        if child.exists() and child.read_text().strip():
            break
        time.sleep(0.05)
    p.kill()
    p.wait()
    assert json.loads((tmp_path / "out/all.json").read_text())["sections"][0]["result"] == "passed"
    os.killpg(os.getpgid(int(child.read_text())), signal.SIGKILL)  # nobody else is left to end it


@pytest.mark.long
@pytest.mark.skipif(not FAKE.exists(), reason="no C++ compiler to run kernels on the host")
def test_simulated_card(tmp_path):
    """The real programs: resizing, swapping and a decode of a small model, on the driver for tests."""
    env = {"LD_LIBRARY_PATH": str(FAKE.parent), "EVENKEEL_CUDA_DRIVER": str(FAKE), "EVENKEEL_NCCL": str(FAKE), "EVENKEEL_CUBLASLT": "off"}
    done, report = run(BUILD, tmp_path / "out", "--shape", "small", "--budget", 250, "pool", timeout=300, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"kv.grow.2gib", "swap.out", "small.decode.1.100", "small.sample_us.greedy.1"} <= {r["cell"] for r in report["rows"]}
    assert "Fake card" in report["machine"]["gpu"] and report["machine"]["large_products"] == "own kernels"
    assert report["machine"]["virtual_memory"] and report["machine"]["driver_cuda"] >= 12 and report["machine"]["nccl"] == str(FAKE)


@pytest.mark.long
@pytest.mark.skipif(not FAKE.exists() or not (BUILD / "libevenkeel-cuda.so").exists(), reason="no plug-in, or no C++ compiler to run kernels on the host")
def test_bundle(tmp_path):
    """The folder that travels: small enough, with every test that a section has, and what runs in it needs nothing from here."""
    tests = [p for p in (BUILD / "tests/unit/cuda").glob("test_*") if "." not in p.name]
    made = subprocess.run([ROOT / "tools/gpu-bundle.sh", BUILD, tmp_path / "bundle", *tests], capture_output=True, text=True, cwd=ROOT)
    assert made.returncode == 0, made.stdout + made.stderr
    named = set(re.findall(r'"(test_\w+)"', (tmp_path / "bundle/tools/gpu_run.py").read_text()))
    assert {p.name for p in (tmp_path / "bundle/build/tests/unit/cuda").iterdir()} == named & {p.name for p in tests}
    env = {**os.environ, "LD_LIBRARY_PATH": str(FAKE.parent), "EVENKEEL_CUDA_DRIVER": str(FAKE), "EVENKEEL_CUBLASLT": "off", "OUT": str(tmp_path / "out")}
    done = subprocess.run([tmp_path / "bundle/run", "--shape", "small", "--budget", "250", "ncu"], capture_output=True, text=True, timeout=300,
                          env={**env, "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stdout + done.stderr  # the probe has loaded a small model; there is no profiler
    report = json.loads((tmp_path / "out/all.json").read_text())
    assert report["machine"]["large_products"] == "own kernels" and "Fake card" in report["machine"]["gpu"]


@pytest.mark.long
@pytest.mark.skipif(not FAKE.exists(), reason="no C++ compiler to run kernels on the host")
def test_times_of_kernels(tmp_path):
    """Every launch of a decode in a table: its kernel, its grid, how often."""
    env = {**os.environ, "EVENKEEL_CUDA_DRIVER": str(FAKE), "EVENKEEL_CUBLASLT": "off", "EVENKEEL_CUDA_TIMES": "1"}
    words = [BUILD / "evenkeel-bench-cuda", "--shape", "small", "--section", "decode", "--only", "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env={**env, "LD_LIBRARY_PATH": str(FAKE.parent)})
    assert done.returncode == 0, done.stderr
    launches = {}
    for kernel, *_, often, _, _ in (line.split() for line in done.stderr.splitlines() if line.startswith("ek_")):
        launches[kernel] = launches.get(kernel, 0) + int(often)
    steps = launches["ek_embed"]
    assert steps > 40 and launches["ek_norm"] == 5 * steps - steps + launches["ek_sample"]


NCU = '''#!/bin/sh
echo '==PROF== Connected to process 77 (evenkeel-bench-cuda)'
echo '"ID","Process ID","Kernel Name","gpu__time_duration.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed"'
echo '"","","","us","%"'
echo '"0","77","ek_gemv_bf16(cu_gemv_args)","10.5","80.25"'
echo '"1","77","ek_gemv_bf16(cu_gemv_args)","1,200.5","60"'
echo '"2","77","ek_norm(cu_norm_args)","2","5"'
'''


def program(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    (tmp_path / name).chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_profiler(tmp_path):
    """Medians by kernel in one unit of time, the longest first; a profiler that may not measure is said."""
    words = [sys.executable, ROOT / "tools/gpu-ncu.py", tmp_path / "ncu.json", "true"]
    done = subprocess.run(words, env=program(tmp_path, "ncu", NCU), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = {r["cell"]: r["value"] for r in json.loads((tmp_path / "ncu.json").read_text())["rows"]}
    assert rows == {"ncu.ek_gemv_bf16.time": (10500 + 1200500) / 2, "ncu.ek_gemv_bf16.dram": 70.125, "ncu.ek_norm.time": 2000, "ncu.ek_norm.dram": 5}
    env = program(tmp_path, "ncu", "#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\nexit 1\n")
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "ERR_NVGPUCTRPERM" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("more", [[], ["--bench", ""]], ids=["bench", "python"])
def test_beside_a_vllm(tmp_path, more):
    """The same questions to both, one after the other, and the ratio; the stand-in for vLLM is our own server. Where the bench is not, as in the
    bundle, by clients in Python."""
    vllm = f"#!/bin/sh\n[ $1 = serve ] && exec {BUILD}/evenkeel-server --device cpu --threads 1 --model $2 --served-model-name $4 --host $6 --port $8\n"
    done = subprocess.run([sys.executable, ROOT / "tools/gpu-model.py", BUILD, tmp_path / "serve.json", "--serve", "--beside", "vllm", "--device", "cpu",
                           "--seconds", "2", "--clients", "2", "--cases", "2", "--limit", "4", *more, "--server", "threads=1"], env=program(tmp_path, "vllm", vllm),
                          capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {r["cell"]: r["value"] for r in json.loads((tmp_path / "serve.json").read_text())["rows"]}
    assert rows["serve.2.over_vllm"] == pytest.approx(rows["serve.2.tokens"] / rows["serve-vllm.2.tokens"]) and rows["serve.2.over_vllm"] > 0
    assert ("serve.2.first_token" in rows) == (more == [])


@pytest.mark.long
@pytest.mark.skipif(not FAKE.exists(), reason="no C++ compiler to run kernels on the host")
@pytest.mark.parametrize("used, status", [(1000 + 800, 0), (1000 + 880, 1)])
def test_memory(tmp_path, used, status):
    """What the card has in use more than before is held against the plan: 1 % is the most."""
    smi = f"#!/bin/sh\n[ -e {tmp_path}/asked ] && echo '1000, {used}' || echo '1000, 1000'\ntouch {tmp_path}/asked\n"
    env = {**program(tmp_path, "nvidia-smi", smi), "LD_LIBRARY_PATH": str(FAKE.parent), "EVENKEEL_CUDA_DRIVER": str(FAKE), "EVENKEEL_CUBLASLT": "off"}
    done = subprocess.run([sys.executable, ROOT / "tools/gpu-model.py", BUILD, tmp_path / "memory.json", "--memory", "--share", "0.8", "--cases", "2",
                           "--limit", "2"], env=env, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == status, done.stdout + done.stderr
    row = next(r for r in json.loads((tmp_path / "memory.json").read_text())["rows"] if r["cell"] == "memory.off")
    assert row["met"] == (status == 0)


@pytest.mark.long
@pytest.mark.skipif(not FAKE.exists(), reason="no C++ compiler to run kernels on the host")
def test_out_of_memory(tmp_path):
    """A driver in front of the (simulated) one has no memory for a step, nor when it is tried again: one request of eight ends, the server goes on."""
    (tmp_path / "libcuda.so.1").symlink_to(FAKE)
    env = {**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}:{FAKE.parent}", "EVENKEEL_CUBLASLT": "off"}
    done = subprocess.run([sys.executable, ROOT / "tools/gpu-model.py", BUILD, tmp_path / "oom.json", "--oom", "--limit", "16", "--server", "max-num-seqs=8",
                           "max-num-batched-tokens=256", "num-gpu-blocks-override=400"], env=env, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {r["cell"]: r["value"] for r in json.loads((tmp_path / "oom.json").read_text())["rows"]} == {"oom.lost": 1, "oom.served": 8}
