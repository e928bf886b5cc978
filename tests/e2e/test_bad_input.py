"""Protects: every wrong input gets one clear sentence with the field, the limit and the remedy, the right status or exit code, and
the server goes on."""
import json
import os
import shutil
import socket
import subprocess

import openai
import pytest

from conftest import BUILD, MODEL, ROOT, get

import http.client


def post(port, path, body, headers=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    c.request("POST", path, body if isinstance(body, (bytes, str)) else json.dumps(body),
              {"Content-Type": "application/json", **(headers or {})})
    r = c.getresponse()
    text = r.read().decode()
    c.close()
    return r.status, text


CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@pytest.mark.parametrize("change, status, param, says", [
    ({"model": "nope"}, 404, "model", "does not exist; GET /v1/models lists those that do: `tiny`."),
    ({"messages": []}, 400, "messages", ""),
    ({"messages": "hi"}, 400, "messages", ""),
    ({"messages": [{"role": "user"}]}, 400, None, "content"),
    ({"max_tokens": 0}, 400, "max_tokens", ""),
    ({"max_tokens": "many"}, 400, "max_tokens", ""),
    ({"max_tokens": 100000}, 400, None, "maximum context length is"),
    ({"temperature": -1}, 400, "temperature", ""),
    ({"temperature": "hot"}, 400, "temperature", ""),
    ({"top_p": 0}, 400, "top_p", ""),
    ({"top_p": 1.5}, 400, "top_p", ""),
    ({"top_k": -5}, 400, "top_k", ""),
    ({"n": 0}, 400, "n", ""),
    ({"n": 1000000}, 400, "n", ""),
    ({"stop": 5}, 400, "stop", ""),
    ({"stream": "yes"}, 400, "stream", ""),
    ({"seed": 1.5}, 400, "seed", ""),
    ({"top_logprobs": 50, "logprobs": True}, 400, "top_logprobs", "20"),
])
def test_fields(shared, change, status, param, says):
    got, text = post(shared.port, "/v1/chat/completions", {**CHAT, **change})
    error = json.loads(text)["error"]
    assert got == status and error["code"] == status, text
    assert says in error["message"], text
    assert param is None or error["param"] == param, text


@pytest.mark.parametrize("headers", [{}, {"Transfer-Encoding": "chunked"}])
def test_a_body_that_is_too_large_is_answered(shared, headers):
    """Clients send the whole body before they read: the answer must not be lost in a reset connection."""
    c = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=60)
    parts = [b"x" * (1 << 20)] * 8
    c.request("POST", "/v1/chat/completions", iter(parts) if headers else b"".join(parts),
              {"Content-Type": "application/json", **headers}, encode_chunked=bool(headers))
    r = c.getresponse()
    text = r.read().decode()
    assert r.status == 413 and "--max-body-bytes" in json.loads(text)["error"]["message"]
    c.close()
    assert post(shared.port, "/v1/chat/completions", CHAT)[0] == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"nul", b'{"model": "tiny"', b"\xff\xfe", b"[" * 100000])
def test_bodies(shared, body):
    status, text = post(shared.port, "/v1/chat/completions", body)
    assert status == 400 and json.loads(text)["error"]["message"], text


def test_routes_and_methods(shared):
    assert get(shared.port, "/v1/nothing")[0] == 404
    assert get(shared.port, "/v1/chat/completions")[0] == 405
    for path, says in {"/chat/completions": "did you mean /v1/chat/completions?", "/v1/v1/models": "did you mean /v1/models?",
                       "//v1/models": "did you mean /v1/models?", "/v1//models": "did you mean /v1/models?",
                       "/v1//v1/chat/completions/": "did you mean /v1/chat/completions?", "/models/": "did you mean /v1/models?",
                       "/v1/x": "GET /openapi.json", "/" + "x" * 3000: "GET /openapi.json"}.items():
        status, text = get(shared.port, path)
        assert status == 404 and says in json.loads(text)["error"]["message"], text
    assert get(shared.port, "/v1/models/") == get(shared.port, "/v1/models")  # as where servers redirect
    name = json.loads(get(shared.port, "/v1/models")[1])["data"][0]["id"]
    assert get(shared.port, f"/v1/models/{name}/") == get(shared.port, f"/v1/models/{name}")
    assert get(shared.port, "/v1/models//")[0] == get(shared.port, "//")[0] == get(shared.port, "/docs/")[0] == 404
    status, text = post(shared.port, "/runtime_config", {}, {"Content-Type": "application/x-www-form-urlencoded"})
    assert status == 404 and "runtime_config?" not in text  # nor are they named
    status, text = post(shared.port, "/v1/completions", {}, {"Content-Type": "application/x-www-form-urlencoded"})
    assert status == 400 and "must be application/json, not application/x-www-form-urlencoded." in text
    status, _ = post(shared.port, "/v1/runtime_config", {})
    assert status in (404, 405)  # admin verbs are on the Unix socket alone
    status, _ = post(shared.port, "/drain", {})
    assert status in (404, 405)


def test_a_prompt_that_is_too_long(shared):
    case = next(c for c in json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"] if c.get("too_long"))
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{shared.port}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens"):
        client.chat.completions.create(model="tiny", messages=case["messages"], max_tokens=16)


def test_bad_limits(shared):
    done = shared.ctl("limits", "set", "max_num_running_seqs=1000000", check=False)
    assert done.returncode != 0 and "max_num_running_seqs" in done.stderr + done.stdout
    assert get(shared.port, "/health")[0] == 200


def server(*flags):
    return subprocess.run([BUILD / "evenkeel-server", *map(str, flags)], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("flags, code, says", [
    (["--max-num-seq", "4"], 2, "--max-num-seqs"),
    (["--model", MODEL, "--max-num-seqs", "0"], 2, "max-num-seqs"),
    (["--model", MODEL, "--block-size", "12"], 2, "block-size"),
    (["--model", "/nonexistent"], 78, "/nonexistent"),
    (["--model", MODEL, "--generation-config", "/nonexistent"], 78, "/nonexistent"),
    (["--model", MODEL, "--num-gpu-blocks-override", "3", "--max-model-len", "2048"], 75, "max-model-len"),
    (["--model", MODEL, "--device", "cuda"], None, "cuda"),
])
def test_command_lines(flags, code, says):
    done = server(*flags, "--port", "0")
    assert done.returncode == code or (code is None and done.returncode != 0), (done.returncode, done.stderr)
    assert says.lower() in done.stderr.lower(), done.stderr


@pytest.mark.parametrize("spoil, says", [
    (lambda d: (d / "config.json").unlink(), "config.json"),
    (lambda d: (d / "model.safetensors").unlink(), "safetensors"),
    (lambda d: (d / "tokenizer.json").unlink(), "tokenizer.json"),
    (lambda d: (d / "model.safetensors").write_bytes((MODEL / "model.safetensors").read_bytes()[:500000]), "truncated"),
    (lambda d: (d / "config.json").write_text("{"), "config.json"),
    (lambda d: (d / "config.json").write_text((d / "config.json").read_text().replace("LlamaForCausalLM", "MambaForCausalLM")),
     "MambaForCausalLM"),
])
def test_model_directories(tmp_path, spoil, says):
    copy = tmp_path / "model"
    shutil.copytree(MODEL, copy)
    for f in copy.iterdir():
        f.chmod(0o644)
    spoil(copy)
    done = server("--model", copy, "--port", "0")
    assert done.returncode == 78 and says in done.stderr, (done.returncode, done.stderr)


def test_evenkeeld_configuration(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("listen: 127.0.0.1:0\nservers:\n  a:\n    engine: evenkeel\n    prot: 80\n")
    done = subprocess.run([BUILD / "evenkeeld", "--config", bad, "--check-config"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "prot" in done.stderr and "line 5" in done.stderr, done.stderr


@pytest.mark.parametrize("body, says", [(b"", "body must be a JSON object"), (b"[]", "body must be a JSON object"),
                                        (b'{"max_num_running_seqs": }', "body is not valid JSON: "), (b'{"pin": 1}', "pin must be true or false"),
                                        (b'{"max_num_running_seqs": 0}', "a whole number from 1")])
def test_bodies_for_evenkeeld(shared, body, says):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(10)
        s.connect(str(shared.run / "evenkeeld.sock"))
        s.sendall(b"PATCH /api/v1/servers/s1/limits HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head, text = b"".join(iter(lambda: s.recv(65536), b"")).split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 400 ") and says in json.loads(text)["error"]["message"], text


def test_check_config_reads_the_files_of_servers(tmp_path):
    """A word that evenkeel-server does not take would only be found at its next start, when the old one has ended."""
    config, file = tmp_path / "evenkeeld.yaml", tmp_path / "servers/main.yaml"
    file.parent.mkdir()
    config.write_text(f"run_dir: {tmp_path}\nstate_dir: {tmp_path}/state\nservers_dir: {file.parent}\n")
    for line, code, says in (("max-num-seqs: 8", 0, "is good: 1 server"), ("modle: x", 78, "unknown option --modle; did you mean --model?")):
        file.write_text(f"model: {MODEL}\nport: 8123\n{line}\n")
        done = subprocess.run([BUILD / "evenkeeld", "--config", config, "--check-config"], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PATH": f"{BUILD}:{os.environ['PATH']}"})
        assert done.returncode == code and says in done.stdout, done
        assert ("FAIL  main" in done.stdout) == (code != 0)
        assert ("is good" in done.stdout) == (code == 0)
        assert ("is not good: 1 of 1 server would not start" in done.stdout.splitlines()[-1]) == (code != 0)
