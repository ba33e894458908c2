"""The history and the look at a state directory see what they are there to see."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest

from tests.faults.daemon.history import History, expected
from tests.faults.daemon.lives import Lives
from tests.support.servers.package_index import PackageIndex

SALT = "s"


def noted(*answers: tuple[str, str, str, int]) -> History:
    """A history of (token asked, token answered, process, turn)."""
    history = History({"Sandbox.Failed"})
    for asked, reported, instance, count in answers:
        body = json.dumps([reported, expected(reported, SALT), instance, count]).encode()
        history.note(asked, SALT, 200, body)
    return history


def test_a_history_that_is_in_order() -> None:
    history = noted(("a", "a", "p", 1), ("b", "b", "p", 2), ("c", "c", "q", 1))
    history.note("d", SALT, 503, b'{"errorType": "Sandbox.Failed"}')
    history.check()


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([("a", "b", "p", 1)], "was answered with"),
        ([("a", "a", "p", 1), ("a", "a", "p", 2)], "answered twice"),
        ([("a", "a", "p", 1), ("b", "b", "p", 1)], "one turn to two requests"),
        ([("a", "a", "p", 1), ("b", "b", "p", 3)], "nobody was answered from"),
    ],
)
def test_an_offence_is_found(answers: list[tuple[str, str, str, int]], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        noted(*answers).check()


def test_a_failure_without_a_type_is_an_offence_and_so_is_a_lost_connection() -> None:
    for status, body in ((500, b'{"errorType": "ServiceException"}'), (200, b"no json"), (503, b"[]")):
        history = History({"Sandbox.Failed"})
        history.note("a", SALT, status, body)
        with pytest.raises(AssertionError):
            history.check()
    history = History(set())
    history.note_lost("a", ConnectionResetError())
    with pytest.raises(AssertionError):
        history.check()


@pytest.mark.parametrize(
    "left",
    ["tmp/code-x", "code/" + "0" * 64, "code/half", "store/packages/some-1.0-abc", "store/packages/.meta/x.json"],
)
def test_what_a_life_leaves_behind_is_found(tmp_path: Path, index: PackageIndex, left: str) -> None:
    for name in ("tmp", "code", "store/packages/.meta"):
        (tmp_path / name).mkdir(parents=True)
    with sqlite3.connect(tmp_path / "registry.sqlite") as registry:
        registry.execute("CREATE TABLE versions (digest)")
    registry.close()
    lives = Lives(tmp_path, index)
    lives.check_state()
    os.makedirs(tmp_path / left) if not left.endswith(".json") else (tmp_path / left).write_text("{}")
    with pytest.raises(AssertionError):
        lives.check_state()
