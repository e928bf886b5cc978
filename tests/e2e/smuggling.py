"""Requests that two programs might read differently, one a case: name, bytes, what a server may do.

Each case ends with a second request, for /v1/models/SMUGGLED, that is part of the first one's body, or behind it on the connection:
  REFUSED  the first is refused and the connection closed; the second is never answered
  ONE      the first is served, the second is its body and never answered
  TWO      both are served: the first ended before the second began
  LENIENT  refused, or both are served: libmicrohttpd takes what others refuse, but ends the request at the same byte
"""
REFUSED, ONE, TWO, LENIENT = "refused", "one", "two", "lenient"

SECOND = b"GET /v1/models/SMUGGLED HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
BODY = b'{"model":"tiny","prompt":"a","max_tokens":1}'
JSON = b"Content-Type: application/json\r\n"


def post(headers, rest, path=b"/v1/completions", version=b"HTTP/1.1"):
    return b"POST " + path + b" " + version + b"\r\nHost: x\r\n" + JSON + headers + b"\r\n" + rest


def get(line=b"GET /v1/models HTTP/1.1", headers=b"Host: x\r\n", end=b"\r\n"):
    return line + b"\r\n" + headers + end + SECOND


def length(value, name=b"Content-Length", colon=b": "):
    return post(name + colon + value + b"\r\n", BODY + SECOND)


def coding(value, name=b"Transfer-Encoding", colon=b": ", more=b"", version=b"HTTP/1.1"):
    return post(name + colon + value + b"\r\n" + more, chunk(BODY) + b"0\r\n\r\n" + SECOND, version=version)


def chunk(data):
    return b"%x\r\n" % len(data) + data + b"\r\n"


def chunks(raw):
    return post(b"Transfer-Encoding: chunked\r\n", raw + SECOND)


N = b"%d" % len(BODY)
X = b"%x" % len(BODY)
CASES = []


def add(what, expect, *pairs):
    CASES.extend((f"{what}: {name}", raw, expect) for name, raw in pairs)


add("plain", TWO, ("length", length(N)), ("chunked", coding(b"chunked")), ("get", get()), ("head", get(b"HEAD /v1/models HTTP/1.1")),
    ("length zero", get(headers=b"Host: x\r\nContent-Length: 0\r\n")))

# Content-Length
add("length", REFUSED, *[(repr(v), length(v)) for v in [
    b"+" + N, b"-" + N, b"0x" + X, N + b" " + N, N + b"," + N, N + b", " + N, N + b";", N + b".0", b"", N + b"\t" + N, b"five", b"1e1", b"\xb5",
    N + b"\x0b", b"\x0b" + N, b"'" + N + b"'", b'"' + N + b'"', b"9" * 19, b"9" * 40, b"18446744073709551616", b"18446744073709551615",
    b"9223372036854775808", b"-1", b"0 " + N, N + b"h", b"#" + N, N + b"\xa0", b"\xa0" + N, b"NaN", b"0b1", b"0o7", N + b"\x7f"]])
add("length twice", REFUSED, *[(repr((a, b)), post(b"Content-Length: " + a + b"\r\nContent-Length: " + b + b"\r\n", BODY + SECOND)) for a, b in [
    (N, N), (N, b"0"), (b"0", N), (N, b"999"), (N, b""), (b"", N), (N, b"+" + N)]])
add("length named", REFUSED, *[(repr((n, c)), post(n + c + N + b"\r\n", BODY + SECOND)) for n, c in [
    (b"Content-Length", b" : "), (b"Content-Length", b"\t: "), (b"Content-Length\x00", b": "), (b"Content-Length\x0b", b": "), (b"Content Length", b": "),
    (b"Content-Length\xa0", b": "), (b"Content-Length(", b": "), (b"Content-Length", b"\x0b: ")]])
add("length as usual", TWO, ("leading zero", length(b"0" + N)), ("space before", length(b"  " + N)),
    ("tab before", length(b"\t" + N)), ("lower case", length(N, b"content-length")), ("no space", length(N, colon=b":")))

# Transfer-Encoding
add("coding", REFUSED, *[(repr(v), coding(v)) for v in [
    b"chunked, chunked", b"chunked,chunked", b"gzip, chunked", b"chunked, gzip", b"identity", b"identity, chunked", b"chunked, identity", b"xchunked",
    b"chunkedx", b"chunk", b"cow", b"", b"\x0bchunked", b"chunked\x0b", b"\x0cchunked", b'"chunked"', b"'chunked'", b"chunked;q=1", b"chunked;", b"chunked,",
    b",chunked", b", chunked", b"\x00chunked", b"chun\x00ked", b"chunked\xa0", b"\xa0chunked", b"chunked\x7f", b"deflate", b"gzip", b"compress",
    b"trailers", b"chunked trailers", b"c hunked", b"chunked\x1f", b"chunked:", b"(comment) chunked", b"0", b"chun ked", b"\xffchunked"]])
add("coding named", REFUSED, *[(repr((n, c)), coding(b"chunked", n, c)) for n, c in [
    (b"Transfer-Encoding", b" : "), (b"Transfer-Encoding", b"\t: "), (b"Transfer-Encoding\x00", b": "), (b"Transfer-Encoding\x0b", b": "),
    (b"Transfer Encoding", b": "), (b"Transfer-Encoding\xa0", b": "), (b"Transfer-Encoding", b"\x0b: ")]])
add("coding and length", REFUSED, *[(repr((a, b)), post(a + b, chunk(BODY) + b"0\r\n\r\n" + SECOND)) for a, b in [
    (b"Transfer-Encoding: chunked\r\n", b"Content-Length: 4\r\n"), (b"Content-Length: 4\r\n", b"Transfer-Encoding: chunked\r\n"),
    (b"Transfer-Encoding: chunked\r\n", b"Content-Length: 0\r\n"), (b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n"),
    (b"Transfer-Encoding: chunked\r\n", b"Content-Length: 999\r\n"), (b"Transfer-Encoding: identity\r\n", b"Content-Length: 5\r\n"),
    (b"Transfer-Encoding: CHUNKED\r\n", b"Content-Length: 5\r\n"), (b"transfer-encoding: chunked\r\n", b"content-length: 5\r\n"),
    (b"Transfer-Encoding: xchunked\r\n", b"Content-Length: 5\r\n"), (b"Transfer-Encoding:\r\n", b"Content-Length: 5\r\n")]])
add("coding twice", REFUSED, *[(repr((a, b)), coding(a, more=b"Transfer-Encoding: " + b + b"\r\n")) for a, b in [
    (b"chunked", b"chunked"), (b"chunked", b"identity"), (b"identity", b"chunked"), (b"gzip", b"chunked"), (b"chunked", b"x"), (b"chunked", b"")]])
add("coding in HTTP/1.0", REFUSED, ("chunked", coding(b"chunked", version=b"HTTP/1.0")),
    ("keep-alive", coding(b"chunked", version=b"HTTP/1.0", more=b"Connection: keep-alive\r\n")))
add("coding as usual", TWO, ("upper case", coding(b"CHUNKED")), ("mixed case", coding(b"ChUnKeD")), ("space", coding(b" chunked")),
    ("lower case name", coding(b"chunked", b"transfer-encoding")), ("no space", coding(b"chunked", colon=b":")))

# Chunks
END = b"0\r\n\r\n"
add("chunk", REFUSED, *[(repr(v), chunks(v + b"\r\n" + BODY + b"\r\n" + END)) for v in [
    b"0x" + X, b"+" + X, b"-" + X, b"g", b"", b"x", b"1" * 17, b"f" * 16, b"f" * 17, b"f" * 40, b"8000000000000000", b"7fffffffffffffff", b"-1", b"1.0",
    X + b"\x00", X + b"h", b"\x0b" + X, b"\xef\xbc\x95", b"\\x5", b"'" + X + b"'", b"5_", b"@"]])
add("chunk end", REFUSED, ("no end of data", chunks(X + b"\r\n" + BODY + END)), ("data too long", chunks(X + b"\r\n" + BODY + b"xx\r\n" + END)),
    ("data too short", chunks(b"ff\r\n" + BODY + b"\r\n" + END)), ("garbage for an end", chunks(X + b"\r\n" + BODY + b"ab" + END)))
add("chunk as usual", TWO, ("leading zeros", chunks(b"000" + X + b"\r\n" + BODY + b"\r\n" + END)), ("upper case", chunks(X.upper() + b"\r\n" + BODY + b"\r\n" + END)),
    ("last with zeros", chunks(chunk(BODY) + b"000\r\n\r\n")), ("trailer", chunks(chunk(BODY) + b"0\r\nX-Trailer: a\r\n\r\n")),
    ("two", chunks(chunk(BODY[:7]) + chunk(BODY[7:]) + END)), ("trailer that names a length", chunks(chunk(BODY) + b"0\r\nContent-Length: 9\r\n\r\n")),
    ("trailer that names a coding", chunks(chunk(BODY) + b"0\r\nTransfer-Encoding: x\r\n\r\n")),
    ("extension", chunks(X + b";name=value\r\n" + BODY + b"\r\n" + END)))
add("chunk size of the second request", ONE, ("as data", post(b"Transfer-Encoding: chunked\r\nConnection: close\r\n", chunk(b" " * 8 + SECOND) + END)))

# Request line
add("line", REFUSED, *[(repr(v), get(v)) for v in [
    b"GET /v1/models  HTTP/1.1", b"GET\t/v1/models\tHTTP/1.1", b"GET /v1/models", b"GET /v1/models HTTP/0.9", b"GET /v1/models HTTP/2.0",
    b"GET /v1/models HTTP/1.2", b"GET /v1/models HTTP/1.1x", b"GET /v1/models http/1.1", b"GET /v1/models HTTP/11", b"GET /v1/models HTTP/1.", b"GET /v1/models HTTP",
    b"GET /v1/models HTTP/1.1 x", b"GET http://x y/v1/models HTTP/1.1", b"GET http:///v1/models HTTP/1.1", b"GET x:80 HTTP/1.1", b"CONNECT x:80 HTTP/1.1", b"GET * HTTP/1.1", b"GET v1/models HTTP/1.1",
    b"GET /v1/mod els HTTP/1.1", b"GET /v1/models\x7f HTTP/1.1", b"GET /v1/mod\xe9ls HTTP/1.1", b"GET /v1/models#a HTTP/1.1",
    b"GET \\v1\\models HTTP/1.1", b"GET /v1\\models HTTP/1.1", b"G\x00T /v1/models HTTP/1.1", b"G(T /v1/models HTTP/1.1", b"G\xc9T /v1/models HTTP/1.1",
    b"GETTTTTTTTTTTTTTTTTT /v1/models HTTP/1.1", b"GET /" + b"a" * 5000 + b" HTTP/1.1", b"GET /" + b"a" * 60000 + b" HTTP/1.1", b" GET /v1/models HTTP/1.1",
    b"GET /v1/models\tHTTP/1.1", b"GET /v1/models\x0bHTTP/1.1", b"GET /v1/models?a=\x01 HTTP/1.1"]])
add("line as usual", TWO, *[(repr(v), get(v)) for v in [b"GET http://x/v1/models HTTP/1.1", b"GET HTTP://x:80/v1/models HTTP/1.1"]])
add("host", REFUSED, *[(repr(v), get(headers=v)) for v in [
    b"", b"Host: x\r\nHost: x\r\n", b"Host: x\r\nHost: y\r\n", b"Host: x/y\r\n", b"Host: x?y\r\n", b"Host: x#y\r\n", b"Host: x@y\r\n", b"Host: x y\r\n", b"Host: x\ty\r\n",
    b"Host: x:\r\n", b"Host: x:a\r\n", b"Host: x:123456\r\n", b"Host: :80\r\n", b"Host: [::1\r\n", b"Host: []\r\n", b"Host: [x]\r\n", b"Host: x,y\r\n", b"Host: x\\y\r\n",
    b"Host: x%2fy\r\n", b"Host: \xe9\r\n", b"Host: x:80:80\r\n", b"Host: [::1]x\r\n", b"Host: http://x\r\n", b"Host : x\r\n"]])
add("host as usual", TWO, *[(repr(v), get(headers=v)) for v in [
    b"Host: example.org\r\n", b"Host: example.org:8000\r\n", b"Host: [::1]:8000\r\n", b"Host: 10.0.0.1\r\n", b"host: x\r\n", b"Host:x\r\n", b"Host: a_b.c\r\n", b"Host:\r\n"]])

# Headers
add("header", REFUSED, *[(repr(v), get(headers=b"Host: x\r\n" + v + b"\r\n")) for v in [
    b"no colon", b"a b: c", b"a\x00b: c", b"a\x01b: c", b"a: b\x01c", b"a: b\x7fc", b"(a): b", b"a/b: c", b"a[b]: c", b"a\xe9: c", b"a\tb: c", b"a : c",
    b"Authorization: a\r\nAuthorization: b", b"Content-Type: a\r\nContent-Type: b", b"Expect: a\r\nExpect: b", b"X-Api-Key: a\r\nx-api-key: b", b"Expect: 200-ok",
    b"Content-Encoding: br", b"Content-Encoding: gzip\r\nContent-Encoding: identity", b"Content-Encoding:", b"a: " + b"b" * 17000, b"\r\n".join([b"a: b"] * 101),
    b"\r\n".join([b"a%d: " % i + b"b" * 600 for i in range(30)]), b"a: " + b"b" * 70000, b"\r\n".join([b"a: b"] * 9000)]])
add("header as usual", TWO, *[(repr(v), get(headers=b"Host: x\r\n" + v + b"\r\n")) for v in [
    b"a: b", b"a:", b"a: b\tc", b"a: \xe9", b"a!#$%&'*+.^_`|~-: b", b"a: b:c", b"a: b\r\na: c", b"\r\n".join([b"a: b"] * 60), b"a: " + b"b" * 8000, b"Upgrade: h2c",
    b"Connection: keep-alive", b"X-HTTP-Method-Override: POST", b"X-Forwarded-Host: y", b"Content-Length-Extra: 5", b"X-Transfer-Encoding: chunked",
    b"Content-Encoding: gzip", b"Content-Encoding: identity"]])

# Lines and folds
add("line end", LENIENT, ("LF", get(end=b"\r\n").replace(b"\r\n", b"\n")), ("LF before the body", length(N).replace(b"\r\n\r\n", b"\r\n\n", 1)),
    ("LF in one header", get(headers=b"Host: x\na: b\r\n")), ("LF in the line", get().replace(b"\r\n", b"\n", 1)), ("empty line first", b"\r\n" + get()),
    ("LF first", b"\n" + get()), ("two empty lines first", b"\r\n\r\n" + get()), ("CR in a value", get(headers=b"Host: x\r\na: b\rc\r\n")),
    ("CR CR LF", get(headers=b"Host: x\r\na: b\r\r\n")), ("LF CR", get(headers=b"Host: x\r\na: b\n\r")), ("CR alone", get(headers=b"Host: x\ra: b\r\n")),
    ("chunk with LF", chunks(X + b"\n" + BODY + b"\r\n" + END)), ("data with LF", chunks(X + b"\r\n" + BODY + b"\n" + END)), ("last with LF", chunks(chunk(BODY) + b"0\n\n")),
    ("chunk with CR", chunks(X + b"\r" + BODY + b"\r\n" + END)), ("chunk with CR CR LF", chunks(X + b"\r\r\n" + BODY + b"\r\n" + END)),
    ("space behind a chunk's size", chunks(X + b" \r\n" + BODY + b"\r\n" + END)), ("space before a chunk's size", chunks(b" " + X + b"\r\n" + BODY + b"\r\n" + END)),
    ("tab behind a chunk's size", chunks(X + b"\t\r\n" + BODY + b"\r\n" + END)), ("extension with LF", chunks(X + b";a=\n" + BODY + b"\r\n" + END)),
    ("extension with quotes", chunks(X + b';a="\r\n"\r\n' + BODY + b"\r\n" + END)), ("extension alone", chunks(X + b";\r\n" + BODY + b"\r\n" + END)))
add("fold", LENIENT, *[(repr(v), get(headers=b"Host: x\r\n" + v + b"\r\n")) for v in [
    b"a: b\r\n c", b"a: b\r\n\tc", b"a:\r\n b", b"a: b\r\n ", b"a: b\r\n Content-Length: 5", b"a: b\r\n Transfer-Encoding: chunked"]])
add("fold of the length", LENIENT, ("value", length(b"\r\n " + N)), ("coding", coding(b"\r\n chunked")), ("coding with tab", coding(b"\r\n\tchunked")))
add("fold first", REFUSED, ("space", get(headers=b" Host: x\r\n")), ("tab", get(headers=b"\tHost: x\r\n")))
add("zero byte", LENIENT, ("path", get(b"GET /v1/models\x00 HTTP/1.1")), ("host", get(headers=b"Host: x\x00\r\n")), ("value", get(headers=b"Host: x\r\na: b\x00c\r\n")),
    ("no name", get(headers=b"Host: x\r\n: no name\r\n")), ("two spaces", get(b"GET  /v1/models HTTP/1.1")))
add("behind a value", LENIENT, ("length and zero", length(N + b"\x00")), ("length and space", length(N + b" ")), ("coding and zero", coding(b"chunked\x00")),
    ("coding and space", coding(b"chunked ")))
