#!/bin/sh
# Installs the Debian packages that are missing: says what it will do, does nothing when all is
# there. Works as root, or through sudo.
#   tools/deps.sh build|demo|test|packages      (each includes the one before)
#   tools/deps.sh compile                       (what `make check` compiles with; it installs the rest beside that)
#   tools/deps.sh hosts                         (what `make check-hosts` needs)
#   tools/deps.sh picture                       (what the demo needs, and a browser)
#   tools/deps.sh fresh                         (what tools/fresh.sh needs)
set -eu

build='gcc make pkg-config libc6-dev libmicrohttpd-dev libcurl4-openssl-dev libsystemd-dev
libjansson-dev libyaml-dev libpcre2-dev libutf8proc-dev libxxhash-dev zlib1g-dev libgnutls28-dev libzmq3-dev
libmsgpack-dev libcmocka-dev'
demo='python3 curl ca-certificates'
check='g++ python3-venv git clang clang-format clang-tidy cppcheck shellcheck prometheus haproxy nginx openssl procps libasan8 libubsan1
prometheus-alertmanager build-essential debhelper lintian systemd dbus polkitd iproute2 binutils blhc devscripts'
# A real collector of traces is linked to Python's library; without it its test is skipped.
! command -v python3 >/dev/null || check="$check $(python3 -c 'import sys; print("libpython%d.%d" % sys.version_info[:2])')"
# What several machines need: without it that is not built, and its tests are skipped.
mpi='libopenmpi-dev openmpi-bin'
packages='rpm rpmlint mmdebstrap qemu-system-x86 e2fsprogs'
hosts='openssh-server openssh-client slurmd slurmctld slurm-client slurm-wlm-basic-plugins munge'
picture='chromium pngquant fonts-dejavu-core'

# nvcc needs a C++ compiler.
[ ! -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ] || build="$build g++"

case ${1:-build} in
build) want=$build ;;
demo) want="$build $demo" ;;
compile) want="$build g++ $mpi" ;;
test) want="$build $demo $check $mpi" ;;
fresh) want='git mmdebstrap' ;;
packages) want="$build $demo $check $mpi $packages" ;;
hosts) want="$build $demo $check $mpi $hosts" ;;
picture) want="$build $demo $picture" ;;
*) echo "usage: $0 build|demo|compile|test|packages|hosts|picture|fresh" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null; then
    echo "note: not a Debian system; these packages (by their Debian names) are needed:" >&2
    echo "$want" >&2
    exit 0
fi

missing=
for p in $want; do
    # libcurl comes in two flavours; either will do
    case $p in libcurl4-openssl-dev) dpkg-query -W -f='${Status}\n' libcurl4-gnutls-dev 2>/dev/null |
        grep -q 'ok installed' && continue ;; esac
    dpkg-query -W -f='${Status}\n' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

echo "Installing missing Debian packages:$missing"
sudo=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo "Neither root nor sudo. As root, run: apt-get install$missing" >&2
        exit 1
    }
    sudo=sudo
fi
# Services that packages would start (Prometheus, HAProxy) are for tests here: keep them stopped.
policy=/usr/sbin/policy-rc.d
made=
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null
    $sudo chmod 755 $policy
    made=1
fi
trap '[ -z "$made" ] || $sudo rm -f $policy' EXIT
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # the list is meant to split
if ! { $sudo apt-get update -q && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
    --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -20 "$log" >&2
    echo "The installation failed; the whole output is in $log" >&2
    exit 1
fi
rm -f "$log"
