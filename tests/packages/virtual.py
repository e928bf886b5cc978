"""A Debian machine with a kernel of its own, emulated by QEMU: for what namespaces cannot show where the host has no cgroup v2 with memory in it.
No KVM is needed; it is slow (a minute to boot)."""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

# Runs in the machine: a command a line on the second serial port, its result a line back.
AGENT = r'''
import json, os, subprocess, termios, tty
fd = os.open("/dev/ttyS1", os.O_RDWR | os.O_NOCTTY)
tty.setraw(fd)
port = os.fdopen(fd, "r+b", buffering=0)
held = b""
while True:
    while b"\n" not in held:
        held += port.read(4096) or b""
    line, held = held.split(b"\n", 1)
    if not line.strip():
        continue
    try:
        done = subprocess.run(["sh", "-c", json.loads(line)], capture_output=True, text=True, errors="replace", timeout=300)
        answer = [done.returncode, done.stdout, done.stderr]
    except subprocess.TimeoutExpired:
        answer = [124, "", "timeout"]
    data = json.dumps(answer).encode() + b"\n"
    while data:
        data = data[port.write(data):]
'''
UNIT = """[Service]
ExecStart=python3 /root/agent.py
Restart=always
[Install]
WantedBy=multi-user.target
"""


class VirtualMachine:
    """root: a folder that has a kernel; it is not changed. Extra files go into self.root before boot()."""

    def __init__(self, root):
        kernels = sorted(pathlib.Path(root, "boot").glob("vmlinuz-*"))
        if not kernels or not shutil.which("qemu-system-x86_64"):
            raise RuntimeError(f"no virtual machine can be started: {'no kernel in ' + str(root) if not kernels else 'qemu-system-x86_64 is missing'}")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="evenkeel-virtual-", dir="/var/tmp"))
        self.process, self.root, self.over = None, self.folder / "root", self.folder / "over"
        self.root.mkdir()
        self.over.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "virtual", self.over], check=True)
        for name in ("upper", "work"):
            (self.over / name).mkdir()
        subprocess.run(["mount", "-t", "overlay", "virtual", "-o", f"lowerdir={root},upperdir={self.over}/upper,workdir={self.over}/work", self.root], check=True)
        for name, text in {"root/agent.py": AGENT, "etc/systemd/system/agent.service": UNIT, "etc/fstab": "", "etc/machine-id": ""}.items():
            (self.root / name).write_text(text)
        wants = self.root / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir(exist_ok=True)
        (wants / "agent.service").symlink_to("/etc/systemd/system/agent.service")

    def boot(self, seconds=300):
        image, boot = self.folder / "disk", self.root / "boot"
        kernel, initrd = sorted(boot.glob("vmlinuz-*"))[-1], sorted(boot.glob("initrd.img-*"))[-1]
        size = int(subprocess.run(["du", "-sm", self.root], capture_output=True, text=True, check=True).stdout.split()[0])
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", self.root, image, f"{size * 2 + 512}M"], check=True)
        self.process = subprocess.Popen(
            ["qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "1500", "-smp", "2", "-nographic", "-no-reboot", "-nic", "none",
             "-kernel", kernel, "-initrd", initrd, "-append", "console=ttyS0 root=/dev/vda rw quiet systemd.mask=serial-getty@ttyS0.service",
             "-drive", f"file={image},if=virtio,format=raw", "-serial", f"file:{self.folder}/console", "-monitor", "none",
             "-serial", f"unix:{self.folder}/agent,server=on,wait=off"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(self.folder / "qemu.log", "wb"))
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.run("systemctl is-system-running --wait", timeout=10).stdout.strip() in ("running", "degraded"):
                    return self
            except (OSError, AssertionError):
                time.sleep(1)
        said = "".join((self.folder / n).read_text(errors="replace")[-1500:] for n in ("qemu.log", "console") if (self.folder / n).exists())
        raise RuntimeError(f"the virtual machine did not boot within {seconds} s: {said}")

    def run(self, command, check=True, timeout=240):
        """As Machine.run()."""
        with socket.socket(socket.AF_UNIX) as port:
            port.settimeout(timeout)
            port.connect(str(self.folder / "agent"))
            # An answer to a caller that gave up may still be on its way: a word of our own marks ours.
            mark = os.urandom(6).hex()
            port.sendall(b"\n" + json.dumps(f"echo {mark}; {command}").encode() + b"\n")
            held = b""
            while True:
                while b"\n" not in held:
                    more = port.recv(65536)
                    assert more, "the machine hung up"
                    held += more
                line, held = held.split(b"\n", 1)
                try:
                    code, out, err = json.loads(line)
                except ValueError:
                    continue
                if out.startswith(mark + "\n"):
                    break
        out = out[len(mark) + 1:]
        assert not check or code == 0, f"{command}: {code}\n{out[-3000:]}{err[-3000:]}"
        return subprocess.CompletedProcess(command, code, out, err)

    def show(self, unit, prop):
        return self.run(f"systemctl show -P {prop} {unit}").stdout.strip()

    def journal(self, unit="evenkeeld", more=""):
        return self.run(f"journalctl -o cat -u {unit} {more}", check=False).stdout

    def destroy(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        for place in (self.root, self.over):
            subprocess.run(["umount", "-l", place], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)
