#!/bin/sh
# A folder that runs on a bare machine with a card: programs, tests and the libraries that they need. Nothing is built, fetched or
# installed there; Python and NVIDIA's driver are what it wants.
#
#   make gpu-bundle                     build/gpu-bundle, and build/gpu-bundle.tar.gz
#   tar xzf gpu-bundle.tar.gz && gpu-bundle/run --budget 540      (there)
#
# usage: tools/gpu-bundle.sh BUILD_DIR TARGET_DIR TEST... (of which those go along that a section of the runner has)
set -eu
B=$1 to=$2
shift 2
most_mib=60

rm -rf "$to"
mkdir -p "$to/build/tests/unit/cuda" "$to/build/tests/cuda" "$to/lib" "$to/tools" "$to/models" "$to/tests/fixtures"
# evenkeel-bench stays: what libcurl needs would be 10 MiB. Without it clients in Python ask a server that serves.
programs="evenkeel-server evenkeel-bench-cuda libevenkeel-cuda.so"
for p in $programs; do install -s "$B/$p" "$to/build/$p"; done
for t in "$@"; do
    ! grep -q "\"$(basename "$t")\"" tools/gpu_run.py || install -s "$t" "$to/build/tests/unit/cuda/"
done
! [ -e "$B/tests/cuda/libfailing-cuda.so" ] || install -s "$B/tests/cuda/libfailing-cuda.so" "$to/build/tests/cuda/"
cp tools/gpu_run.py tools/gpu-model.py tools/gpu-torch.py tools/gpu-companion.py tools/gpu-ncu.py tools/gpu-check.sh "$to/tools/"
mkdir -p "$to/supervisor/companion/evenkeel_vllm"
cp supervisor/companion/evenkeel_vllm/*.py "$to/supervisor/companion/evenkeel_vllm/"
cp -R models/evenkeel-tiny "$to/models/"
cp tests/fixtures/expected.json "$to/tests/fixtures/"
git rev-parse --short HEAD >"$to/COMMIT" 2>/dev/null || echo unknown >"$to/COMMIT"

# Every library but the C library's own, which the machine has as the driver needs it. Its C++ library, too, if it has one: ours may
# want a newer C library.
for f in "$to"/build/evenkeel-* "$to"/build/*.so "$to"/build/tests/unit/cuda/*; do ldd "$f"; done 2>/dev/null |
    awk '$3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util))\.so' | while read -r lib; do
    case $lib in *libstdc++* | *libgcc_s*) at=$to/lib/c++ ;; *) at=$to/lib ;; esac
    mkdir -p "$at"
    install -m 755 "$(readlink -f "$lib")" "$at/$(basename "$lib")"
    strip --strip-unneeded "$at/$(basename "$lib")"
done

cat >"$to/run" <<'RUN'
#!/bin/sh
# What only a card can show (tools/gpu_run.py has the options): run --budget 540, run --list, run ops first, run --resume all.json
set -u
cd "$(dirname "$0")" || exit 2
LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
build/evenkeel-server --version >/dev/null 2>&1 || LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$PWD/lib/c++
if ! said=$(build/evenkeel-server --version 2>&1); then
    echo "The programs do not run here: $said" >&2
    echo "They need an x86-64 Linux with the C library NEEDS or newer." >&2
    exit 2
fi
exec python3 tools/gpu_run.py --build build --out "${OUT:-reports}" "$@"
RUN
needs=$(objdump -T "$to"/build/evenkeel-* "$to"/build/tests/unit/cuda/* "$to"/lib/*.so* | grep -oE 'GLIBC_2[0-9.]+' | sort -Vu | tail -1)
sed -i "s/NEEDS/$needs/" "$to/run"
chmod 755 "$to/run"

mib=$(($(du -sk "$to" | cut -f1) / 1024))
tar -C "$(dirname "$to")" -czf "$to.tar.gz" "$(basename "$to")"
echo "$to: $mib MiB, $(($(stat -c %s "$to.tar.gz") / 1048576)) MiB packed, needs $needs"
[ $mib -lt $most_mib ] || { echo "More than $most_mib MiB do not travel." >&2; exit 1; }
