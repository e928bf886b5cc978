#!/bin/sh
# What can only be proven on a card: the sections of tools/gpu_run.py, one command to run there.
#
#   make check-gpu                          all that have not passed for this commit yet and fit into BUDGET seconds (540)
#   make check-gpu SECTIONS="ops model"     these, again
#
#   make check-gpu SECTIONS=decide          what only a card can decide: the plan of the next call, below
#
# Where nothing can be built, take the folder that `make gpu-bundle` makes: it has this script, too.
set -u
cd "$(dirname "$0")/.." || exit 2
python=build/venv/bin/python
[ -x $python ] || python=python3
# The next call, in its order, with the seconds that it may take at most; a load of the model is about 5 s, a batch 1 to 2:
#   ops 90 (right on a card at all), the ways of kernels/cuda/choices.c: ab-gemv 30, ab-skinny 30, ab-glu 35, ab-carveout 60, ab-swap 30,
#   ab-experts 90, then times 60 (each kernel of a decode of 1, 64 and 256), first 100: 525 of 600. What wins becomes the first value there.
if [ "${1:-}" = decide ]; then
    shift
    set -- ops ab-gemv ab-skinny ab-glu ab-carveout ab-swap ab-experts times first "$@"
fi
exec $python tools/gpu_run.py --budget "${BUDGET:-540}" "$@"
