"""Protects: clients that render and count themselves (lm-eval) get the tokenizer's configuration where it is allowed, as vLLM gives it."""
import json

from bare import Bare
from conftest import MODEL


def test_tokenizer_info(tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    s = Bare(tmp_path, "--enable-tokenizer-info-endpoint", "--chat-template", template)
    try:
        status, _, text = s.ask("/tokenizer_info")
        config, told = json.loads((MODEL / "tokenizer_config.json").read_text()), json.loads(text)
        assert status == 200 and told.pop("chat_template") == template.read_text()
        for name in ("chat_template", "vocab_file", "merges_file"):
            config.pop(name, None)
        assert told == config and "eos_token" in told
    finally:
        s.stop()


def test_not_told(tmp_path):
    s = Bare(tmp_path)
    try:
        status, _, text = s.ask("/tokenizer_info")
        assert status == 404 and "--enable-tokenizer-info-endpoint" in json.loads(text)["error"]["message"]
    finally:
        s.stop()
