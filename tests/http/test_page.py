"""The chat page in headless Chromium, with the network off but for the server."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http.page import chat_page
from ninfer_gateway_http.settings import ServerSettings

CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
TEXT = """Here is **how**, with `code`:

```python
print("<b>not bold</b>")
```

- one
- two

<img src=x onerror="document.title='injected'"> & done."""

WATCH = """() => {
  window.lengths = [];
  new MutationObserver(() => {
    const text = document.querySelector('.assistant .text');
    if (text) lengths.push(text.textContent.length);
  }).observe(document.querySelector('#log'), {childList: true, subtree: true});
}"""


def test_the_page_asks_for_nothing_from_outside(server):
    reply = server.request("/")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    for sign in ('src="', "@import", "url(", "//cdn", "innerHTML", "eval("):
        assert sign not in reply.text
    assert reply.text.encode() == chat_page().body


@pytest.fixture(scope="module")
def browser():
    if "NINFER_BROWSER" not in os.environ:
        if CHROMIUM is None:
            pytest.skip("no chromium on this machine; .ci/run installs it for its second stage")
        pytest.importorskip("playwright", reason="no playwright; .ci/run installs it")
    import playwright.sync_api as playwright

    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page of a new profile; errors of its scripts fail the test."""
    context = browser.new_context(viewport={"width": 1000, "height": 760})
    page = context.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda r: problems.append(r.url) if "127.0.0.1" not in r.url else None)
    page.set_default_timeout(15_000)
    yield page
    context.close()
    assert [p for p in problems if not p.startswith("data:")] == []


def say(page, text):
    page.fill("#text", text)
    page.press("#text", "Enter")


def finished(page):
    page.wait_for_selector("#send:visible")
    return page.inner_text("#log .assistant:last-child")


def test_send_stream_and_reload(server, page):
    timed = {"interval": 0.005, "reasoning": "Let me think about it."}
    server.engine.script = lambda prompt, options: Reply.of(TEXT, **timed)
    page.goto(server.url)
    page.wait_for_selector("#state.good")
    assert "scripted" in page.inner_text("#model")
    page.evaluate(WATCH)
    say(page, "Show <i>me</i>")
    page.wait_for_selector("#stop:visible")
    whole = finished(page)
    lengths = page.evaluate("lengths")
    assert len(set(lengths)) > 3
    assert "& done." in whole
    assert "tokens/s" in whole
    assert page.inner_text(".user") == "Show <i>me</i>"
    assert page.inner_text(".block pre") == 'print("<b>not bold</b>")'
    assert page.inner_text(".block span") == "python"
    assert page.inner_text(".text strong") == "how"
    assert page.locator(".text li").count() == 2
    assert page.locator("#log img, #log i, #log b").count() == 0
    assert page.title() == "scripted · NInfer"
    assert not page.evaluate("document.querySelector('details').open")
    page.click("summary")
    assert "Let me think about it." in page.inner_text("details")
    if folder := os.environ.get("NINFER_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / "chat_page.png")
    page.reload()
    page.wait_for_selector("#state.good")
    assert page.inner_text(".user") == "Show <i>me</i>"
    assert "& done." in page.inner_text(".assistant")
    say(page, "And again")
    finished(page)
    sent = server.engine.requests[-1][0].messages
    assert [m["role"] for m in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == TEXT
    page.click("#new")
    page.wait_for_selector(".empty")
    page.reload()
    page.wait_for_selector(".empty")


def test_stop_keeps_what_came_and_cancels(server, page, eventually):
    server.engine.script = lambda prompt, options: Reply.of("word " * 400, interval=0.02)
    page.goto(server.url)
    say(page, "Talk")
    page.wait_for_selector(".assistant .text")
    page.click("#stop")
    text = finished(page)
    assert text.startswith("word")
    assert "stopped" in text
    eventually(lambda: server.engine.stats().running == 0)
    page.reload()
    assert page.inner_text(".assistant").startswith("word")


def test_settings_reach_the_model(server, page):
    page.goto(server.url)
    page.click("#options")
    for name, value in {"system": "Be brief.", "temperature": "0.3", "max_tokens": "4"}.items():
        page.fill(f"#{name}", value)
    page.select_option("#thinking", "off")
    say(page, "A long answer")
    assert "length" in finished(page)
    prompt, options = server.engine.requests[-1]
    assert prompt.messages[0] == {"role": "system", "content": "Be brief."}
    assert (options.sampling.temperature, options.max_new_tokens) == (0.3, 4)
    assert prompt.chat.thinking is False
    page.reload()
    assert page.input_value("#temperature") == "0.3"


def test_tool_calls_are_shown_and_answered(server, page):
    def script(prompt, options):
        if prompt.messages[-1]["role"] == "tool":
            return Reply.of("It is " + prompt.messages[-1]["content"])
        return Reply.of("").call("weather", '{"city"', ': "Oslo"}')

    server.engine.script = script
    page.goto(server.url)
    page.click("#options")
    tools = '[{"type": "function", "function": {"name": "weather", "parameters": {}}}]'
    page.fill("#tools", tools)
    say(page, "How is it in Oslo?")
    page.wait_for_selector(".call textarea")
    assert "calls weather" in page.inner_text(".call")
    assert '"city": "Oslo"' in page.inner_text(".call pre")
    page.fill(".call textarea", "sunny")
    page.click("text=Send results")
    page.wait_for_selector("text=It is sunny")


def test_a_key_is_asked_for_and_stays_in_the_tab(serve, page):
    server = serve(settings=ServerSettings(drain=0.0, api_keys=("secret",)))
    assert server.request("/").status == 401
    page.goto(server.url)
    page.wait_for_selector("#state.bad")
    page.wait_for_selector("#key:visible")
    page.fill("#key", "secret")
    page.press("#key", "Tab")
    page.wait_for_selector("#state.good")
    say(page, "hello")
    assert "hello" in finished(page)
    assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
    page.reload()
    page.wait_for_selector("#state.good")


def test_errors_are_shown(server, page):
    def broken(prompt, options):
        raise ZeroDivisionError

    server.engine.script = broken
    page.goto(server.url)
    say(page, "hello")
    assert "500: internal error" in finished(page)
