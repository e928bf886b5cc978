"""Protects: the page to try a model is sent with a policy that lets nothing in, is not there with --no-web, and does in a browser what it says: it streams,
stops, asks again, asks for a key, shows errors as the API says them and markup as text, and is no wider than a phone."""
import base64
import hashlib
import json
import re
import shutil

import pytest

from bare import Bare
from conftest import wait_for
from page_picture import Browser

KEY = "sk-for-the-page"
TOOLS = json.dumps([{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Bare(tmp_path_factory.mktemp("try"), "--api-key", KEY, "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    yield s
    s.stop()


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_what_comes_with_a_page(server, path):
    status, head, body = server.ask(path)
    assert status == 200 and head["content-type"] == "text/html; charset=utf-8"
    assert head["x-content-type-options"] == "nosniff" and head["x-frame-options"] == "DENY" and head["referrer-policy"] == "no-referrer"
    policy = dict(p.strip().split(" ", 1) for p in head["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'" and policy["connect-src"] == "'self'"
    for tag in ("script", "style"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", body.decode(), re.S)
        assert policy[f"{tag}-src"] == f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
    assert not re.search(rb"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b| on\w+=\"", body)

    again = server.ask(path, headers={"If-None-Match": head["etag"]})
    assert again[0] == 304 and again[2] == b"" and again[1]["etag"] == head["etag"]
    assert server.ask(path, headers={"If-None-Match": '"other"'})[0] == 200
    only = server.ask(path, "HEAD")
    assert only[0] == 200 and only[2] == b"" and only[1]["content-length"] == str(len(body)) and only[1]["etag"] == head["etag"]


def test_it_can_be_left_out(tmp_path):
    s = Bare(tmp_path, "--no-web", "--allowed-hosts", "localhost")
    try:
        for path in ("/", "/docs"):
            for method in ("GET", "HEAD", "POST"):
                assert s.ask(path, method)[0] == 404, (method, path)
    finally:
        s.stop()


def test_names_are_looked_at(tmp_path):
    s = Bare(tmp_path)
    try:
        assert s.ask("/", headers={"Host": "evil.example"})[0] == 400 and s.ask("/")[0] == 200
    finally:
        s.stop()


class Page:
    def __init__(self, browser, port):
        self.browser, self.url = browser, f"http://127.0.0.1:{port}/"

    def open(self, path="", width=1280):
        self.browser.call("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=False)
        self.browser.call("Page.navigate", url=self.url + path)
        wait_for("the page", lambda: self("location.href") == self.url + path and self("document.readyState") == "complete")
        return self

    def __call__(self, script):
        return self.browser.evaluate(script)

    def set(self, name, value):
        self(f"document.getElementById('{name}').value = {json.dumps(value)}")

    def press(self, text):
        assert self(f"(b => b && (b.click(), true))([...document.querySelectorAll('button')].findLast(b => b.textContent === {json.dumps(text)} && b.offsetWidth))"), text

    def send(self, text):
        """Through the keyboard, as a person does."""
        self("document.getElementById('text').focus()")
        self.browser.call("Input.insertText", text=text)
        self.key("Enter", 13)

    def key(self, name, code):
        for kind in ("keyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def idle(self):
        wait_for("the answer's end", lambda: self("running === null"))

    def last(self, what=""):
        return self(f"[...document.querySelectorAll('.turn')].pop().querySelector('{what or '.said'}')?.textContent")


@pytest.fixture
def page(server, tmp_path):
    if not shutil.which("chromium"):
        pytest.skip("needs Chromium (tools/deps.sh picture)")
    browser = Browser(tmp_path / "chromium")
    p = Page(browser, server.port).open()
    yield p
    browser.end()


def unlock(page):
    wait_for("it asks for a key", lambda: page("!document.getElementById('ask').hidden"))
    page.set("key", KEY)
    page.press("Use key")
    wait_for("the models are listed", lambda: page("document.getElementById('model').value") == "tiny")
    page.set("temperature", "0")


def test_key(page):
    wait_for("it asks for a key", lambda: "API key is needed" in page("document.getElementById('why').textContent"))
    page.set("key", "wrong")
    page.press("Use key")
    wait_for("it says that it is wrong", lambda: "not known here" in page("document.getElementById('why').textContent"))
    unlock(page)
    assert page("JSON.stringify([Object.keys(sessionStorage), Object.keys(localStorage), document.cookie])") == '[["api-key"],[],""]'


def test_talk(page):
    unlock(page)
    page.send("What is the KV cache?")
    wait_for("it has begun", lambda: page("turns.length") == 2)
    page.idle()
    said = page.last()
    assert said.startswith("The KV cache keeps"), said
    assert re.fullmatch(r"[\d,]+ tokens · [\d.]+ tokens/s · first after [\d.]+ m?s", page.last(".stats"))
    page.press("Regenerate")
    page.idle()
    assert page.last() == said and page("document.querySelectorAll('.turn').length") == 2
    page.set("temperature", "7")
    page.send("Again <img src=x onerror=alert(1)>")
    page.idle()
    assert page.last(".fault") == "`temperature` must be between 0 and 2, got 7."
    assert page("document.images.length") == 0 and page("[...document.querySelectorAll('.turn.user .said')].pop().textContent").startswith("Again <img")


def test_stop(page, server):
    unlock(page)
    page.set("temperature", "2")
    page("const real = request; request = () => ({...real(), ignore_eos: true, max_tokens: 1900})")
    page.send("Tell me a story about Milo.")
    wait_for("some of it is here", lambda: page("turns[1].content.length") > 0)
    page.key("Escape", 27)
    page.idle()
    assert "stopped" in page.last(".stats") and page("turns[1].content.length") > 0
    wait_for("the server has stopped, too", lambda: json.loads(server.ask("/load")[2])["server_load"] == 0)


def test_tools(page):
    unlock(page)
    page.set("tools", TOOLS)
    page.send("What is the weather in Sofia?")
    page.idle()
    assert "get_weather" in page.last(".call") and "Sofia" in page.last(".call")
    assert page("document.getElementById('name').textContent") == "Result of get_weather"
    page.send("12 degrees")
    page.idle()
    assert page("turns.map(t => t.role).join()") == "user,assistant,tool,assistant" and page.last() and not page.last(".fault")


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits(page, width):
    page.open(width=width)
    unlock(page)
    page.send("word" * 200)
    page.idle()
    assert page("document.documentElement.scrollWidth") <= width
    assert page("[...document.querySelectorAll('input, select, textarea')].every(e => e.labels.length || e.ariaLabel)")
    page.open("docs", width)
    wait_for("the API is listed", lambda: page("document.querySelectorAll('details').length") > 5)
    assert page("document.documentElement.scrollWidth") <= width
