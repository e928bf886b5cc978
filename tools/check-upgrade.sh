#!/bin/sh
# The packages of an earlier commit, upgraded to this commit's under load, in a machine that systemd boots.
#
#   tools/check-upgrade.sh COMMIT
#
# Neither is built to be shipped: this commit's hold the objects that are in build/release, where these are of what is
# committed, and the earlier ones are compiled without optimization, once (build/deb-COMMIT keeps them). Without CUDA.
set -eu
from=$1
MAKE=${MAKE:-make} BUILD=${BUILD:-build}
python=build/venv/bin/python
export CUDA=0 DPKG_DEB_COMPRESSOR_LEVEL=1 DIST_LEVEL=1
DEB_BUILD_OPTIONS='noautodbgsym noopt' tools/old-debs.sh "$from" "$BUILD/deb-$from"
$MAKE -s --no-print-directory -j"$(nproc)" all
if [ -z "$(git status --porcelain -- Makefile tools common kernels server supervisor)" ]; then
    OBJECTS=$BUILD/release EVENKEEL_SHARE=all
    export OBJECTS EVENKEEL_SHARE
fi
DEB_BUILD_OPTIONS=noautodbgsym $MAKE -s --no-print-directory deb DEBDIR="$BUILD/deb-quick"
[ -x $python ] || $MAKE -s --no-print-directory venv
OLD=$BUILD/deb-$from DEBS=$BUILD/deb-quick $python -m pytest -q -x -rs --no-header tests/packages/test_upgrade_from.py
