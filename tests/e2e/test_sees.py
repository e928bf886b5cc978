"""Protects: of a model that sees, text is answered, and a picture is 400 with a sentence that says where it stands and what is taken instead, in every form of request."""
import json
import subprocess
import urllib.error
import urllib.request

import pytest

from conftest import BUILD, free_port, get, wait_for
from test_plan import GOLDENS, with_letters

PICTURE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
ASKED = {
    "/v1/chat/completions": ({"type": "text", "text": "ab"}, {"type": "image_url", "image_url": {"url": PICTURE}}),
    "/v1/responses": ({"type": "input_text", "text": "ab"}, {"type": "input_image", "image_url": PICTURE}),
    "/v1/messages": ({"type": "text", "text": "ab"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE.split(",")[1]}}),
}


def send(port, path, parts):
    said = [{"role": "user", "content": parts}]
    body = {"model": "m", "input": said, "max_output_tokens": 3} if path == "/v1/responses" else {"model": "m", "messages": said, "max_tokens": 3}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


@pytest.mark.parametrize("name", sorted(d.name for d in GOLDENS.glob("sees-*")))
def test_pictures_are_refused(tmp_path, name):
    model = with_letters(GOLDENS / name, tmp_path / "m")
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}))
    port = free_port(31200)
    process = subprocess.Popen([BUILD / "evenkeel-server", "--model", model, "--served-model-name", "m", "--device", "cpu", "--port", str(port), "--max-num-seqs", "4"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("ready", lambda: process.poll() is None and get(port, "/health")[0] == 200, 60)
        for path, (text, picture) in ASKED.items():
            status, answer = send(port, path, [text])
            assert status == 200, (path, answer)
            status, answer = send(port, path, [text, picture])
            message = answer["error"]["message"]
            assert status == 400 and message.endswith(".") and "text" in message and len(message) > 20, (path, answer)
            print(path, message)
            assert send(port, path, [text])[0] == 200
    finally:
        process.kill()
        process.wait()
