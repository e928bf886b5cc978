"""Protects: TLS on the API's address: right answers, wrong files named, a new certificate without a restart, clients' certificates."""
import json
import os
import signal
import socket
import ssl
import subprocess
import time

import openai
import pytest

from bare import Bare, parse, read_all
from conftest import metric, slower, thread_seconds, wait_for


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)


def authority(folder, name):
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", folder / f"{name}.key", "-out",
            folder / f"{name}.pem", "-days", "30", "-subj", f"/CN={name}")


def signed(folder, name, ca, days=30, kind="ec"):
    how = ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"] if kind == "ec" else ["rsa:2048"]
    openssl("req", "-newkey", *how, "-nodes", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.csr", "-subj", "/CN=localhost")
    (folder / "ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", folder / f"{name}.csr", "-CA", folder / f"{ca}.pem", "-CAkey", folder / f"{ca}.key", "-CAcreateserial", "-days", days,
            "-extfile", folder / "ext", "-out", folder / f"{name}.pem")


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    """A folder with an authority, another one, certificates of both."""
    d = tmp_path_factory.mktemp("papers")
    for name in ("ca", "other"):
        authority(d, name)
    signed(d, "server", "ca")
    signed(d, "second", "ca", kind="rsa")
    signed(d, "short", "ca", days=3)
    signed(d, "client", "ca")
    signed(d, "stranger", "other")
    (d / "both.pem").write_text((d / "server.pem").read_text() + (d / "server.key").read_text())
    (d / "empty.pem").write_text("")
    (d / "junk.pem").write_text("-----BEGIN CERTIFICATE-----\nnot base64 at all\n-----END CERTIFICATE-----\n")
    openssl("pkey", "-in", d / "server.key", "-aes256", "-passout", "pass:secret", "-out", d / "locked.key")
    return d


def context(papers, client=None):
    c = ssl.create_default_context(cafile=str(papers / "ca.pem"))
    if client:
        c.load_cert_chain(papers / f"{client}.pem", papers / f"{client}.key")
    return c


def ask(port, path, c, method="GET", body=b"", headers=None):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw, c.wrap_socket(raw, server_hostname="localhost") as s:
        return (*Bare.exchange(s, path, method, body, headers), s.getpeercert()["serialNumber"])


@pytest.fixture(scope="module")
def server(tmp_path_factory, papers):
    run = tmp_path_factory.mktemp("tls")
    for part in ("pem", "key"):
        (run / f"now.{part}").write_text((papers / f"server.{part}").read_text())
    s = Bare(run, "--ssl-certfile", run / "now.pem", "--ssl-keyfile", run / "now.key", "--api-key", "sk-tls")
    yield s
    s.stop()


def test_clients(server, papers):
    with openai.DefaultHttpxClient(verify=context(papers)) as http:
        client = openai.OpenAI(base_url=f"https://localhost:{server.port}/v1", api_key="sk-tls", max_retries=0, http_client=http)
        assert client.completions.create(model="tiny", prompt="Hello", max_tokens=2).choices[0].text
        asked = {"model": "tiny", "prompt": "Story", "max_tokens": 200, "temperature": 0, "extra_body": {"ignore_eos": True}}
        words = [c.choices[0].text for c in client.completions.create(**asked, stream=True)]
        assert len(words) > 2  # tokens of several steps come together where the reader is slower than they are
        assert "".join(words) == client.completions.create(**asked).choices[0].text
    assert ask(server.port, "/health", context(papers))[0] == 200
    assert ask(server.port, "/v1/models", context(papers))[0] == 401
    assert server.local("/health")[0] == 200 and metric(server.metrics(), "evenkeel_tls_certificate_expiry_seconds") > 1e9


def test_large_bodies_and_answers(server, papers):
    key = {"Authorization": "Bearer sk-tls"}
    body = json.dumps({"prompt": "word " * 100000})
    status, _, text, _ = ask(server.port, "/tokenize", context(papers), "POST", body, key)
    assert status in (200, 400), text[:200]
    assert ask(server.port, "/metrics", context(papers))[0] == 200


@pytest.mark.parametrize("sent", [b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x00\x05junk!", b"\x00" * 500, b"\x16\x03\x01\xff\xff" + b"a" * 70000, b""])
def test_what_is_no_tls(server, papers, sent):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        try:
            s.sendall(sent)
            s.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        assert b"HTTP/1.1 200" not in read_all(s)
    assert ask(server.port, "/health", context(papers))[0] == 200


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_are_refused(server, papers):
    c = context(papers)
    c.minimum_version, c.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    c.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(server.port, "/health", c)
    c = context(papers)
    c.maximum_version = ssl.TLSVersion.TLSv1_2
    assert ask(server.port, "/health", c)[0] == 200


def test_a_new_certificate_without_a_restart(server, papers):
    before = ask(server.port, "/health", context(papers))[3]
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw, context(papers).wrap_socket(raw, server_hostname="localhost") as old:
        for part in ("pem", "key"):
            (server.run / f"now.{part}").write_text((papers / f"second.{part}").read_text())
        server.process.send_signal(signal.SIGHUP)
        wait_for("the new certificate", lambda: ask(server.port, "/health", context(papers))[3] != before)
        old.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")  # an open connection goes on
        assert parse(old.recv(65536))[0] == 200
    now = ask(server.port, "/health", context(papers))[3]
    (server.run / "now.key").write_text((papers / "server.key").read_text())  # not of this certificate
    server.process.send_signal(signal.SIGHUP)
    wait_for("the refusal", lambda: "is not that of the certificate" in server.log())
    assert ask(server.port, "/health", context(papers))[3] == now
    pem = (server.run / "now.pem").read_text()
    (server.run / "now.pem").unlink()
    os.mkfifo(server.run / "now.pem")  # nobody waits for it
    server.process.send_signal(signal.SIGHUP)
    wait_for("the refusal", lambda: "now.pem is a pipe" in server.log())
    assert ask(server.port, "/health", context(papers))[3] == now
    (server.run / "now.pem").unlink()
    (server.run / "now.pem").write_text(pem)


def test_a_reload_takes_all_or_nothing(tmp_path, papers):
    """Good new certificates beside a key file that cannot be read: neither is taken, and the keys of before still open."""
    for part in ("pem", "key"):
        (tmp_path / f"now.{part}").write_text((papers / f"server.{part}").read_text())
    (tmp_path / "keys").write_text("main sk-first-key-of-all\n")
    s = Bare(tmp_path, "--ssl-certfile", tmp_path / "now.pem", "--ssl-keyfile", tmp_path / "now.key", "--api-key-file", tmp_path / "keys")

    def opens(key):
        return ask(s.port, "/v1/models", context(papers), headers={"Authorization": f"Bearer {key}"})[0] == 200

    try:
        before = ask(s.port, "/health", context(papers))[3]
        for part in ("pem", "key"):
            (tmp_path / f"now.{part}").write_text((papers / f"second.{part}").read_text())
        (tmp_path / "keys").write_text("main sk-second-key-of-all max-concurrency=none\n")
        s.process.send_signal(signal.SIGHUP)
        wait_for("the refusal", lambda: metric(s.metrics(), "evenkeel_config_last_reload_successful") == 0)
        assert ask(s.port, "/health", context(papers))[3] == before, "the certificate changed though the keys could not be read"
        assert opens("sk-first-key-of-all") and not opens("sk-second-key-of-all")
        (tmp_path / "keys").write_text("main sk-second-key-of-all\n")
        s.process.send_signal(signal.SIGHUP)
        wait_for("the second reload", lambda: metric(s.metrics(), "evenkeel_config_last_reload_successful") == 1)
        assert ask(s.port, "/health", context(papers))[3] != before
        assert opens("sk-second-key-of-all") and not opens("sk-first-key-of-all")
    finally:
        s.stop()


@pytest.mark.parametrize("mode, client, status", [
    (None, None, 403), (None, "client", 200), (None, "stranger", 403), ("1", None, 200), ("1", "client", 200), ("1", "stranger", 403), ("0", None, 200),
    ("0", "stranger", 200), ("2", None, 403), ("2", "client", 200)])
def test_clients_certificates(tmp_path, papers, mode, client, status):
    s = Bare(tmp_path, "--ssl-certfile", papers / "both.pem", "--ssl-ca-certs", papers / "ca.pem", *(["--ssl-cert-reqs", mode] if mode else []))
    try:
        try:
            got = ask(s.port, "/v1/models", context(papers, client))[0]
        except (ssl.SSLError, ConnectionError):
            got = 403  # the handshake said so already
        assert got == status
    finally:
        s.stop()


@pytest.mark.parametrize("flags, code, says", [
    (["--ssl-certfile", "/nonexistent.pem"], 78, "/nonexistent.pem"), (["--ssl-certfile", "{d}/server.pem", "--ssl-keyfile", "/nonexistent.key"], 78, "/nonexistent.key"),
    (["--ssl-certfile", "{d}/server.pem"], 78, "no private key"), (["--ssl-certfile", "{d}/server.key"], 78, "no chain of certificates"),
    (["--ssl-certfile", "{d}/empty.pem"], 78, "no chain of certificates"), (["--ssl-certfile", "{d}/junk.pem", "--ssl-keyfile", "{d}/server.key"], 78, "no chain of certificates"),
    (["--ssl-certfile", "{d}/server.pem", "--ssl-keyfile", "{d}/second.key"], 78, "is not that of the certificate"),
    (["--ssl-certfile", "{d}/server.pem", "--ssl-keyfile", "{d}/locked.key"], 78, "encrypted"), (["--ssl-certfile", "{d}/both.pem", "--ssl-ca-certs", "{d}/junk.pem"], 78, "--ssl-ca-certs"),
    (["--ssl-keyfile", "{d}/server.key"], 2, "need --ssl-certfile"), (["--ssl-certfile", "{d}/both.pem", "--ssl-cert-reqs", "2"], 2, "--ssl-ca-certs"),
    (["--ssl-certfile", "{d}/both.pem", "--ssl-cert-reqs", "3"], 2, "ssl-cert-reqs"), (["--ssl-certfile", "{d}"], 78, "cannot read")])
def test_wrong_files(tmp_path, papers, flags, code, says):
    s = Bare(tmp_path, *[f.format(d=papers) for f in flags], ready=False)
    assert s.process.wait(60) == code and says in s.log(), s.log()


def test_a_certificate_that_ends_soon_is_said(tmp_path, papers):
    s = Bare(tmp_path, "--ssl-certfile", papers / "short.pem", "--ssl-keyfile", papers / "short.key")
    try:
        assert "expires in" in s.log()
    finally:
        s.stop()


def test_evenkeeld_watches_a_server_with_tls(appliance, papers):
    a = appliance(server_flags=["--ssl-certfile", papers / "both.pem"])
    wait_for("samples", lambda: a.server()["signal_good"] and a.server()["signals"], 60)
    pid = a.server()["pid"]
    assert ask(a.port, "/health", context(papers))[0] == 200
    os.kill(pid, signal.SIGKILL)
    wait_for("restarted", lambda: a.server()["ready"] and a.server()["pid"] != pid, 60)
    assert ask(a.port, "/health", context(papers))[0] == 200


def test_a_handshake_has_a_total_time(papers, tmp_path):
    """A byte now and then of a client's hello does not keep its place: the time is for all of it."""
    s = Bare(tmp_path, "--ssl-certfile", papers / "both.pem", "--request-timeout", "2")
    try:
        hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
        with socket.create_connection(("127.0.0.1", s.port), timeout=60) as c:
            c.settimeout(0.3)
            start, closed = time.monotonic(), False
            for byte in hello:
                try:
                    c.sendall(bytes([byte]))
                    closed = c.recv(100) == b""
                except TimeoutError:
                    pass
                except OSError:
                    closed = True
                if closed or time.monotonic() - start > 90:
                    break
            assert closed and 1.5 < time.monotonic() - start < 12 * slower()
    finally:
        s.stop()


def test_half_a_handshake_costs_nothing(tmp_path, papers):
    """Clients that stop in the midst of a handshake, in several places, have no core of the server; one that goes on afterwards is served."""
    server = Bare(tmp_path, "--ssl-certfile", papers / "server.pem", "--ssl-keyfile", papers / "server.key")
    try:
        came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context(papers).wrap_bio(came, goes, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        hello = goes.read()
        idle = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(4)]
        for s, data in zip(idle, [hello, hello[:100], b"\x16\x03\x01\x00\x01\x01" * 200, b"\x16\x03\x01\x40\x00" + b"\x01\x00\x3f\xfc"]):
            s.sendall(data)
        time.sleep(0.5)
        before = thread_seconds(server.process.pid, "http")
        time.sleep(2)
        assert thread_seconds(server.process.pid, "http") - before < 0.2  # of 2 s; a spinning thread takes all that it can have
        idle[1].sendall(hello[100:])
        assert idle[1].recv(5)[:1] == b"\x16"
        for s in idle:
            s.close()
    finally:
        server.stop()
