#!/bin/sh
# What can only be proven on a card, in sections of at most 8 minutes each:
#
#   make check-gpu                          all sections that have not passed for this commit yet
#   make check-gpu SECTIONS="ops model"     these, again
#
# Sections: ops ops-mma own-gemm nccl stages model decode prefill prefill-mma pool decode-7b serve, and with packed weights
# decode-fp8 decode-int8 decode-int4 prefill-fp8 model-int8, decode-kv8 (the KV cache too), rows-fp8 rows-int8 rows-int4
# (up to how many rows they are best read as they are), decode-w8a8 prefill-w8a8 (int8 inputs too), decode-w8a8fp8
# prefill-w8a8fp8 rows-w8a8fp8 decode-w8a8block prefill-w8a8block (fp8 inputs, a scale for each row or for each 128 columns), offload (4 GiB of weights in host memory); nccl is NCCL with one rank on the card, in
# recorded steps too, and with two where there are two cards; stages is for two cards: layers divided among them, the bits of one card, and
# the embedded model through the server (with one card it says so and passes); -mma is without the wgmma attention kernels, which ops
# and prefill take on an H100 or H200. Each leaves a log and a JSON report in
# build/reports/gpu/, and a mark when it passed, so that a run can be taken up again. The
# figures are shares of BANDWIDTH (GB/s, default 4300) and TFLOPS (default 790): an H200's.
set -u
B=${B:-build/release}
dir=build/reports/gpu
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
bandwidth=${BANDWIDTH:-4300} tflops=${TFLOPS:-790}
python=build/venv/bin/python
[ -x $python ] || python=python3
mkdir -p "$dir"

if [ ! -e "$B/libevenkeel-cuda.so" ]; then
    echo "There is no plug-in: build it where nvcc is (make cuda CUDA_ARCHS=90a)." >&2
    exit 2
fi
line=$("$B/evenkeel-server" --list-backends | grep '^cuda')
case $line in
*"not usable"*)
    echo "No card to check on. $line" >&2
    exit 3
    ;;
esac
echo "$line"

bench() { # SHAPE SECTION [WEIGHTS [KV]]
    "$B/evenkeel-bench-cuda" --shape "$1" --section "$2" --bandwidth "$bandwidth" --tflops "$tflops" \
        --weights "${3:-bf16}" --kv "${4:-bf16}" --offload "$offload" \
        --report "$dir/$1-$2${3:+-$3}${4:+-kv-$4}${EVENKEEL_WGMMA:+-mma}$([ "$offload" = 0 ] || echo -offload).json"
}
offload=0 # GiB of weights in host memory

section() {
    case $1 in
    ops)
        EVENKEEL_GPU=1 "$B/tests/unit/cuda/test_cuda" && EVENKEEL_GPU=1 "$B/tests/unit/cuda/test_packed" &&
            EVENKEEL_GPU=1 "$B/tests/unit/cuda/test_wgmma" && EVENKEEL_GPU=1 "$B/tests/unit/cuda/test_sampler"
        ;;
    ops-mma) EVENKEEL_GPU=1 EVENKEEL_WGMMA=off "$B/tests/unit/cuda/test_cuda" ;;
    own-gemm) # without cuBLASLt
        EVENKEEL_GPU=1 EVENKEEL_CUBLASLT=off "$B/tests/unit/cuda/test_cuda" &&
            EVENKEEL_GPU=1 EVENKEEL_CUBLASLT=off "$B/tests/unit/cuda/test_packed"
        ;;
    nccl) EVENKEEL_GPU=1 "$B/tests/unit/cuda/test_nccl" ;;
    stages)
        EVENKEEL_GPU=1 "$B/tests/unit/cuda/test_stages" || return 1
        if "$B/evenkeel-server" --model models/evenkeel-tiny --device cuda --pipeline-parallel-size 2 --dry-run; then
            $python tools/gpu-model.py "$B" "$dir/model-stages.json" --name model.stages --server pipeline-parallel-size=2
        fi
        ;;
    model) $python tools/gpu-model.py "$B" "$dir/model.json" ;;
    serve) $python tools/gpu-model.py "$B" "$dir/serve.json" --serve ;;
    decode) bench "${SHAPE:-8b}" decode ;;
    prefill) bench "${SHAPE:-8b}" prefill ;;
    prefill-mma) EVENKEEL_WGMMA=off bench "${SHAPE:-8b}" prefill ;;
    pool) bench "${SHAPE:-8b}" pool ;;
    decode-7b) bench 7b decode ;;
    decode-fp8 | decode-int8 | decode-int4 | prefill-fp8 | rows-fp8 | rows-int8 | rows-int4 | decode-w8a8 | prefill-w8a8 | \
        decode-w8a8fp8 | prefill-w8a8fp8 | rows-w8a8fp8 | decode-w8a8block | prefill-w8a8block) bench "${SHAPE:-8b}" "${1%-*}" "${1#*-}" ;;
    decode-kv8) bench "${SHAPE:-8b}" decode fp8 fp8 ;;
    offload) # the same answers; decode at the pace of the bus, prefill at that of the card
        EVENKEEL_GPU=1 "$B/tests/unit/cuda/test_offload" && offload=4 && bench "${SHAPE:-8b}" decode &&
            bench "${SHAPE:-8b}" prefill
        ;;
    model-int8) $python tools/gpu-model.py "$B" "$dir/model-int8.json" --name model.int8 --least 0.6 --server dtype=bfloat16 quantization=int8 ;;
    *)
        echo "There is no section $1." >&2
        return 2
        ;;
    esac
}

fail=0
[ $# -gt 0 ] && again=1 || again=0
[ $# -gt 0 ] || set -- ops ops-mma own-gemm nccl stages model decode prefill prefill-mma pool decode-7b serve \
    decode-fp8 decode-int8 decode-int4 prefill-fp8 model-int8 decode-kv8 rows-fp8 rows-int8 rows-int4 decode-w8a8 prefill-w8a8 \
    decode-w8a8fp8 prefill-w8a8fp8 rows-w8a8fp8 decode-w8a8block prefill-w8a8block offload
for s in "$@"; do
    mark=$dir/$s.passed
    if [ $again = 0 ] && [ "$(cat "$mark" 2>/dev/null)" = "$commit" ]; then
        echo "== $s: passed before for $commit"
        continue
    fi
    rm -f "$mark"
    begin=$(date +%s)
    # a section that hangs must not take the card with it
    ( section "$s" ) >"$dir/$s.log" 2>&1 &
    job=$!
    while kill -0 $job 2>/dev/null && [ $(($(date +%s) - begin)) -lt 480 ]; do sleep 1; done
    kill -0 $job 2>/dev/null && { kill $job; echo "stopped after 480 s" >>"$dir/$s.log"; }
    if wait $job; then
        echo "$commit" >"$mark"
        result=passed
    else
        fail=1
        result=FAILED
    fi
    tail -40 "$dir/$s.log"
    echo "== $s: $result in $(($(date +%s) - begin)) s"
done
$python - "$dir" "$commit" "$line" <<'PY' || fail=1
import glob, json, os, sys
where, commit, card = sys.argv[1:]
rows = []
for path in sorted(glob.glob(os.path.join(where, "*.json"))):
    if not path.endswith("all.json"):
        rows += json.load(open(path))["rows"]
# 8B on an H200: tokens per second
goals = {"8b.decode.1.1024": 227, "8b.decode.8.1024": 1700, "8b.decode.64.1024": 8700,
         "8b.decode.256.1024": 15000, "8b.prefill.2048": 38000, "8b.prefill.8192": 30000,
         "8b.fp8.decode.1.1024": 400}
for row in rows:
    if row["cell"] in goals:
        row["goal"] = goals[row["cell"]]
        row["met"] = row["value"] >= row["goal"]
json.dump({"target": "gpu", "commit": commit, "machine": {"gpu": card}, "rows": rows},
          open(os.path.join(where, "all.json"), "w"), indent=1)
print(f"{'cell':34} {'value':>12} unit       goal")
for row in rows:
    goal = f"{row['goal']} {'met' if row['met'] else 'MISSED'}" if "goal" in row else ""
    print(f"{row['cell']:34} {row['value']:12.4g} {row['unit']:10} {goal}")
PY
exit $fail
