#!/bin/sh
# The packages: built, linted, gated, installed into a machine that systemd boots, used, upgraded,
# removed.   tools/check-packages.sh [quick | compiled]
#
#   quick      what `make check` runs: the packages hold the objects that are in build/release, and one source in
#              24 is compiled as packages are, others each day; without packages of debugging symbols
#   compiled   the same with all of them compiled so (`make check-deep`)
#   (neither)  also the plug-in; a second build in another folder must give the same bytes, RPMs are built, linted
#              and installed with their scriptlets, and the life test runs in a fresh Debian too
set -eu
MAKE=${MAKE:-make}
BUILD=${BUILD:-build}
python=build/venv/bin/python
mode=${1:-all}
bad=0
work=$(mktemp -d /var/tmp/evenkeel-packages-XXXXXX)
trap 'rm -rf "$work"' EXIT
skip() { printf '  skip  %s\n' "$1"; [ -z "${COUNTS:-}" ] || echo "0 0 1" >>"$COUNTS"; }
say() { printf '  %-5s %s\n' "$1" "$2"; [ "$1" = ok ] || bad=1; }

# The plug-in takes its time to compile: only the whole check builds its package.
if [ "$mode" != all ]; then export CUDA=0; fi
if [ "$mode" = quick ]; then
    EVENKEEL_SHARE=24 EVENKEEL_DAY=${EVENKEEL_DAY:-$(($(date +%s) / 86400))} OBJECTS=$BUILD/release
    $MAKE -s --no-print-directory all BUILD="$BUILD"
    # Packages are made of what is committed: objects of other sources are of no use for them.
    if [ -n "$(git status --porcelain -- Makefile tools common kernels server supervisor)" ]; then OBJECTS=; fi
    DEB_BUILD_OPTIONS=noautodbgsym DPKG_DEB_COMPRESSOR_LEVEL=1 DIST_LEVEL=1 # which take as long as the rest
    export EVENKEEL_SHARE EVENKEEL_DAY OBJECTS DEB_BUILD_OPTIONS DPKG_DEB_COMPRESSOR_LEVEL DIST_LEVEL
    echo "-- one source in $EVENKEEL_SHARE compiled as packages are: EVENKEEL_DAY=$EVENKEEL_DAY"
fi
$MAKE -s --no-print-directory deb BUILD="$BUILD"
debs=$(readlink -f "$BUILD/deb")
for d in "$debs"/*.deb; do
    case $d in
    *dbgsym*) ;;
    *backend-cuda*) dpkg-deb -x "$d" "$work/plugin" ;;
    *) dpkg-deb -x "$d" "$work/root" ;;
    esac
done

if said=$(lintian --allow-root --fail-on error,warning "$debs"/*.changes 2>&1); then
    say ok "lintian: no error, no warning"
else
    say FAIL "lintian: $said"
fi

# Units: valid, and not more exposed than this. With the drop-in for GPUs the device rules are looser.
units=$work/root/lib/systemd/system
gate() {
    file=$1 most=$2 name=$3
    score=$(systemd-analyze security --offline=true "$file" 2>&1 | sed -n 's/.*exposure level for [^:]*: \([0-9.]*\) .*/\1/p')
    if [ -n "$score" ] && awk -v a="$score" -v b="$most" 'BEGIN { exit !(a <= b) }'; then
        say ok "$name: exposure $score, at most $most"
    else
        say FAIL "$name: exposure ${score:-unknown}, more than $most"
    fi
}
mkdir "$work/cuda"
for u in evenkeeld evenkeel-server@ evenkeel-managed@; do
    cat "$units/$u.service" packaging/systemd/50-cuda.conf >"$work/cuda/$u.service"
    [ ! -e "$work/plugin" ] || cmp -s packaging/systemd/50-cuda.conf "$work/plugin/lib/systemd/system/$u.service.d/50-cuda.conf" ||
        say FAIL "evenkeel-backend-cuda has no drop-in for $u"
done
gate "$units/evenkeeld.service" 1.5 evenkeeld
gate "$units/evenkeel-nvml.service" 0.6 evenkeel-nvml
gate "$units/evenkeel-server@.service" 1.1 evenkeel-server
gate "$units/evenkeel-managed@.service" 1.1 "evenkeel-server under evenkeeld"
gate "$work/cuda/evenkeeld.service" 2.0 "evenkeeld with GPUs"
gate "$work/cuda/evenkeel-server@.service" 1.6 "evenkeel-server with GPUs"
gate "$work/cuda/evenkeel-managed@.service" 1.6 "evenkeel-server under evenkeeld with GPUs"

# Documents lead to one another as they do in the source.
if said=$(python3 tests/packages/links.py "$work/root/usr/share/doc/evenkeel"); then
    say ok "$said"
else
    say FAIL "documents: $said"
fi

# What programs say about the configuration that is installed.
sed "s|/usr/share/evenkeel|$work/root/usr/share/evenkeel|" "$work/root/etc/evenkeel/evenkeeld.yaml" >"$work/evenkeeld.yaml"
if said=$("$work/root/usr/sbin/evenkeeld" --config "$work/evenkeeld.yaml" --check-config) &&
    echo "$said" | grep -q 'tiny (evenkeel, act)' &&
    "$work/root/usr/bin/evenkeel-server" --config "$work/root/usr/share/evenkeel/servers/tiny.yaml" --check-config >/dev/null; then
    say ok "the installed configuration is good"
else
    say FAIL "the installed configuration: $said"
fi
for f in bin/evenkeel-server bin/evenkeelctl sbin/evenkeeld libexec/evenkeel/evenkeel-nvml; do
    said=$(readelf -dlW "$work/root/usr/$f")
    case $said in *BIND_NOW*) ;; *) say FAIL "$f is not linked with -z now" ;; esac
    case $said in *GNU_RELRO*) ;; *) say FAIL "$f has no RELRO" ;; esac
    case $said in *cuda* | *nccl*) say FAIL "$f links CUDA" ;; esac
    case $(readelf -hW "$work/root/usr/$f") in *"DYN ("*) ;; *) say FAIL "$f is not position independent" ;; esac
done

# The compiler makes position independent programs unasked, which is checked above.
if said=$(blhc --bindnow "$debs/build.log" 2>&1); then
    say ok "blhc: every compilation is hardened"
else
    say FAIL "blhc: $(echo "$said" | head -5)"
fi
# What a program has of it is told by its functions, so all of it must have been compiled so.
# Debian's own start files have no marks for control flow, so no program of Debian 12 passes that one.
[ "$mode" = quick ] || if said=$(hardening-check --nocfprotection "$work/root/usr/bin/evenkeel-server" "$work/root/usr/bin/evenkeelctl" "$work/root/usr/sbin/evenkeeld" "$work/root/usr/libexec/evenkeel/evenkeel-nvml" 2>&1); then
    say ok "hardening-check: nothing is missing"
else
    say FAIL "hardening-check: $(echo "$said" | grep -i 'no' | head -5)"
fi

# life ROOT NAME
life() {
    if MACHINE_ROOT=$1 DEBS=$debs timeout -s INT -k 60 600 $python -m pytest -q -x -rs --no-header tests/packages/test_life.py >"$work/life.log" 2>&1; then
        case $(tail -1 "$work/life.log") in
        *passed*) say ok "life in $2: $(tail -1 "$work/life.log")" ;;
        *) skip "life in $2: $(sed -n 's/^SKIPPED .*test_life.py:[0-9]*: //p' "$work/life.log" | head -1)" ;;
        esac
    else
        tail -100 "$work/life.log"
        say FAIL "life in $2"
    fi
}
[ -x $python ] || $MAKE -s --no-print-directory venv
life / "a copy of this system"
[ "$mode" = all ] || exit $bad

# How long a start takes and what the packages weigh.
DEBS=$debs $python tests/packages/cold_start.py || say FAIL "the cold start could not be measured"

# The same bytes from another folder.
tools/package-deb.sh "$BUILD"/evenkeel-*.tar.gz "$work/again/deeper" "$(for p in cuda mpi; do ls "$debs/evenkeel-backend-${p}_"*.deb >/dev/null 2>&1 && echo "pkg.evenkeel.$p"; done | xargs)" >/dev/null
(cd "$debs" && sha256sum ./*.deb) >"$work/sums"
if said=$(cd "$work/again/deeper" && sha256sum --quiet -c "$work/sums" 2>&1); then
    say ok "a second build in another folder has the same SHA-256 ($(ls "$debs"/*.deb | wc -l) packages)"
else
    say FAIL "a second build differs: $said"
fi

# RPMs: into a database and a root of their own; scriptlets run in that root when it has a shell.
$MAKE -s --no-print-directory rpm BUILD="$BUILD"
rpms=$BUILD/rpm/RPMS
if command -v rpmlint >/dev/null; then
    if said=$(rpmlint -c packaging/rpm/rpmlint.toml "$rpms" 2>&1) && echo "$said" | grep -q ' 0 errors, 0 warnings'; then
        say ok "rpmlint: no error, no warning"
    else
        say FAIL "rpmlint: $said"
    fi
fi
if command -v mmdebstrap >/dev/null && mmdebstrap --quiet --variant=apt --include=linux-image-cloud-amd64,initramfs-tools,systemd,systemd-sysv,dbus,polkitd,udev,passwd,procps,curl,iproute2,python3,ca-certificates,libcurl4,libgnutls30,libjansson4,libmicrohttpd12,libpcre2-8-0,libutf8proc2,libxxhash0,libyaml-0-2,libzmq5,zlib1g \
    bookworm "$work/fresh" >"$work/mmdebstrap.log" 2>&1; then
    cp -a "$work/fresh" "$work/rpmroot"
    mkdir "$work/rpmroot/rpms"
    find "$rpms" -name '*.rpm' -exec cp {} "$work/rpmroot/rpms/" \;
    # shellcheck disable=SC2046 # the list of packages is meant to split
    if rpm --root "$work/rpmroot" --initdb && rpm --root "$work/rpmroot" -i --nodeps "$work/rpmroot"/rpms/*.rpm >"$work/rpm.log" 2>&1 &&
        chroot "$work/rpmroot" getent passwd evenkeel >/dev/null && rpm --root "$work/rpmroot" -V --nodeps evenkeeld evenkeel-server evenkeel-tools &&
        chroot "$work/rpmroot" evenkeeld --config /etc/evenkeel/evenkeeld.yaml --check-config >/dev/null &&
        rpm --root "$work/rpmroot" -q --configfiles evenkeeld | grep -q evenkeeld.yaml &&
        rpm --root "$work/rpmroot" -e --nodeps $(rpm --root "$work/rpmroot" -qa 'evenkeel*') &&
        [ ! -e "$work/rpmroot/usr/sbin/evenkeeld" ]; then
        say ok "RPMs: installed with scriptlets, files as packed, removed"
    else
        cat "$work/rpm.log"
        say FAIL "RPMs in a root of their own"
    fi
    life "$work/fresh" "a fresh Debian"
    if MACHINE_ROOT=$work/fresh DEBS=$debs timeout -s INT -k 60 1500 $python -m pytest -q -x --no-header tests/packages/test_memory_limit.py >"$work/limit.log" 2>&1; then
        say ok "memory limits of cgroup v2 in a virtual machine: $(tail -1 "$work/limit.log")"
    else
        tail -60 "$work/limit.log"
        say FAIL "memory limits of cgroup v2 in a virtual machine"
    fi
else
    tail -3 "$work/mmdebstrap.log" 2>/dev/null || true
    say FAIL "no fresh Debian could be made (mmdebstrap is missing, or the archive cannot be reached)"
fi
exit $bad
