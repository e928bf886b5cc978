#!/bin/sh
# The packages of an earlier commit, without CUDA.   tools/old-debs.sh COMMIT FOLDER
# FOLDER keeps them: a second call does nothing. DEB_BUILD_OPTIONS as for any package.
set -eu
commit=$(git rev-parse --verify "$1^{commit}")
mkdir -p "$2"
out=$(readlink -f "$2")
[ ! -e "$out/made" ] || exit 0
rm -rf "$out/tree"
mkdir "$out/tree"
git archive --prefix=tree/ "$commit" | tar -x -C "$out"
version=$(cat "$out/tree/VERSION")
git archive --prefix="evenkeel-$version/" "$commit" | gzip -9n >"$out/evenkeel-$version.tar.gz"
CUDA=0 "$out/tree/tools/package-deb.sh" "$out/evenkeel-$version.tar.gz" "$out"
rm -rf "$out/tree"
: >"$out/made"
