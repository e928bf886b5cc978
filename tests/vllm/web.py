"""Paths, methods, keys, origins and headers, for differential.py: what lies around the bodies. Cases as in cases.py."""
import gzip
import json

from cases import CHAT, JSON, PLAIN

WEB = []


def case(name, path, body=None, method="POST", headers=None):
    WEB.append((name, method, path, body, JSON if headers is None else headers))


good = {"model": "tiny", "prompt": "The", "max_tokens": 1, "temperature": 0}
page = {"Origin": "https://page.example"}
for path in ("/v1/models", "/health", "/version", "/ping", "/load", CHAT, "/tokenize"):
    for method in ("GET", "HEAD", "OPTIONS", "DELETE", "PATCH"):
        case(f"web-{method.lower()}{path.replace('/', '-')}", path, None, method, {})
for name, path, body, method in [("slash", PLAIN + "/", good, "POST"), ("slash-get", "/v1/models/", None, "GET"), ("slash-twice", "//v1/models", None, "GET"),
                                 ("slash-inside", "/v1//completions", good, "POST"), ("query", PLAIN + "?api-version=1", good, "POST"),
                                 ("percent", "/v1/%63ompletions", good, "POST"), ("upper", "/V1/completions", good, "POST"), ("no-v1", "/completions", good, "POST"),
                                 ("v1-twice", "/v1" + PLAIN, good, "POST"), ("engines", "/v1/engines/tiny/completions", good, "POST"),
                                 ("dots", "/v1/../v1/models", None, "GET"), ("head-metrics", "/metrics", None, "HEAD"), ("docs", "/docs", None, "HEAD")]:
    case("web-" + name, path, body, method, JSON if body else {})
for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep", "/wake_up", "/reset_prefix_cache", "/v1/audio/transcriptions", "/v1/chat/completions/batch",
             "/inference/v1/generate", "/v1/responses/resp_1/cancel", "/start_profile", "/collective_rpc", "/score", "/rerank", "/classify", "/pooling"):
    case("web-post" + path.replace("/", "-"), path, {"model": "tiny"})
for path in ("/v1/responses/resp_1", "/server_info", "/tokenizer_info", "/v1/batches", "/v1/files"):
    case("web-get" + path.replace("/", "-"), path, None, "GET", {})
for name, more in [("none", {"Authorization": None}), ("wrong", {"Authorization": "Bearer other"}), ("empty", {"Authorization": "Bearer "}), ("lower", {"Authorization": "bearer secret"}),
                   ("basic", {"Authorization": "Basic c2VjcmV0"}), ("bare", {"Authorization": "secret"}), ("spaces", {"Authorization": "Bearer   secret"}),
                   ("x-api-key", {"Authorization": None, "X-Api-Key": "secret"}), ("api-key", {"Authorization": None, "Api-Key": "secret"})]:
    for path in (PLAIN, "/tokenize", "/nope", "/v1/nope"):
        case(f"web-key-{name}{path.replace('/', '-')}", path, good, headers={**JSON, **more})
    case(f"web-key-{name}-health", "/health", None, "GET", more)
    case(f"web-key-{name}-models", "/v1/models", None, "GET", more)
    case(f"web-key-{name}-version", "/version", None, "GET", more)
ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type", "Authorization": None}
case("web-page", PLAIN, good, headers={**JSON, **page})
case("web-page-models", "/v1/models", None, "GET", page)
case("web-page-refused", PLAIN, {**good, "n": 0}, headers={**JSON, **page})
case("web-page-no-key", PLAIN, good, headers={**JSON, **page, "Authorization": None})
case("web-page-asks", PLAIN, None, "OPTIONS", {**page, **ask})
case("web-page-asks-nowhere", "/nope", None, "OPTIONS", {**page, **ask})
case("web-page-other", PLAIN, good, headers={**JSON, "Origin": "https://other.example"})
case("web-page-other-asks", PLAIN, None, "OPTIONS", {"Origin": "https://other.example", **ask})
for name, kind in [("text", "text/plain"), ("json-like", "application/vnd.api+json"), ("list", "application/json, text/plain"), ("odd", "application/json;;"), ("spaces", " application/json ")]:
    case("web-type-" + name, PLAIN, json.dumps(good).encode(), headers={"Content-Type": kind})
for name, kind in [("xml", "application/xml"), ("events", "text/event-stream"), ("none", "")]:
    case("web-accept-" + name, PLAIN, good, headers={**JSON, "Accept": kind})
case("web-stream-accept", PLAIN, {**good, "stream": True}, headers={**JSON, "Accept": "application/json"})
case("web-gzip", PLAIN, gzip.compress(json.dumps(good).encode(), mtime=0), headers={**JSON, "Content-Encoding": "gzip"})
case("web-coding", PLAIN, json.dumps(good).encode(), headers={**JSON, "Content-Encoding": "br"})
case("web-get-body", "/v1/models", b"{}", "GET", JSON)
case("web-utf8", PLAIN, b'{"model": "tiny", "prompt": "a\xff\xfe", "max_tokens": 1}')
case("web-utf16", PLAIN, json.dumps(good).encode("utf-16"))
case("web-deep", PLAIN, b'{"model": "tiny", "prompt": "a", "x": ' + b"[" * 3000 + b"]" * 3000 + b"}")
case("web-deep-prompt", PLAIN, b'{"model": "tiny", "max_tokens": 1, "prompt": ' + b"[" * 3000 + b"]" * 3000 + b"}")
