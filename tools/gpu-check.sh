#!/bin/sh
# What can only be proven on a card: the sections of tools/gpu_run.py, one command to run there.
#
#   make check-gpu                          all that have not passed for this commit yet and fit into BUDGET seconds (540)
#   make check-gpu SECTIONS="ops model"     these, again
#
#   make check-gpu SECTIONS=bars            every figure that has a goal, and a table of them all
#   make check-gpu SECTIONS=decide          what only a card can choose: the ways of kernels/cuda/choices.c
#
# Where nothing can be built, take the folder that `make gpu-bundle` makes: it has this script, too.
set -u
cd "$(dirname "$0")/.." || exit 2
python=build/venv/bin/python
[ -x $python ] || python=python3
exec $python tools/gpu_run.py --budget "${BUDGET:-540}" "$@"
