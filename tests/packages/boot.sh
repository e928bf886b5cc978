#!/bin/sh
# Boots systemd as PID 1 of a machine of its own: new PID, mount, UTS, IPC, network and cgroup
# namespaces over a root folder. Needs root and no container engine; the host's systemd need not run.
#   tests/packages/boot.sh FOLDER/root    stays in the foreground until the machine powers off
# Its control groups are named like FOLDER; the caller removes them.
set -eu
case ${2:-outer} in
outer)
    root=$(readlink -f "$1")
    name=$(basename "$(dirname "$root")")
    if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
        set -- /sys/fs/cgroup
    else
        set -- /sys/fs/cgroup/*/
    fi
    for top in "$@"; do
        [ -e "$top/cgroup.procs" ] && [ ! -L "${top%/}" ] || continue
        group=$top/$name
        mkdir -p "$group"
        if [ -e "$top/cpuset.mems" ]; then
            cat "$top/cpuset.cpus" >"$group/cpuset.cpus"
            cat "$top/cpuset.mems" >"$group/cpuset.mems"
            echo 1 >"$group/cgroup.clone_children"
        fi
        echo $$ >"$group/cgroup.procs"
    done
    exec unshare --pid --mount --uts --ipc --net --cgroup --fork sh "$0" "$root" inner
    ;;
inner)
    R=$1
    mount --make-rprivate /
    mount --bind "$R" "$R"
    mount -t proc proc "$R/proc"
    mount -t sysfs -o ro sysfs "$R/sys"
    if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
        mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup"
    else
        mount -t tmpfs -o mode=755 tmpfs "$R/sys/fs/cgroup"
        for top in /sys/fs/cgroup/*/; do
            c=$(basename "$top")
            [ -e "$top/cgroup.procs" ] || continue
            mkdir "$R/sys/fs/cgroup/$c"
            case $c in
            systemd) mount -t cgroup -o none,name=systemd cgroup "$R/sys/fs/cgroup/$c" ;;
            unified) mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup/$c" ;;
            *) mount -t cgroup -o "$c" cgroup "$R/sys/fs/cgroup/$c" ;;
            esac
        done
    fi
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
    for n in tmp var/tmp; do # of a copy of this system they are full, and cleaned at every boot
        mount -t tmpfs -o mode=1777 tmpfs "$R/$n"
    done
    mkdir -p "$R/run/systemd"
    echo evenkeel >"$R/run/systemd/container"
    hostname machine
    mkdir -p "$R/oldroot"
    cd "$R"
    pivot_root . oldroot
    exec env -i container=evenkeel PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -c '
        umount -l /oldroot
        rmdir /oldroot
        mount --make-rshared / # else the credentials of a unit are mounted where it cannot see them
        exec /lib/systemd/systemd --system --show-status=0 --log-target=journal'
    ;;
esac
