#!/usr/bin/env python3
"""A FAKE systemd for tests of evenkeeld's launcher `systemd`: a private bus, on it a manager with the few methods that are used, and
processes that it really starts. What differs from the real one (jobs, cgroups, permissions) is tested in tests/packages.

usage: fake_systemd.py FOLDER      UNITS is FOLDER/units.json: {"NAME.service": {"command": [...], "env_file": FILE, "restart": "no"}}
Prints the address of the bus. FOLDER/deny: a file whose presence makes StartUnit answer AccessDenied."""
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading

from jeepney import DBusAddress, HeaderFields, MessageType, new_error, new_method_return, new_signal
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import open_dbus_connection

FOLDER = pathlib.Path(sys.argv[1])
NAME, AT = "org.freedesktop.systemd1", "/org/freedesktop/systemd1"
CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={0}/bus</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>"""


class Unit:
    def __init__(self, name, setup):
        self.name, self.setup, self.process = name, setup, None
        self.path = f"{AT}/unit/" + "".join(c if c.isalnum() else f"_{ord(c):02x}" for c in name)
        self.active, self.result, self.last, self.code, self.status = "inactive", "success", 0, 0, 0

    def start(self):
        env, args = dict(os.environ), ""
        for line in pathlib.Path(self.setup["env_file"]).read_text().splitlines():
            name, value = line.split("=", 1)
            env[name] = re.sub(r"\\(.)", r"\1", value[1:-1])
        args = shlex.split(env.pop("EVENKEEL_ARGS", ""))
        self.process = subprocess.Popen([*self.setup["command"], *args], env=env, start_new_session=True,
                                        stdout=open(FOLDER / f"{self.name}.log", "ab"), stderr=subprocess.STDOUT)
        self.active, self.last, self.code, self.status = "active", self.process.pid, 0, 0
        threading.Thread(target=self.wait, daemon=True).start()

    def wait(self):
        end = os.waitid(os.P_PID, self.process.pid, os.WEXITED)
        oom = (FOLDER / "oom").exists()
        self.code, self.status = end.si_code, end.si_status
        self.active = "inactive" if end.si_code == os.CLD_EXITED and end.si_status == 0 else "failed"
        self.result = "oom-kill" if oom else "success" if self.active == "inactive" else "exit-code"
        self.process = None
        changed(self)

    def properties(self):
        return {"LoadState": ("s", "loaded"), "ActiveState": ("s", self.active), "Restart": ("s", self.setup.get("restart", "no")),
                "User": ("s", self.setup.get("user", "")), "DynamicUser": ("b", self.setup.get("dynamic", False)),
                "Result": ("s", self.result), "MainPID": ("u", self.process.pid if self.process else 0), "ExecMainPID": ("u", self.last),
                "ExecMainCode": ("i", self.code), "ExecMainStatus": ("i", self.status), "Description": ("s", self.name),
                "NRestarts": ("u", 0), "ExecStart": ("a(sasb)", [("/bin/x", ["x"], False)])}


def changed(unit):
    with LOCK:
        BUS.send(new_signal(DBusAddress(unit.path, interface="org.freedesktop.DBus.Properties"), "PropertiesChanged", "sa{sv}as",
                            ("org.freedesktop.systemd1.Service", {}, ["MainPID"])))


def unit_of(name):
    units = json.loads((FOLDER / "units.json").read_text())
    if name in units:
        UNITS.setdefault(name, Unit(name, units[name])).setup = units[name]
    return UNITS.get(name)


def answer(m):
    member, body = m.header.fields[HeaderFields.member], m.body
    log(f"{member} {body}")
    if member == "Subscribe":
        return new_method_return(m)
    if member == "GetAll":
        path = m.header.fields[HeaderFields.path]
        unit = next((u for u in UNITS.values() if u.path == path), None)
        return new_method_return(m, "a{sv}", (unit.properties() if unit else {"LoadState": ("s", "not-found"), "ActiveState": ("s", "inactive")},))
    unit = unit_of(body[0])
    if member == "LoadUnit":
        return new_method_return(m, "o", (unit.path if unit else f"{AT}/unit/none",))
    if not unit:
        return new_error(m, NAME + ".NoSuchUnit", "s", (f"Unit {body[0]} not found.",))
    if member == "StartUnit":
        if (FOLDER / "deny").exists():
            return new_error(m, "org.freedesktop.DBus.Error.AccessDenied", "s", ("Permission denied",))
        if not unit.process:
            unit.start()
            threading.Timer(0.05, changed, [unit]).start()
        return new_method_return(m, "o", (AT + "/job/1",))
    if member in ("KillUnit", "StopUnit"):
        if unit.process:
            os.kill(unit.process.pid, body[2] if member == "KillUnit" else signal.SIGTERM)
        return new_method_return(m, *([] if member == "KillUnit" else ["o", (AT + "/job/1",)]))
    return new_error(m, "org.freedesktop.DBus.Error.UnknownMethod", "s", (member,))


def log(text):
    with open(FOLDER / "calls.log", "a") as f:
        f.write(text + "\n")


UNITS, LOCK = {}, threading.Lock()
(FOLDER / "bus.conf").write_text(CONFIG.format(FOLDER))
DAEMON = subprocess.Popen(["dbus-daemon", f"--config-file={FOLDER}/bus.conf", "--print-address", "--nofork", "--nopidfile"], stdout=subprocess.PIPE,
                          text=True)
ADDRESS = DAEMON.stdout.readline().strip()
signal.signal(signal.SIGTERM, lambda *_: (DAEMON.kill(), os._exit(0)))
BUS = open_dbus_connection(ADDRESS)
BUS.send_and_get_reply(message_bus.RequestName(NAME))
print(ADDRESS, flush=True)
while True:
    message = BUS.receive()
    if message.header.message_type == MessageType.method_call:
        reply = answer(message)
        with LOCK:
            BUS.send(reply)
