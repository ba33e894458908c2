"""The page with hostile texts in every place: a stranger's text stays text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sockd.http.page import (
    event_views,
    failure_views,
    function_views,
    group_views,
    history_views,
    sent_event,
    trace_view,
    tree_view,
    views,
    words,
)
from sockd.http.page.changes import shown_deploy
from sockd.http.page.parts import TABS
from sockd.http.page.rendering import load
from tests.http.page.fake_page_worker import REQUEST_ID, FakePageSources, FakePageWorker
from tests.http.page.page_reader import HOSTILE, read

pytestmark = pytest.mark.anyio


ENVIRONMENT = load()
SHAPES: dict[str, list[tuple[str, tuple[str, ...]]]] = {}


COMMON = {"asset": dict.fromkeys(("icon.svg", "page.css"), ""), "path": "/", "in_group": True}


def rendered(text: str) -> dict[str, str]:
    """Everything live that shows a stranger's text, as HTML by template."""
    worker = FakePageWorker("echo", text=text)
    values = {
        "parts/functions.html": views.functions(worker),
        "parts/tree.html": tree_view.tree(worker),
        "parts/invocations.html": views.invocations(worker),
        "parts/failures.html": views.failures(worker),
        "parts/cold_starts.html": views.cold_starts(worker, "echo"),
        "parts/log.html": function_views.log(worker, "echo"),
    }
    return {name: ENVIRONMENT.get_template(name).render(each) for name, each in values.items()}


@settings(max_examples=60)
@given(st.one_of(st.sampled_from(HOSTILE), st.text(alphabet=st.characters(codec=None), max_size=60)))
def test_no_text_of_a_stranger_becomes_markup(text: str) -> None:
    for template, html in rendered(text).items():
        shape = SHAPES.setdefault(template, read(rendered("plain")[template]).tags)
        reader = read(html)
        assert reader.tags == shape, template
        shown = words.printable(text)
        if template == "parts/log.html":
            raw = text.encode("utf-8", "surrogatepass")
            assert words.log_text(raw, len(raw) or 1) in reader.text
        elif template == "parts/invocations.html":
            assert shown[:120] in reader.text
        assert not words.CONTROLS.search(html)


@pytest.mark.parametrize("text", HOSTILE)
async def test_a_trace_of_hostile_texts_has_the_shape_of_a_plain_one(text: str) -> None:
    def shape(trace: FakePageWorker, values: dict[str, object]) -> list[tuple[str, tuple[str, ...]]]:
        common = {**COMMON, "script_log": "x"}
        log = function_views.log(trace, "echo", REQUEST_ID)
        html = ENVIRONMENT.get_template("trace.html").render({**common, **values, "log": log})
        assert not words.CONTROLS.search(html)
        return read(html).tags

    shapes = []
    for each in (text, "plain"):
        worker = FakePageWorker("echo", text=each)
        shapes.append(shape(worker, trace_view.trace_page(await worker.traces.get(REQUEST_ID))))
    assert shapes[0] == shapes[1]


async def pages(text: str) -> dict[str, str]:
    """Every page without live parts that shows a stranger's text, as HTML by template."""
    worker, sources = FakePageWorker("echo", "fails", text=text), FakePageSources(text)
    function = {"tabs": TABS, "is_disabled": False, **function_views.facts(worker, "echo")}
    queue = await event_views.queue_page(sources, None)
    dead = [{**each, "retry_token": "t"} for each in queue["dead"]]
    form = {"token": "t", "most": "1 KB", "takes_test_events": True}
    empty = {"parts": dict.fromkeys(("lately", "history", "invocations", "failures", "cold_starts"), "")}
    asked = sent_event.invocation_of("fails", sent_event.SentEvent("t", text.encode("utf-8", "replace").decode(), "{}"))
    values = {
        "queue.html": {**queue, "dead": dead},
        "event.html": {**event_views.event_page(await sources.event(REQUEST_ID)), "log": text},
        "workers.html": group_views.workers_page(
            text, [{**each, "address": text} for each in await worker.group.workers()]
        ),
        "history.html": history_views.history_page(worker, "echo"),
        "changed.html": {"title": "Disabled", "text": text, "function": "echo", "event": ""},
        "failures.html": failure_views.failures_page(worker, None),
        "functions.html": {"wanted": text, "names": ["echo"], "hidden": 0},
        "tested.html": {**form, **sent_event.outcome(asked, await worker.calls.invoke_with_log(asked))},
        "function.html": {**form, **empty, **function, "tab": "overview", "event": text, "qualifier": text},
        "function.html, failures": {
            **failure_views.failures_page(worker, "echo"),
            **function,
            "tab": "failures",
            "dead": dead,
        },
        "function.html, settings": {
            **function_views.imports(worker, "echo"),
            **function_views.registered(sources, "echo"),
            **function,
            "tab": "settings",
            "may_change": True,
            "rollback": shown_deploy({"deploy": 1, "digest": "ab", "deployed_at": 1.7e9}) | {"token": "t"},
            "switch": {"action": "disable", "token": "t"},
        },
    }
    return {
        name: ENVIRONMENT.get_template(name.partition(",")[0]).render({**COMMON, **each})
        for name, each in values.items()
    }


@pytest.mark.parametrize("text", HOSTILE)
async def test_a_page_of_hostile_texts_has_the_shape_of_a_plain_one(text: str) -> None:
    hostile, plain = await pages(text), await pages("plain")
    for template, html in hostile.items():
        assert read(html).tags == read(plain[template]).tags, template
        assert not words.CONTROLS.search(html), template
