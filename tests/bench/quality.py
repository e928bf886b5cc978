"""What quantization costs in quality: a model's log probabilities of a held-out text, through the real server, beside those of the same model
as it is. Used by bench_quality.py and tests/e2e/test_quality.py.

The server reports the 20 most likely tokens of a position. The divergence is that of both distributions over those tokens that both lists hold
and one place for all others: a lower bound of the whole, which for a list that covers nearly all is nearly the whole."""
import http.client
import json
import math
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from demo import free_port  # noqa: E402

TEXT = ROOT / "tests/fixtures/heldout.jsonl"
TOP = 20


def post(port, path, body, timeout=300):
    """The status and body of a POST."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, data


class Server:
    """evenkeel-server on a free port, for a with statement."""

    def __init__(self, binary, model, *flags):
        self.port = free_port(21000)
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([binary, "--model", model, "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(self.port), *flags],
                                        stdout=self.log, stderr=self.log)

    def __enter__(self):
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if post(self.port, "/tokenize", {"prompt": "x"})[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        self.__exit__()
        self.log.seek(0)
        raise RuntimeError("the server does not answer: " + self.log.read().decode(errors="replace")[-500:])

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def ask(self, path, body):
        status, answer = post(self.port, path, body)
        if status != 200:
            raise RuntimeError(f"{path}: {status} {answer[:300]!r}")
        return json.loads(answer)


def documents(path, most=None):
    """A line of JSON each ({"text"}, or {"messages"} with "tools"), or paragraphs of a plain text."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    if str(path).endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()][:most]
    return [{"text": part} for part in text.split("\n\n") if part.strip()][:most]


def tokens_of(server, document, most=1024):
    body = {"prompt": document["text"]} if "text" in document else {**document, "add_generation_prompt": False}
    return server.ask("/tokenize", {"model": "m", **body})["tokens"][:most]


def scores(server, prompts):
    """For each token but the first of each prompt: (its log probability, {id: log probability} of the most likely)."""
    out = []
    for tokens in prompts:
        answer = server.ask("/v1/completions", {"model": "m", "prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": TOP})
        for token, row in zip(tokens[1:], answer["choices"][0]["prompt_logprobs"][1:]):
            row = {int(k): (v["logprob"], v["rank"]) for k, v in row.items()}
            out.append((row[token][0], {k: lp for k, (lp, rank) in row.items() if rank <= TOP}))
    return out


def divergence(p, q):
    both = p.keys() & q.keys()
    terms = [(math.exp(p[k]), math.exp(q[k])) for k in both]
    terms.append((1 - sum(a for a, _ in terms), 1 - sum(b for _, b in terms)))
    return max(0.0, sum(a * math.log(a / max(b, 1e-9)) for a, b in terms if a > 1e-9))


def compare(reference, other):
    """Perplexity of `other`, its share of positions with the same most likely token, mean divergence in nats."""
    n = len(reference)
    agree = sum(max(p, key=p.get) == max(q, key=q.get) for (_, p), (_, q) in zip(reference, other))
    return {"perplexity": math.exp(-sum(lp for lp, _ in other) / n), "top1": agree / n,
            "kl": sum(divergence(p, q) for (_, p), (_, q) in zip(reference, other)) / n}
