"""Protects: where a request ends is never open to doubt. What two programs might read differently is refused and the connection closed, and
behind HAProxy and nginx no request reaches the server that the proxy does not know of."""
import re
import shutil
import socket
import subprocess
import time

import pytest

import smuggling
from bare import Bare, count_answers, parse, read_all
from conftest import free_port, slower, wait_for

HAPROXY, NGINX = shutil.which("haproxy") or "/usr/sbin/haproxy", shutil.which("nginx") or "/usr/sbin/nginx"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Bare(tmp_path_factory.mktemp("smuggling"), "--request-timeout", "1", "--allowed-hosts", "*")
    yield s
    s.stop()


def send(port, raw, seconds=60.0):
    """What comes back until the connection is closed, and whether it was closed by the other side: nothing came for so long otherwise."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as s:
        try:
            s.sendall(raw)
        except OSError:
            pass  # closed on us before it had all
        begin = time.monotonic()
        data = read_all(s)
        return data, time.monotonic() - begin < seconds


def answered(server):
    """Requests whose answer the server has sent, malformed ones aside, but for health."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in server.metrics().splitlines()
               if line.startswith("evenkeel_http_requests_total{") and 'code="none"' not in line and "GET /metrics" not in line)


@pytest.mark.parametrize("raw, expect", [pytest.param(raw, expect, id=name[:80].encode("ascii", "replace").decode()) for name, raw, expect in smuggling.CASES])
def test_directly(server, raw, expect):
    data, closed = send(server.port, raw)
    status, _, _ = parse(data)
    assert closed, data[:500]
    two = b"SMUGGLED" in data
    if expect == smuggling.REFUSED or (expect == smuggling.LENIENT and not two):
        assert not two and (status == 0 or 400 <= status < 600), data[:500]
    elif expect == smuggling.ONE:
        assert not two and count_answers(data) == 1, data[:500]
    else:
        assert two and status == 200 and count_answers(data) == 2, data[:500]


def test_there_are_enough_cases():
    assert len(smuggling.CASES) >= 300 and len({raw for _, raw, _ in smuggling.CASES}) >= 290


def ends_with_it(server):
    assert server.process.poll() is None and server.local("/health")[0] == 200


def through(server, port, forwarded):
    """All cases on one address; then as many requests were answered by the server as the proxy knows of."""
    before, known = answered(server), forwarded()
    twice = 0
    for name, raw, expect in smuggling.CASES:
        data, _ = send(port, raw, 2.0 * slower())
        if expect == smuggling.ONE:
            assert b"SMUGGLED" not in data, name
        twice += b"SMUGGLED" in data
    assert twice >= sum(expect == smuggling.TWO for _, _, expect in smuggling.CASES) - 3
    wait_for("the proxy has counted", lambda: forwarded() - known >= answered(server) - before, 60)
    ends_with_it(server)


@pytest.mark.long
def test_behind_haproxy(server, tmp_path):
    port, admin = free_port(29000), tmp_path / "admin.sock"
    (tmp_path / "haproxy.cfg").write_text(f"""
global
    stats socket {admin} mode 600
defaults
    mode http
    timeout connect 5s
    timeout client 2s
    timeout server 10s
    option http-keep-alive
    http-reuse always
listen api
    bind 127.0.0.1:{port}
    server one 127.0.0.1:{server.port}
""")
    proxy = subprocess.Popen([HAPROXY, "-db", "-q", "-f", tmp_path / "haproxy.cfg"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def forwarded():
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(admin))
            s.sendall(b"show stat\n")
            lines = read_all(s).decode().splitlines()
        row = dict(zip(lines[0].lstrip("# ").split(","), next(x for x in lines if x.startswith("api,one,")).split(",")))
        return sum(int(row[f"hrsp_{c}"] or 0) for c in ("1xx", "2xx", "3xx", "4xx", "5xx", "other"))

    try:
        wait_for("haproxy", lambda: send(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")[0].startswith(b"HTTP/1.1 200"))
        through(server, port, forwarded)
    finally:
        proxy.terminate()
        proxy.wait(60)


@pytest.mark.long
def test_behind_nginx(server, tmp_path):
    port, log = free_port(29500), tmp_path / "access.log"
    (tmp_path / "nginx.conf").write_text(f"""
daemon off;
worker_processes 1;
pid {tmp_path}/nginx.pid;
error_log {tmp_path}/error.log;
events {{ worker_connections 256; }}
http {{
    log_format upstream "$upstream_status";
    access_log {log} upstream;
    client_body_temp_path {tmp_path}/body;
    proxy_temp_path {tmp_path}/proxy;
    fastcgi_temp_path {tmp_path}/fastcgi;
    uwsgi_temp_path {tmp_path}/uwsgi;
    scgi_temp_path {tmp_path}/scgi;
    upstream server {{ server 127.0.0.1:{server.port}; keepalive 4; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://server;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_request_buffering off;
        }}
    }}
}}
""")
    proxy = subprocess.Popen([NGINX, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("nginx", lambda: send(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")[0].startswith(b"HTTP/1.1 200"))
        through(server, port, lambda: len(re.findall(r"^[1-5]\d\d", log.read_text(), re.M)))
    finally:
        proxy.terminate()
        proxy.wait(60)
