"""A small OpenAI client for the demo and the tests: standard library only, streaming, with the time of each piece."""
import http.client
import json
import time


def stream(port, path, body, timeout=60, headers=None):
    """Sends one streaming request; yields (seconds since the request, text) per piece and, last, (seconds, usage dict)."""
    begin = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    body = dict(body, stream=True, stream_options={"include_usage": True})
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{path}: status {answer.status}: {answer.read(500).decode(errors='replace')}")
    usage = {}
    for line in answer:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(event["error"].get("message", "error in the stream"))
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            if text:
                yield time.monotonic() - begin, text
    connection.close()
    yield time.monotonic() - begin, usage


def get(port, path, timeout=5):
    """The status and body of a GET."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body
