"""A Debian machine whose PID 1 is systemd, in namespaces of this one: made, booted, entered, ended. Says at once when it cannot."""
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
# What a fresh installation would not have, or what would start inside.
# Without that file of man-db no installation indexes all manuals again.
HIDE = ["var/lib/man-db/auto-update", "var/lib/evenkeel", "etc/evenkeel", "usr/sbin/policy-rc.d", "var/log/journal"]


class Impossible(Exception):
    """No machine can be made or booted on this system (a container, say): a reason to skip, for nothing of ours runs yet."""


class Machine:
    """root: None for a copy-on-write view of this very system, else a folder made by mmdebstrap that is used the same way."""

    def __init__(self, lower="/"):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="evenkeel-machine-", dir="/var/tmp"))
        self.lower, self.root, self.process, self.leader = lower, self.folder / "root", None, None
        if os.geteuid() != 0:
            self.folder.rmdir()
            raise Impossible("a machine can only be booted by root: namespaces and mounts are needed")
        self.root.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3g", "machine", self.folder], capture_output=True, text=True)
        if done.returncode:
            self.destroy()
            raise Impossible(f"nothing can be mounted: {done.stderr.strip()}")
        for name in ("root", "upper", "work"):
            (self.folder / name).mkdir()
        done = subprocess.run(["mount", "-t", "overlay", "machine", "-o", f"lowerdir={lower},upperdir={self.folder}/upper,workdir={self.folder}/work",
                               self.root], capture_output=True, text=True)
        if done.returncode:
            self.destroy()
            raise Impossible(f"no overlay filesystem can be mounted: {done.stderr.strip()}")
        for name in HIDE:
            path = self.root / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        # Units of this host are not the machine's.
        for path in list((self.root / "etc/systemd/system").glob("*.wants/*")):
            path.unlink()
        (self.root / "etc/machine-id").write_text("")
        (self.root / "etc/fstab").write_text("")
        (self.root / "etc/resolv.conf").unlink(missing_ok=True)
        for name in ("etc/.updated", "var/.updated"):  # else its boot begins with ldconfig, the hardware database and the catalog
            (self.root / name).write_text("")

    def boot(self, seconds=90):
        self.log = open(self.folder / "boot.log", "wb")
        self.process = subprocess.Popen(["sh", HERE / "boot.sh", self.root], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        end = time.monotonic() + seconds
        state = "nothing"
        while time.monotonic() < end and self.process.poll() is None:
            self.leader = self.leader or self._child()
            if self.leader:
                state = self.run("systemctl is-system-running", check=False).stdout.strip() or state
                if state in ("running", "degraded"):
                    self.run("ip link set lo up", check=False)
                    return self
            time.sleep(0.1)
        said = (self.folder / "boot.log").read_text(errors="replace")[-800:]
        raise Impossible(f"systemd did not boot in namespaces here (last state: {state}): {said}")

    def power_off(self, seconds=60):
        self.run("systemctl poweroff", check=False)
        self.process.wait(seconds)
        self.leader = None

    def _child(self):
        try:
            children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            pid = children and int(children[0])
            return pid if pid and pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "systemd" else None
        except OSError:
            return None

    def enter(self, *command):
        return ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "env", "-i",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8", *command]

    def run(self, command, check=True, timeout=120, **how):
        done = subprocess.run(self.enter("sh", "-c", command), capture_output=True, text=True, timeout=timeout, **how)
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done

    def start(self, command):
        """In the background; its output is piped."""
        return subprocess.Popen(self.enter("sh", "-c", command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def show(self, unit, prop):
        return self.run(f"systemctl show -P {prop} {unit}").stdout.strip()

    def journal(self, unit="evenkeeld", more=""):
        return self.run(f"journalctl -o cat -u {unit} {more}", check=False).stdout

    def destroy(self):
        if self.leader:
            try:
                os.kill(self.leader, signal.SIGKILL)  # PID 1 of its namespace: all of it ends
            except ProcessLookupError:
                pass
        if self.process:
            self.process.wait(20)
        name = self.folder.name
        for _ in range(20):
            groups = sorted((p for top in [pathlib.Path("/sys/fs/cgroup"), *pathlib.Path("/sys/fs/cgroup").glob("*")]
                             for g in [top / name] if g.is_dir() for p in [g, *(d for d in g.rglob("*") if d.is_dir())]), reverse=True)
            for group in groups:
                try:
                    group.rmdir()
                except OSError:
                    pass
            if not groups:
                break
            time.sleep(0.1)
        subprocess.run(["umount", "-l", self.root], capture_output=True)
        subprocess.run(["umount", "-l", self.folder], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)
