"""The page over a real socket: what it shows, and what every answer of it carries."""

from __future__ import annotations

import gzip
import re

import pytest

from sockd.http.page import (
    function_views,
    views,
    words,
)
from sockd.http.page.page import Page
from sockd.http.page.parts import TABS
from sockd.http.page.responses import sandboxed
from sockd.observe.failure_groups import FailureGroup, FailureKey
from tests.http.page.fake_page_worker import FAILED_ID, HOUR_S, REQUEST_ID, STARTED_S, FakePageWorker
from tests.http.page.page_reader import read
from tests.http.raw import get, post, raw
from tests.http.worker_answers import SERVICE

pytestmark = pytest.mark.anyio

PAGES = (
    "/",
    "/functions/echo",
    "/functions/echo?tab=failures",
    "/functions/echo?tab=log",
    "/functions/echo?tab=settings",
    "/functions/echo?tab=none",
    "/history",
    "/history?function=echo",
    f"/traces/{REQUEST_ID}",
    "/functions/none",
    "/traces/none",
    "/failures",
    "/failures?function=echo",
    "/queue",
    "/queue?function=echo",
    f"/queue/{REQUEST_ID}",
    "/queue/none",
    "/workers",
    "/functions?name=e",
    "/functions?name=nothing",
    "/static/page.css",
    "/static/x",
)
OF_ITSELF = b"http://ab.lambda-url.localhost:5000/"
"""A function URL, which a page shows and does not load."""


async def test_the_page_tells_of_functions_zygotes_caches_and_invocations(port: int) -> None:
    async with raw(port) as client:
        reply = await client.ask(get("/"))
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    text = squeezed(reply.body.decode())
    for words_of_it in (
        "2 functions",
        "thumbnails",
        "numpy",
        "grpcio==1.0",
        "90\u202f%",
        "75\u202f%",
        "Requests, last 60 s 120 answered; 2.0 a second on average",
        "Cold, last 60 s 25\u202f% 30 of them",
        "Running now",
        "2 of 10, 1 waiting",
        "Cold starts the newest 12 that are remembered since the worker started, 2023-11-1",
        f"Last hour by minute, {words.clock(HOUR_S)[:5]} to {words.clock(HOUR_S + 3600)[:5]}, also before a restart",
        "Requests 1\u202f200 requests, 30 failed; at most 120 a minute",
    ):
        assert words_of_it in text


async def test_a_functions_page_has_tabs_and_each_has_its_own_and_no_more(port: int) -> None:
    async with raw(port) as client:
        pages = {
            tab: (await client.ask(get(f"/functions/echo?tab={tab}"))).body.decode()
            for tab in ("overview", "failures", "log", "settings", "no-such-tab")
        }
    texts = {tab: squeezed(html) for tab, html in pages.items()}
    own = {
        "overview": ("Requests, last 60 s 120 answered; 2.0 a second on average", "Event (JSON)", "Newest invocations"),
        "failures": (
            "50× plain plain",
            "Dead letters events that ended",
            "RetriesExhausted schedule:nightly 3",
        ),
        "log": ("Log newest first", "7 B more were printed"),
        "settings": ("128 MB, 3 s, 10 at once", "Function URLs", "Roll back to deploy 4"),
    }
    for tab, phrases in own.items():
        for phrase in phrases:
            assert [other for other in own if phrase in texts[other]] == [tab], phrase
        assert f'aria-current="page">{dict(TABS)[tab]}</a>' in pages[tab]
    assert "Event (JSON)" in texts["no-such-tab"]
    assert pages["overview"].index("Test event") < pages["overview"].index("Newest invocations")
    assert (
        'data-events="/events?function=echo&amp;tab=log&amp;' in pages["log"] and "?tab=log&amp;live=0" in pages["log"]
    )
    assert all("data-events" not in pages[tab] and "<script" not in pages[tab] for tab in ("failures", "settings"))


def squeezed(html: str) -> str:
    """The text of a page with its white space as a browser shows it."""
    return " ".join(
        read(re.sub(r"(</(?:dt|b|h2|th|td|figcaption|span)>)", r"\1 ", html)).text.replace("\u202f", "~").split()
    ).replace("~", "\u202f")


async def test_a_trace_tells_where_the_time_went_and_why_it_was_cold(port: int) -> None:
    async with raw(port) as client:
        text = read((await client.ask(get(f"/traces/{REQUEST_ID}"))).body.decode()).text
    for words_of_it in (
        "s3.GetObject data model",
        "Critical path",
        "345 ms",
        "Why it was cold",
        "the Zygote that holds",
    ):
        assert words_of_it in text


async def test_a_functions_page_tells_of_its_versions_urls_schedules_and_imports(port: int) -> None:
    async with raw(port) as client:
        text = read((await client.ask(get("/functions/echo?tab=settings"))).body.decode()).text
    for words_of_it in (
        "version 3, 10\u202f% to version 2",
        "1 of 2 initialized sandboxes",
        OF_ITSELF.decode(),
        "cron(0 3 * * ? *) Europe/Berlin",
        "refused: plain",
        "The Zygote of plain was passed over: plain",
    ):
        assert words_of_it in text


async def test_the_queue_has_events_dead_letters_and_schedules(port: int) -> None:
    async with raw(port) as client:
        index = read((await client.ask(get("/"))).body.decode()).text
        queue = read((await client.ask(get("/queue"))).body.decode()).text
        letter = read((await client.ask(get(f"/queue/{REQUEST_ID}"))).body.decode()).text
    for text, words_of_it in (
        (index, "3 events waiting, the oldest for 4 minutes, 1 running"),
        (index, "2 dead letters"),
        (queue, "schedule:nightly"),
        (queue, "RetriesExhausted"),
        (queue, "cron(0 3 * * ? *)"),
        (letter, "dead: RetriesExhausted"),
        (letter, "plain: plain\n\nplain"),
    ):
        assert words_of_it in text


async def test_failures_are_groups_with_the_last_traceback_and_log(port: int, worker: FakePageWorker) -> None:
    worker.text = "KeyError"
    async with raw(port) as client:
        reader = read((await client.ask(get("/failures?function=echo"))).body.decode())
        assert (await client.ask(get("/"))).body.count(b'href="/failures"') == 2
    assert "KeyError: KeyError\n\nKeyError" in reader.text and "No log of it" not in reader.text


async def test_fifty_failures_of_one_line_are_one_group_and_other_lines_are_others(
    port: int, worker: FakePageWorker
) -> None:
    key, other = FailureKey("echo", "KeyError", "jobs.py:7"), FailureKey("echo", "KeyError", "jobs.py:9")
    first_ns, last_ns = (int((STARTED_S + s) * 1e9) - views.CLOCK_NS for s in (60, 3600))
    worker.groups = [
        FailureGroup(key, 50, first_ns, last_ns, FAILED_ID, "no such row"),
        FailureGroup(other, 1, last_ns, last_ns, bytes(16), "another"),
    ]
    async with raw(port) as client:
        failures = (await client.ask(get("/failures"))).body.decode()
        index = squeezed((await client.ask(get("/"))).body.decode())
    assert failures.count('<section class="panel failure"') == 2
    text = squeezed(failures)
    first, last = words.when(STARTED_S + 60), words.when(STARTED_S + 3600)
    assert f"50× echo KeyError jobs.py:7 no such row first {first}, last {last}" in text
    assert f"1× echo KeyError jobs.py:9 another once, at {last}" in text
    assert "Its traceback is no longer remembered." in text
    assert f"50 echo KeyError jobs.py:7 {first} {last}" in index


async def test_the_error_of_a_dead_letter_has_a_row_of_its_own(port: int) -> None:
    async with raw(port) as client:
        html = (await client.ask(get("/queue"))).body.decode()
    assert re.search(r'<tr class="telling"><td colspan="5">(<form.*</form>)?<b>plain</b>: plain</td></tr>', html)


async def test_the_hour_is_charts_and_a_table_of_the_minutes_with_requests(port: int, worker: FakePageWorker) -> None:
    async with raw(port) as client:
        html = (await client.ask(get("/history?function=echo"))).body.decode()
        worker.names.discard("echo")
        empty = squeezed((await client.ask(get("/history?function=echo"))).body.decode())
    assert (
        html.count('<path class="k-exec" d="M300 36v-36h5v36z') == 1
        and html.count('class="k-failed" d="M300 36v-1h5') == 1
    )
    assert html.count("<tr>") == 1 + 10
    assert "120 3 12 1.0 4.0" in squeezed(html)
    assert "No request ended in the 60 minutes before this one." in empty


async def test_the_tree_says_what_zygotes_refuse_and_why_they_were_passed_over(port: int) -> None:
    async with raw(port) as client:
        text = read((await client.ask(get("/"))).body.decode()).text
    assert "grpcio==1.0 plain (in the Zygote of plain); failed 2 times, next try in 2 hours" in text
    assert "1 passed over" in text


async def test_a_waterfall_has_a_time_axis(port: int) -> None:
    async with raw(port) as client:
        html = (await client.ask(get(f"/traces/{REQUEST_ID}"))).body.decode()
    assert re.findall(r'<text x="([\d.]+)%"[^>]*>([^<]+)<', html) == [
        ("0", "0"),
        ("25", "100"),
        ("50", "200"),
        ("75", "300"),
        ("100", "400"),
    ]
    assert html.count('class="tick"') == 5 * html.count('<td class="axis">')


async def test_every_answer_lets_nothing_run_and_names_no_other_host(port: int) -> None:
    async with raw(port) as client:
        for path in PAGES:
            reply = await client.ask(get(path))
            policy = reply.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'")
            assert not any(word in policy for word in ("unsafe", "*", "allow-same-origin"))
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert not re.search(rb"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", reply.body.replace(OF_ITSELF, b"")), path
            if reply.headers["content-type"].startswith("text/html"):
                reader = read(reply.body.decode())
                assert reply.headers["cache-control"] == "no-store"
                assert not any(
                    "style" in names or any(name.startswith("on") for name in names) for _, names in reader.tags
                )
                assert "style" not in {tag for tag, _ in reader.tags}
                assert all("src" in names for tag, names in reader.tags if tag == "script")


@pytest.mark.parametrize(
    ("browser", "is_sandboxed"),
    [
        ("Accept: */*", True),
        ('Sec-CH-UA: "Google Chrome";v="124", "Chromium";v="124", "Not.A/Brand";v="24"', True),
        ('Sec-CH-UA: "Chromium";v="125", "Not.A/Brand";v="24"', False),
        ('Sec-CH-UA: "Not.A/Brand";v="8", "Chromium";v="156"', False),
    ],
)
async def test_who_opens_the_page_has_no_hold_of_it(port: int, browser: str, is_sandboxed: bool) -> None:
    async with raw(port) as client:
        headers = (await client.ask(get("/", browser))).headers
    assert headers["cross-origin-opener-policy"] == "noopener-allow-popups"
    policy = headers["content-security-policy"]
    assert policy.endswith("sandbox allow-scripts allow-forms") == is_sandboxed
    assert ("script-src 'self' localhost;" in policy) == is_sandboxed


def test_a_host_that_is_none_is_not_let_into_the_policy() -> None:
    assert "script-src 'self' 10.0.0.1:5000;" in sandboxed("10.0.0.1:5000")
    for host in ("", "a; script-src *", "[::1]:5000", "a b"):
        assert "script-src 'self';" in sandboxed(host)


async def test_what_is_not_there_is_a_page_that_says_so(port: int) -> None:
    async with raw(port) as client:
        for path, word in (("/functions/none", "no function"), ("/traces/none", "no invocation")):
            reply = await client.ask(get(path))
            assert reply.status == 404 and word in reply.body.decode()
        assert (await client.ask(get("/functions?name=echo"))).headers["location"] == "/functions/echo"
        assert (await client.ask(get("/functions?name=%3Cb%3E"))).status == 404
        found = await client.ask(get("/functions?name=E"))
        assert found.status == 200 and b'href="/functions/echo"' in found.body
        assert b'href="/functions/thumbnails"' not in found.body


async def test_nothing_can_be_changed_and_the_rest_of_the_port_is_as_it_was(port: int, worker: FakePageWorker) -> None:
    async with raw(port) as client:
        assert (await client.ask(post("/functions/echo"))).status == 405
        assert (await client.ask(post("/"))).status == 405
        assert (await client.ask(get("/status"))).json["version"] == "0"
        assert (await client.ask(post("/run/echo", b"1"))).body == b"1"
        assert (await client.ask(get("/nowhere"))).status == 404
        client.send(get("/", method="HEAD"))
    assert [name for name, _ in worker.invoked] == ["echo"]


async def test_a_name_that_is_not_loopbacks_is_refused_before_the_page_is_asked(port: int) -> None:
    async with raw(port) as client:
        reply = await client.ask(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    assert reply.status == 403 and b"errorType" in reply.body


async def test_a_first_load_is_less_than_a_hundred_kilobytes(port: int) -> None:
    async with raw(port) as client:
        replies = [await client.ask(get("/", "Accept-Encoding: gzip"))]
        page = gzip.decompress(replies[0].body).decode()
        urls = re.findall(r'(/static/[^" ]+)[" ]', page)
        assert len(urls) == 7
        for url in urls:
            reply = await client.ask(get(url, "Accept-Encoding: gzip"))
            assert "immutable" in reply.headers["cache-control"]
            assert gzip.decompress(reply.body) == (await client.ask(get(url))).body
            replies.append(reply)
    assert sum(len(reply.body) for reply in replies) < 100_000


async def test_without_live_parts_a_page_has_no_script(port: int) -> None:
    async with raw(port) as client:
        assert b"<script" in (await client.ask(get("/"))).body
        for path in ("/?live=0", f"/traces/{REQUEST_ID}"):
            reply = await client.ask(get(path))
            assert b"<script" not in reply.body and b"data-events" not in reply.body


async def test_with_no_functions_it_says_how_to_begin(port: int, worker: FakePageWorker) -> None:
    worker.names.clear()
    async with raw(port) as client:
        text = read((await client.ask(get("/"))).body.decode()).text
    assert "sockd deploy hello" in text and "sockd invoke hello" in text


async def test_when_the_worker_fails_the_page_says_no_more_than_that(
    port: int, worker: FakePageWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.numbers, "tree", lambda: 1 / 0)
    async with raw(port) as client:
        reply = await client.ask(get("/"))
    assert reply.status == 500 and b"ZeroDivisionError" not in reply.body


def test_its_paths_are_its_own(page: Page) -> None:
    from sockd.http.server.messages.head import Head

    def serves(target: bytes) -> bool:
        return page.serves(Head(b"GET", target, "1.1", []))

    assert serves(b"/") and serves(b"/?live=0") and serves(b"/functions/a") and serves(b"/events?seen=")
    assert not serves(b"/run/a") and not serves(b"/2015-03-31/functions") and not serves(b"/metrics")


@pytest.mark.parametrize(
    ("guard", "outcome", "leads"),
    [
        (None, "", "version 1, 10\u202f% to version 2"),
        (None, "version 3 was withdrawn", "version 1, 10\u202f% to version 2; version 3 was withdrawn"),
        (
            {"requests": 12, "failed": 1, "most_errors": 0.05},
            "version 3 was withdrawn",
            "version 1, 10\u202f% to version 2; 1 of its last 12 requests failed, 5\u202f% may",
        ),
    ],
)
def test_an_alias_tells_how_its_canary_does(guard: dict[str, float] | None, outcome: str, leads: str) -> None:
    alias = {"alias": "prod", "version": "1", "canary": {"2": 0.1}, "guard": guard, "outcome": outcome}
    assert function_views.alias_row(alias) == {"alias": "prod", "leads": leads}


async def test_the_workers_of_a_group_are_shown_with_state_load_and_version(port: int) -> None:
    async with raw(port) as client:
        reply = await client.ask(get("/workers"))
        index = (await client.ask(get("/"))).body.decode()
    assert reply.status == 200 and '<a href="/workers">' in index
    text = squeezed(reply.body.decode())
    for words_of_it in ("group g", "1 worker", "w1 (this one)", "serving", "gone; w1 has its events", "25 %", "0.1.0"):
        assert words_of_it in text, words_of_it


async def test_a_services_page_says_what_its_program_does_and_takes_no_events(
    port: int, worker: FakePageWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {**SERVICE, "name": "echo", "state": "waiting", "sandbox": "", "failures": 3, "reason": "exit <b> status 7"}
    async with raw(port) as client:
        before = (await client.ask(get("/functions/echo"))).body.decode()
        monkeypatch.setattr(worker.numbers, "services", lambda: [row])
        text = squeezed((await client.ask(get("/functions/echo"))).body.decode())
    assert "A service takes no events" not in before and 'id="service"' not in before
    for words_of_it in ("Service exit <b> status 7", "State waiting", "3 failures", "/run/echo/"):
        assert words_of_it in text
    assert "<textarea" in before and "<textarea" not in text
