#!/bin/sh
# Runs a command in a copy of this tree, in a Debian that has just been installed.
#
#   tools/fresh.sh make check              tools/fresh.sh sh -c 'make demo && make check'
#
# The root is mmdebstrap's minimal one with what the README asks for (git, make), in mount and process
# namespaces of its own. Of this system it has what apt and pip need to reach their archives (sources,
# keys, certificates, pip's configuration, proxy variables), which is neither printed nor kept, and the
# CUDA toolkit, read-only, where there is one. What is not committed is not there. Needs root.
#
#   CUDA_HOME=   the toolkit (default /usr/local/cuda)     KEEP=1   leaves the root for a look
#
# Exit status: that of the command; 2 for a wrong call; 125 when no such root can be made here.
set -eu
suite=bookworm

# run_inside ROOT COMMAND...: in the new namespaces. The root gets file systems of its own and becomes /.
run_inside() {
    R=$1
    shift
    mount --make-rprivate /
    mount --bind "$R" "$R"
    mount -t proc proc "$R/proc"
    mount --rbind /sys "$R/sys"
    mount -t tmpfs -o mode=755 tmpfs "$R/dev"
    for n in null zero full random urandom tty; do
        : >"$R/dev/$n"
        mount --bind "/dev/$n" "$R/dev/$n"
    done
    mkdir "$R/dev/pts" "$R/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$R/dev/pts"
    ln -s pts/ptmx "$R/dev/ptmx"
    ln -s /proc/self/fd "$R/dev/fd"
    mount -t tmpfs -o mode=1777 tmpfs "$R/dev/shm"
    mount -t tmpfs -o mode=755 tmpfs "$R/run"
    mkdir "$R/run/lock"
    if [ -n "$TOOLKIT" ]; then
        mkdir -p "$R/usr/local/cuda"
        mount --bind "$TOOLKIT" "$R/usr/local/cuda"
        mount -o remount,bind,ro "$R/usr/local/cuda"
    fi
    mkdir "$R/oldroot"
    cd "$R"
    pivot_root . oldroot
    umount -l /oldroot
    rmdir /oldroot
    cd /root/evenkeel
    "$@" # not exec: this shell is the first process here and buries those that nobody waits for
    exit $?
}

if [ "${1:-}" = --inside ]; then
    shift
    run_inside "$@"
fi
[ $# -gt 0 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2; }
cannot() { echo "fresh: $1" >&2; exit 125; }
[ "$(id -u)" = 0 ] || cannot "only root can make a root: run it as root or with sudo"
tree=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
unshare --mount --pid --fork sh -c 'mount --make-rprivate / && mount -t tmpfs tmpfs /mnt' 2>/dev/null ||
    cannot "no mount and process namespaces can be made here (a container?)"
command -v mmdebstrap >/dev/null || "$tree/tools/deps.sh" fresh || cannot "mmdebstrap is missing"

folder=$(mktemp -d "${TMPDIR:-/var/tmp}/evenkeel-fresh-XXXXXX")
root=$folder/root
trap '[ -n "${KEEP:-}" ] && echo "fresh: left in $folder" >&2 || rm -rf --one-file-system "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

begin=$(date +%s)
sources=
for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ ! -e "$f" ] || ! grep -q "^[^#]*$suite" "$f" || sources="$sources $f"
done
# shellcheck disable=SC2086 # none, one or several files
mmdebstrap --quiet --variant=minbase --include=git,make,ca-certificates $suite "$root" $sources >"$folder/log" 2>&1 || {
    tail -5 "$folder/log" | sed 's#//[^/ ]*#//...#g' >&2
    cannot "mmdebstrap made no root"
}

# What apt and pip need to reach the archives.
rm -rf "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d"
for f in apt/sources.list apt/sources.list.d apt/auth.conf apt/auth.conf.d apt/keyrings apt/trusted.gpg.d pip.conf resolv.conf hosts; do
    [ ! -e "/etc/$f" ] || cp -aL "/etc/$f" "$root/etc/${f%/*}/" 2>/dev/null || cp -aL "/etc/$f" "$root/etc/"
done
# This root is for one run: packages need not be safe on a disk before the next one is unpacked.
mkdir -p "$root/etc/dpkg/dpkg.cfg.d"
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io"
for f in /etc/apt/apt.conf.d/*; do
    if grep -qiE '^[^#/]*acquire::(https?|ftp)' "$f"; then cp -L "$f" "$root/etc/apt/apt.conf.d/"; fi
done
[ ! -d /usr/local/share/ca-certificates ] || cp -aL /usr/local/share/ca-certificates "$root/usr/local/share/"
[ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"

git clone -q --no-hardlinks "$tree" "$root/root/evenkeel"
git -C "$root/root/evenkeel" checkout -q --detach "$(git -C "$tree" rev-parse HEAD)"
echo "fresh: Debian $suite with $(find "$root/var/lib/dpkg/info" -name '*.list' | wc -l) packages in $(($(date +%s) - begin)) s; running: $*"

# The environment of a first login, and the variables that say how archives are reached.
set -- PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"
IFS='
'
for v in $(env | grep -iE '^((https?|ftp|all|no)_proxy|PIP_[A-Z_]*|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|CI|TERM|COLUMNS)='); do
    case $v in PIP_FIND_LINKS=/* | PIP_REQUIRE_VIRTUALENV=*) continue ;; esac
    set -- "$v" "$@"
done
set -- env -i "$@"
unset IFS
toolkit=$(readlink -f "${CUDA_HOME:-/usr/local/cuda}" || true)
[ -x "$toolkit/bin/nvcc" ] || toolkit=
status=0
TOOLKIT=$toolkit unshare --mount --pid --uts --ipc --fork --kill-child sh "$0" --inside "$root" "$@" || status=$?
exit $status
