"""Protects: a directory as save_pretrained of transformers 4 and 5 wrote it serves with no file touched up, the same greedy tokens as
transformers computed, its tokenizer and its chat template included; plan and dry run read it, too."""
import http.client
import json
import struct
import subprocess

import pytest

from conftest import BUILD, ROOT, free_port, get, wait_for

MODELS = ROOT / "tests/fixtures/models"
SERVED = sorted(p.name for p in MODELS.glob("served-*"))


def golden(name):
    """(prompt, what follows) of the first sequence."""
    data = (MODELS / name / "golden.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])

    def ints(key):
        begin, end = header[key]["data_offsets"]
        return list(struct.unpack(f"<{(end - begin) // 4}i", data[8 + size + begin:8 + size + end]))

    prompt = ints("meta")[0]
    tokens = ints("tokens.0")
    return tokens[:prompt], tokens[prompt:]


@pytest.fixture(params=SERVED)
def served(request, tmp_path):
    port = free_port(18100)
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen([BUILD / "evenkeel-server", "--model", MODELS / request.param, "--port", str(port), "--host",
                                    "127.0.0.1", "--dtype", "float32", "--served-model-name", "m"], stdout=log, stderr=log)
    try:
        wait_for("ready", lambda: get(port, "/health")[0] == 200, 60)
        yield request.param, port
    finally:
        process.terminate()
        process.wait(60)


def ask(port, path, **body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, json.dumps({"model": "m", **body}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status == 200, text
    return json.loads(text)


def test_same_tokens(served):
    name, port = served
    prompt, follows = golden(name)
    choice = ask(port, "/v1/completions", prompt=prompt, max_tokens=len(follows), temperature=0, ignore_eos=True,
                 return_token_ids=True)["choices"][0]
    assert choice["token_ids"] == follows, name
    for text in ("the quick brown fox", "caf\u00e9, na\u00efve: \u6771\u4eac \U0001F642  x\n", "1 + 41 = ?"):
        ids = ask(port, "/tokenize", prompt=text, add_special_tokens=False)["tokens"]
        back = ask(port, "/detokenize", tokens=ids)["prompt"]
        assert back == (" " + text if "llama" in name else text), (name, ids)  # its pieces begin with the space that they stand for
    chat = ask(port, "/v1/chat/completions", messages=[{"role": "user", "content": "the dog"}], max_tokens=3, return_token_ids=True)
    marks = {ask(port, "/tokenize", prompt=w, add_special_tokens=False)["tokens"][0] for w in ("<|im_start|>", "<|im_end|>")}
    assert marks <= set(chat["prompt_token_ids"]), "the template that save_pretrained wrote"


def test_huge_length_is_in_the_files():
    """What these directories are for: transformers' own default, in all three versions."""
    assert len(SERVED) >= 4
    for name in SERVED:
        assert '"model_max_length": 1000000000000000019884624838656' in (MODELS / name / "tokenizer_config.json").read_text()


@pytest.mark.parametrize("name", SERVED)
def test_plans(name):
    done = subprocess.run([BUILD / "evenkeelctl", "plan", MODELS / name, "--device-memory", "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([BUILD / "evenkeel-server", "--model", MODELS / name, "--dry-run"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
