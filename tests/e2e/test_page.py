"""The status page as a browser lays it out, on a phone and on a desk: its links are there, can be hit and lead somewhere, and nothing is wider
than the window."""
import shutil

import pytest

from conftest import get, wait_for
from page_picture import Browser

WIDTHS = (390, 1280)
LINKS = {"API": "/api/v1/servers", "Metrics": "/metrics", "Runbook": "/runbook"}
# What is hit in the middle of each link, after it was scrolled to, and its box.
SEEN = """[...document.querySelectorAll('a')].map(a => {
    a.scrollIntoView({block: 'center'});
    const r = a.getBoundingClientRect(), hit = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2);
    return {text: a.textContent.trim(), href: a.getAttribute('href'), hit: hit === a || a.contains(hit), left: r.left, right: r.right, width: r.width, height: r.height};
})"""
WIDEST = """[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('[style*="overflow"], svg'))
    .slice(0, 5).map(e => e.tagName + '.' + e.className + ' ' + Math.round(e.getBoundingClientRect().right))"""


@pytest.fixture
def browser(tmp_path):
    if not shutil.which("chromium"):
        pytest.skip("needs Chromium (tools/deps.sh picture)")
    b = Browser(tmp_path / "chromium")
    yield b
    b.end()


def opened(browser, url, width):
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=False)
    browser.call("Page.navigate", url=url)
    wait_for(f"{url} is laid out", lambda: browser.evaluate("document.readyState") == "complete" and browser.evaluate("location.href") == url)


@pytest.mark.parametrize("width", WIDTHS)
def test_links_can_be_hit_and_nothing_overflows(appliance, browser, width):
    a = appliance()
    a.ready()
    for path in ("/", "/runbook"):
        opened(browser, f"http://127.0.0.1:{a.page}{path}", width)
        assert browser.evaluate("innerWidth") == width
        assert browser.evaluate("document.documentElement.scrollWidth") <= width, (path, browser.evaluate(WIDEST))
    opened(browser, f"http://127.0.0.1:{a.page}/", width)
    seen = {s["text"]: s for s in browser.evaluate(SEEN)}
    for text, href in LINKS.items():
        s = seen[text]
        assert s["href"] == href and s["hit"], s
        assert s["left"] >= 0 and s["right"] <= width and s["width"] >= 20 and s["height"] >= 12, s
        assert get(a.page, href)[0] == 200, href
