"""The page of a real daemon in a real browser: it shows what happens while it happens, in any theme and width, and nobody's
text runs. Skipped where there is no Chromium."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.daemon.running import RunningDaemon
from tests.daemon.test_events import configure, later, settled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.root

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")
DEADLINE_MS = 60_000
HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>\x1b[31mred\x00 \u202ereversed"


@contextmanager
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium's own sandbox wants namespaces that root in a container may not have; nothing here is a stranger's page.
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()


def opened(browser: Browser, problems: list[str], **options: Any) -> Page:
    """A page that notes whatever the browser complains of, refused scripts and styles among it."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(DEADLINE_MS)
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    return page


@in_browser
def test_the_page_shows_what_happens_while_it_happens(daemon: RunningDaemon) -> None:
    problems: list[str] = []
    with browser() as chromium:
        page = opened(chromium, problems)
        page.goto(daemon.url)
        page.get_by_text("No functions yet").wait_for()
        daemon.deploy(
            "chatty", f"def f(event):\n print({HOSTILE!r} + event)\n if event == 'bad': raise ValueError(event)"
        )
        page.get_by_role("link", name="chatty").wait_for()
        daemon.run("chatty", "first")
        page.locator("#cold_starts").get_by_text("chatty").wait_for()

        page.get_by_role("link", name="chatty").click()
        page.get_by_role("heading", name="chatty").wait_for()
        page.get_by_role("link", name="Log", exact=True).click()
        daemon.run("chatty", "second")
        shown = page.locator("#log pre").filter(has_text="second").inner_text()
        assert "<script>window.ran" in shown and "red␀ \\u202ereversed" in shown
        assert page.evaluate("window.ran") is None

        page.get_by_role("link", name="Overview").click()
        page.locator("#cold_starts th a").click()
        page.get_by_role("heading", name="Why it was cold").wait_for()
        story = page.locator(".story").inner_text()
        assert "first request of this function" in story and "root Zygote" in story
        assert page.locator(".waterfall tbody tr").count() >= 6
        assert "first" in page.locator("ol.log").inner_text()
        assert daemon.run("chatty", "bad").status == 500
        page.goto(f"{daemon.url}/functions/chatty")
        page.locator("#invocations").get_by_text("ValueError").wait_for()
        page.locator("#failures").get_by_text("f.py:3").wait_for()
        for _ in range(3):
            daemon.run("chatty", "bad")
        page.locator("#failures th").filter(has_text="4").wait_for()
        page.get_by_role("link", name="Failures").last.click()
        assert page.locator(".failure").count() == 1
        page.locator("summary").click()
        page.get_by_text("raise ValueError").first.wait_for()
    assert problems == []


@in_browser
def test_in_any_theme_and_width_nothing_overflows_and_a_first_load_is_small(daemon: RunningDaemon) -> None:
    name = "a-function-whose-name-has-as-many-letters-as-a-name-may-have-000"[:64]
    daemon.deploy(name, "def f(event): return event['x' * 400] if event else event")
    traced = daemon.run(name).headers["x-amzn-requestid"]
    assert daemon.run(name, {"a": 1}).status == 500
    problems: list[str] = []
    grounds = set()
    with browser() as chromium:
        for scheme in ("light", "dark"):
            page = opened(chromium, problems, color_scheme=scheme)
            received = sizes_of(page)
            page.goto(daemon.url)
            page.locator("#state[data-state=live]").wait_for()
            assert 10_000 < sum(received) < 100_000
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            tabs = [f"/functions/{name}{tab}" for tab in ("", "?tab=failures", "?tab=log", "?tab=settings")]
            for path in ("/", *tabs, f"/traces/{traced}", "/failures", "/queue", "/history", "/functions?name=a"):
                page.goto(f"{daemon.url}{path}")
                for width in (360, 800, 1400):
                    page.set_viewport_size({"width": width, "height": 800})
                    assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
            page.context.close()
    assert len(grounds) == 2 and problems == []


def sizes_of(page: Page) -> list[int]:
    """The bytes of each answer as it came over the wire, from now on."""
    received: list[int] = []
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    return received


@in_browser
def test_without_scripts_and_with_a_keyboard_it_is_all_there(daemon: RunningDaemon) -> None:
    daemon.deploy("quiet", "def f(event): return event")
    with browser() as chromium:
        page = opened(chromium, [], java_script_enabled=False)
        page.goto(daemon.url)
        assert page.locator("#state").inner_text() == ""
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.locator(":focus").inner_text() == "quiet":
                break
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="quiet").wait_for()
        page.get_by_role("link", name="Versions and settings").click()
        assert page.get_by_role("region", name="Settings").get_by_text("128 MB, 30 s").count() == 1
        page.get_by_role("link", name="sockd").click()
        assert page.get_by_role("table").count() >= 2
        assert page.get_by_role("region").count() == 8


@in_browser
def test_functions_are_sorted_and_filtered_while_their_numbers_change(daemon: RunningDaemon) -> None:
    for name, count in (("sorted-a", 1), ("sorted-b", 3), ("sorted-c", 2)):
        daemon.deploy(name, "def f(event):\n if event: raise KeyError(event)")
        for number in range(count):
            daemon.run(name, number)
    problems: list[str] = []
    with browser() as chromium:
        page = opened(chromium, problems)
        page.goto(daemon.url)
        page.locator("#state[data-state=live]").wait_for()
        page.get_by_label("Filter functions").fill("SORTED-")
        names = page.locator("#functions tbody tr:not([hidden]) th")
        assert names.all_inner_texts() == ["sorted-a", "sorted-b", "sorted-c"]
        assert page.locator("#filter-count").inner_text().startswith("3 of ")
        page.get_by_role("button", name="Failed").focus()
        page.keyboard.press("Enter")
        assert names.all_inner_texts() == ["sorted-b", "sorted-c", "sorted-a"]
        assert page.locator("th[aria-sort=descending]").inner_text().startswith("Failed")
        for _ in range(4):  # the panel is sent anew, and keeps its order, its filter and the focus
            daemon.run("sorted-a", 1)
        page.locator("#functions tbody tr:first-child th").get_by_text("sorted-a").wait_for()
        assert names.all_inner_texts() == ["sorted-a", "sorted-b", "sorted-c"]
        assert page.locator(":focus").inner_text() == "Failed"
        page.keyboard.press("Enter")
        assert names.all_inner_texts() == ["sorted-c", "sorted-b", "sorted-a"]
        page.get_by_role("link", name="sorted-b").focus()
        for _ in range(2):
            daemon.run("sorted-b", 1)
        page.locator("#functions tr", has_text="sorted-b").locator("td.bad", has_text="4").wait_for()
        assert page.locator(":focus").inner_text() == "sorted-b"
        page.get_by_role("button", name="Name").click()
        assert names.all_inner_texts() == ["sorted-a", "sorted-b", "sorted-c"]
        page.get_by_label("Filter functions").fill("no such name")
        assert names.count() == 0
    assert problems == []


CALLED = """
def f(event):
    print("called with", event)
    if event.get("fail"): raise KeyError("<b>missing</b>")
    return {"got": event["value"], "html": "<script>window.ran = 1</script>"}
"""


@in_browser
@pytest.mark.parametrize("is_sandboxed", [False, True])
def test_a_test_event_is_sent_from_the_page(daemon: RunningDaemon, is_sandboxed: bool) -> None:
    """Also by browsers that get the page in a sandbox, whose origin is null: any but Chromium from 125 on."""
    daemon.deploy("called", CALLED)
    problems: list[str] = []
    with browser() as chromium:
        # What a browser says of itself is asked for, not its behaviour: Chromium without a name gets what others get.
        headers = {"sec-ch-ua": '"Another";v="1"'} if is_sandboxed else {}
        page = opened(chromium, problems, extra_http_headers=headers)
        answer = page.goto(f"{daemon.url}/functions/called")
        assert answer is not None
        assert ("sandbox allow-scripts" in answer.headers["content-security-policy"]) == is_sandboxed
        page.get_by_label("Event (JSON)").fill('{"value": "ä&=+"}')
        page.get_by_role("button", name="Send").click()
        answered = json.loads(page.get_by_role("region", name="Answer").locator("pre").inner_text())
        assert answered["got"] == "ä&=+"
        assert "called with" in page.get_by_role("region", name="Log").inner_text()
        assert page.evaluate("window.ran") is None
        page.get_by_label("Event (JSON)").fill('{"fail": 1}')
        page.get_by_role("button", name="Send").click()
        page.get_by_role("region", name="Error").get_by_text("<b>missing</b>").first.wait_for()
        page.get_by_role("link", name="waterfall").click()
        page.get_by_role("heading", name="Waterfall").wait_for()
        assert page.locator("svg.ticks text").all_text_contents()[0] == "0"
        page.goto(f"{daemon.url}/failures?function=called")
        assert page.locator(".failure code").all_inner_texts() == ["f.py:4"]
        page.locator("summary").first.click()
        page.get_by_text("raise KeyError").first.wait_for()
        page.get_by_text("called with").first.wait_for()
    assert problems == []


@in_browser
@pytest.mark.parametrize("is_sandboxed", [False, True])
def test_a_function_is_rolled_back_disabled_and_enabled_from_the_page(
    daemon: RunningDaemon, is_sandboxed: bool
) -> None:
    name = f"changed-{is_sandboxed}"
    for answer in ("first", "second"):
        daemon.deploy(name, f"def f(event): return {answer!r}")
    problems: list[str] = []
    with browser() as chromium:
        headers = {"sec-ch-ua": '"Another";v="1"'} if is_sandboxed else {}
        page = opened(chromium, problems, extra_http_headers=headers)
        page.goto(f"{daemon.url}/functions/{name}?tab=settings")
        page.get_by_text("Roll back to deploy 1").click()
        page.get_by_role("button", name="Roll back").click()
        page.get_by_role("heading", name="Rolled back").wait_for()
        assert daemon.call(name) == "first"
        page.get_by_role("link", name="Versions and settings").click()
        page.locator("summary").filter(has_text="Disable").click()
        page.get_by_role("button", name="Disable").click()
        page.get_by_role("heading", name="Disabled").wait_for()
        assert daemon.run(name).status == 429
        page.goto(daemon.url)
        page.locator("#functions tr", has_text=name).get_by_text("disabled").wait_for()
        page.goto(f"{daemon.url}/functions/{name}?tab=settings")
        page.get_by_role("button", name="Enable").click()
        page.get_by_role("heading", name="Enabled").wait_for()
        assert daemon.call(name) == "first"
    assert problems == []


@in_browser
def test_a_dead_letter_is_retried_from_the_page(daemon: RunningDaemon) -> None:
    daemon.deploy("letters", "def f(event): raise RuntimeError('no such row in any of the tables of this database')")
    configure(daemon, "letters", max_retries=0)
    later(daemon, "letters", {})
    settled(daemon)
    with browser() as chromium:
        page = opened(chromium, [])
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto(f"{daemon.url}/functions/letters?tab=failures")
        error = page.locator(".telling td").first
        assert "no such row in any of the tables" in error.inner_text()
        assert width(error) > 400
        for address in (page.url, f"{daemon.url}/queue"):
            page.goto(address)
            page.set_viewport_size({"width": 360, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            assert width(error) > 300
        page.get_by_role("button", name="Retry").click()
        page.get_by_role("heading", name="To run again").wait_for()


def width(locator: Locator) -> float:
    box = locator.bounding_box()
    assert box is not None
    return box["width"]


def test_the_hour_is_there_after_a_restart(tmp_path: Path) -> None:
    with contextlib.closing(RunningDaemon.start(tmp_path / "state")) as daemon:
        daemon.deploy("kept", "def f(event): return event['x'] if event else None")
        assert [daemon.run("kept", event).status for event in (None, None, {"y": 1})] == [200, 200, 500]
        assert daemon.terminate() == 0
    path = tmp_path / "state" / "history.json"
    kept = json.loads(path.read_text())
    # The minute that is not over is not shown: it becomes the one before.
    kept["minutes"] = {int(number) - 1: row for number, row in kept["minutes"].items()}
    path.write_text(json.dumps(kept))
    with contextlib.closing(RunningDaemon.start(tmp_path / "state")) as daemon:
        for address in ("/history", "/history?function=kept"):
            html = daemon.request("GET", address).body.decode()
            assert "3 requests, 1 failed; at most 3 a minute" in html
        daemon.remove("kept")
        assert "No request ended" in daemon.request("GET", "/history?function=kept").body.decode()


APP = """
async def app(scope, receive, send):
    opener = scope["query_string"] or b"unsafe-none"
    headers = [(b"content-type", b"text/html"), (b"cross-origin-opener-policy", opener)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"<!doctype html><title>app</title>"})
"""


@in_browser
@pytest.mark.parametrize("opener", ["unsafe-none", "same-origin", "noopener-allow-popups"])
def test_a_script_under_this_address_reads_nothing_of_the_page(daemon: RunningDaemon, opener: str) -> None:
    """Whatever a function's page, which is of the page's origin, says of those that it opens."""
    daemon.deploy("web", APP)
    read = "() => { try { return window.shown.document.body.innerText } catch (error) { return `${error.name}` } }"
    with browser() as chromium:
        page = opened(chromium, [])
        page.goto(f"{daemon.url}/run/web?{opener}")
        assert page.title() == "app"
        for path in ("/", "/events", "/functions/web"):
            assert page.evaluate(f"fetch('{path}').then(answer => answer.status)") == 403
        form = "{method: 'POST', body: new URLSearchParams({event: '{}', token: 'guessed'})}"
        post = f"fetch('/functions/web/test-events', {form}).then(answer => answer.status)"
        assert page.evaluate(post) == 403
        for first in ("/", f"/run/web?{opener}"):
            with page.expect_popup() as popup:
                page.evaluate(f"window.shown = window.open('{first}'); 0")
            popup.value.wait_for_load_state()
            popup.value.goto(daemon.url)
            popup.value.get_by_role("heading", name="Functions").wait_for()
            assert page.evaluate(read) in ("SecurityError", "TypeError")


def test_a_function_may_not_look(daemon: RunningDaemon) -> None:
    code = (
        "import urllib.error, urllib.request\n"
        "def f(event):\n"
        " try: return urllib.request.urlopen(event, timeout=5).status\n"
        " except urllib.error.HTTPError as error: return error.code\n"
    )
    daemon.deploy("looks", code)
    assert daemon.request("GET", "/").status == 200
    assert [daemon.call("looks", f"{daemon.url}{path}") for path in ("/", "/functions/looks", "/events")] == [403] * 3


def test_the_end_of_the_daemon_ends_open_pages(daemon: RunningDaemon) -> None:
    """The module's daemon must end in order, and soon: see its fixture."""
    import http.client

    page = daemon.request("GET", "/").body.decode()
    address = page.partition('data-events="')[2].partition('"')[0].replace("&amp;", "&")
    stream = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
    stream.request("GET", address)
    answer = stream.getresponse()
    assert answer.status == 200
    daemon.signal(15)
    assert answer.read().startswith(b"retry:")
    stream.close()
