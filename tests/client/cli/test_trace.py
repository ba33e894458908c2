"""Where the time of an invocation went: drawn, in words, and as Chrome's tracing page reads it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sockd.client.cli.observe import trace as command
from sockd.client.cli.observe.waterfall import MAX_ROWS, NAME_WIDTH, chrome, column, draw, in_lanes, ms, shorten, words
from sockd.observe.trace_axis import extent
from tests.http.worker_answers import MS, TRACE


def bars(width: int = 120, trace: Any = TRACE) -> dict[str, str]:
    """The bar of each row, by the row's name."""
    axis = width - NAME_WIDTH - 26
    rows = draw(trace, width)[1:]
    return {row.text[11 : NAME_WIDTH + 13].strip(): row.text[NAME_WIDTH + 13 :][:axis] for row in rows}


def test_every_span_is_a_bar_on_one_axis_and_a_moment_is_a_dot() -> None:
    found = bars()
    assert len(found) == 9  # two spans have the same name
    axis = 120 - NAME_WIDTH - 26
    assert found["init"].index("█") == column(1005 * MS, *extent(TRACE), axis)
    assert found["init"].rstrip(" │").rindex("█") == column(1350 * MS, *extent(TRACE), axis)
    assert found["message 0"].count("●") == 1 and "█" not in found["message 0"]
    # What overlapped is seen one below the other.
    assert found["boot"].index("█") <= found["init"].index("█") < found["boot"].rindex("█") < found["init"].rindex("█")


def test_where_the_answer_went_out_there_is_a_line() -> None:
    late = {**TRACE, "spans": [*TRACE["spans"], {**TRACE["spans"][-1], "end_ns": 1800 * MS}]}
    axis = 120 - NAME_WIDTH - 26
    answer = column(1400 * MS, *extent(late), axis)
    assert bars(trace=late)["setup"][answer] == "│"


def test_the_tracks_stand_together_in_their_order_and_are_named_once() -> None:
    labels = [row.text[:11].strip() for row in draw(TRACE, 100)[1:]]
    assert [label for label in labels if label] == ["daemon", "sandbox", "initscript", "rpc", "reads"]


@pytest.mark.parametrize("width", [1, 60, 80, 200])
def test_no_width_is_too_small(width: int) -> None:
    assert len(draw(TRACE, width)) == 11


def test_a_thousand_rpcs_are_cut_with_a_word() -> None:
    many = {**TRACE, "spans": TRACE["spans"] * 100}
    rows = draw(many, 100)
    assert len(rows) == MAX_ROWS + 2 and f"{1000 - MAX_ROWS} spans more" in rows[-1].text


def test_what_was_hidden_and_what_the_answer_waited_for_are_said_in_a_line_each() -> None:
    first, second, third = words(TRACE)
    assert first == "imgrec version 3, zygote, sandbox-7: ok after 400 ms"
    assert second.endswith(
        "fetched for 300 ms, of which 270 ms (90 %) were hidden; sent 2 messages, served 1 of 2 reads"
    )
    assert third == "critical path (ms): setup 5.00 > init 345 > exec 49.00"
    reason = "an import looked for socks, which pysocks has"
    assert words({**TRACE, "passed_over": reason})[2].endswith(f"was passed over: {reason}")
    assert "nothing fetched" in words({**TRACE, "fetched_ns": 0, "hidden_ns": 0})[1]
    assert len(words({**TRACE, "initscript": None})) == 2
    assert words({**TRACE, "log": "info: one\nerror: two\n"})[2:4] == ["  info: one", "  error: two"]


def test_names_and_durations_fit() -> None:
    assert shorten("x" * 100, 36) == "x" * 17 + "…" + "x" * 18
    assert (ms(0), ms(1_234_567), ms(123_456_789)) == ("0.00", "1.23", "123")


def test_a_chrome_trace_has_complete_events_in_microseconds() -> None:
    """The Trace Event Format: X events with ts and dur in microseconds, named threads, and nesting on each of them."""
    made = json.loads(json.dumps(chrome(TRACE)))
    assert made.keys() == {"traceEvents", "displayTimeUnit", "otherData"}
    heads = [event for event in made["traceEvents"] if event["ph"] == "M"]
    events = [event for event in made["traceEvents"] if event["ph"] == "X"]
    assert len(heads) + len(events) == len(made["traceEvents"]) and len(events) == len(TRACE["spans"])
    for event in events:
        assert event.keys() == {"ph", "name", "cat", "ts", "dur", "pid", "tid", "args"}
        assert event["ts"] >= 0 and event["dur"] >= 0
    names = {head["tid"]: head["args"]["name"] for head in heads}
    (model,) = [event for event in events if event["name"] == "s3.GetObject data model" and event["cat"] == "rpc"]
    (image,) = [event for event in events if event["name"] == "s3.GetObject data image"]
    assert (model["ts"], model["dur"], model["args"]["detail"][:3]) == (1000.0, 300_000.0, "200")
    # They overlap and neither is within the other's call, so they are on two threads.
    assert {names[model["tid"]], names[image["tid"]]} == {"rpc", "rpc 2"}
    for thread in names:
        spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["tid"] == thread)
        assert all(first[1] <= second[0] for first, second in pairwise(spans))


def test_lanes_are_used_again() -> None:
    spans = [
        {"track": "rpc", "start_ns": start, "end_ns": end} for start, end in ((0, 10), (5, 15), (10, 20), (15, 30))
    ]
    assert [lane for _, lane in in_lanes(spans)] == [0, 1, 0, 1]


class FakeManagement:
    """The management API's answers."""

    member = "w1"

    def __init__(self, state_dir: Path) -> None:
        self.traces: list[dict[str, Any]] = [] if state_dir.name == "empty" else [TRACE]

    def get(self, *path: str, query: Any = None) -> Any:
        return self.traces if len(path) == 1 else {**TRACE, "request_id": path[1]}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(command, "Management", FakeManagement)

    def run(*arguments: str, state: str = "state") -> Result:
        return CliRunner().invoke(command.trace, [*arguments, "--state-dir", state])

    return run


def test_without_an_id_the_last_invocations_are_listed(run: Any) -> None:
    assert "imgrec    zygote  400 ms  exit        ok" in run().output
    assert json.loads(run("--json").output)[0]["function"] == "imgrec"


def test_an_id_is_drawn_and_a_file_is_written(run: Any, tmp_path: Path) -> None:
    drawn = run("0a1b")
    assert drawn.exit_code == 0 and "█" in drawn.output and "critical path" in drawn.output
    file = tmp_path / "trace.json"
    written = run("last", "--chrome", str(file))
    assert written.exit_code == 0 and len(json.loads(file.read_text())["traceEvents"]) > 10
    assert json.loads(run("0a1b", "--json").output)["request_id"] == "0a1b"


def test_before_the_first_invocation_there_is_nothing_to_draw(run: Any) -> None:
    assert run("last", state="empty").exit_code == 3


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_names_bars_and_times_fit_into_the_width(width: int) -> None:
    plain = {**TRACE, "spans": [{**span, "detail": ""} for span in TRACE["spans"]]}
    assert max(len(row.text.rstrip()) for row in draw(plain, width)) <= width
