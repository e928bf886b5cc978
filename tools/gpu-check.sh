#!/bin/sh
# What can only be proven on a card: the sections of tools/gpu_run.py, one command to run there.
#
#   make check-gpu                          all that have not passed for this commit yet and fit into BUDGET seconds (540)
#   make check-gpu SECTIONS="ops model"     these, again
#
# Where nothing can be built, take the folder that `make gpu-bundle` makes: it has this script, too.
set -u
cd "$(dirname "$0")/.." || exit 2
python=build/venv/bin/python
[ -x $python ] || python=python3
exec $python tools/gpu_run.py --budget "${BUDGET:-540}" "$@"
