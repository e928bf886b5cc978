#!/bin/sh
# The tier "amx" on a processor that has it: the tests of the kernels and of whole models, with the
# processor's own tiles against the manual's pseudo-code bit for bit, then its speed beside that of
# the tier below. Run by `make check-amx`; B is the folder of the build.
set -eu
B=${B:-build/release}
for flag in amx_tile amx_bf16 amx_int8 avx512_bf16 avx512_vnni; do
    grep -qw "$flag" /proc/cpuinfo || {
        echo "Nothing was tested: this processor has no $flag, which the tier \"amx\" needs (Xeon of the 4th generation or newer, shown to guests by the hypervisor)." >&2
        exit 1
    }
done
${MAKE:-make} -s "$B/evenkeel-server" "$B/evenkeel-bench" "$B/tests/unit/kernels/test_tier" \
    "$B/tests/unit/kernels/test_tier_gemm" "$B/tests/unit/kernels/test_cpu" "$B/tests/unit/kernels/test_shapes" \
    "$B/tests/unit/server/test_golden" "$B/tests/unit/server/test_oracle"
EVENKEEL_CPU_ISA=amx
export EVENKEEL_CPU_ISA
"$B/evenkeel-server" --list-backends | grep -q '^cpu .*, amx,' || {
    echo "Nothing was tested: the kernel does not let processes use tiles (Linux 5.16 or newer does)." >&2
    exit 1
}
for t in kernels/test_tier kernels/test_tier_gemm kernels/test_cpu kernels/test_shapes server/test_golden server/test_oracle; do
    printf '  %-24s ' "$t"
    if "$B/tests/unit/$t" >"$B/check-amx.log" 2>&1; then
        echo ok
    else
        echo FAILED
        tail -40 "$B/check-amx.log"
        exit 1
    fi
done
unset EVENKEEL_CPU_ISA
for isa in amx avx512bf16; do
    echo "== $isa"
    "$B/evenkeel-bench" kernels --isa "$isa" --report "$B/check-$isa.json"
done
"$B/evenkeel-bench" compare "$B/check-avx512bf16.json" "$B/check-amx.json" || true
