#!/bin/sh
# Debian packages from a source archive.   tools/package-deb.sh ARCHIVE FOLDER [PROFILES]
# Tests do not run here: `make check` has. Prints the packages with their sizes.
#
# OBJECTS=FOLDER   the objects of a build of the same sources (build/release): they are packed as they are, so only
#                  one source in EVENKEEL_SHARE is compiled with the flags of packages, others each EVENKEEL_DAY
#                  (tests/share.h); none with EVENKEEL_SHARE=all. For `make check`, which wants packages to install
#                  soon, not to ship.
set -eu
archive=$(readlink -f "$1")
mkdir -p "$2"
out=$(readlink -f "$2")
profiles=${3:-}
command -v dh >/dev/null || { echo "debhelper is missing: apt-get install debhelper" >&2; exit 1; }
rm -rf "$out/src"
mkdir -p "$out/src"
tar -xzf "$archive" -C "$out/src"
tree=$(echo "$out"/src/evenkeel-*)
version=$(cat "$tree/VERSION")
case $(head -1 "$tree/packaging/debian/changelog") in
"evenkeel ($version)"*) ;;
*) echo "packaging/debian/changelog does not begin with version $version" >&2; exit 1 ;;
esac
cp -a "$tree/packaging/debian" "$tree/debian"
rm -f "$out"/*.deb "$out"/*.changes "$out"/*.buildinfo
# reuse FOLDER: its objects, but for the day's share; they are newer than the sources, so make takes them.
reuse() {
    share=${EVENKEEL_SHARE:-1} day=${EVENKEEL_DAY:-0} n=0
    for o in $(cd "$1" && find common kernels server supervisor -name '*.c.o' | sort); do
        n=$((n + 1))
        [ "$share" = all ] || [ $(((n + day) % share)) != 0 ] || continue
        mkdir -p "$tree/obj/release/${o%/*}"
        cp "$1/$o" "$tree/obj/release/$o"
    done
}
[ -z "${OBJECTS:-}" ] || reuse "$OBJECTS"
(
    cd "$tree"
    unset MAKEFLAGS MFLAGS MAKELEVEL # a silent make outside would hide the commands from the log
    DEB_BUILD_OPTIONS="nocheck parallel=$(nproc) ${DEB_BUILD_OPTIONS:-}" DEB_BUILD_PROFILES="nocheck $profiles" \
        dpkg-buildpackage -us -uc -b ${OBJECTS:+-nc} # nothing is there to be cleaned but these
) >"$out/build.log" 2>&1 || { tail -30 "$out/build.log" >&2; echo "the whole log is $out/build.log" >&2; exit 1; }
mv "$out"/src/*.deb "$out"/src/*.changes "$out"/src/*.buildinfo "$out/"
rm -rf "$out/src"
for p in "$out"/*.deb; do
    printf '  %6d KiB  %s\n' $(($(stat -c %s "$p") / 1024)) "${p##*/}"
done
