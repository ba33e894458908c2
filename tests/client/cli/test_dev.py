"""`sockd dev` with a watcher of the test's own, so that what is saved when is the test's to say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import watchfiles
from click.testing import CliRunner

from sockd.client.cli.functions.dev import Project, dev
from sockd.client.console.client import Management
from tests.client.cli.serving import Served

HANDLER = "def handler(event): return {}\n"
BROKEN = "def handler(event) return 0\n"

Event = Callable[[], set[str]]
"""Does something to the directory; the names of the files that the watcher tells of."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "watched"
    directory.mkdir()
    (directory / "handler.py").write_text(HANDLER.format(0))
    return directory


@pytest.fixture
def said(served: Served, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """All lines of a `sockd dev --json` to whose watcher these events happen, one after the other."""

    def said(*events: Event) -> list[dict[str, Any]]:
        def watch(watched: Path, **_: Any) -> Iterator[set[tuple[watchfiles.Change, str]]]:
            for event in events:
                yield {(watchfiles.Change.modified, str(watched / name)) for name in event()}

        monkeypatch.setattr(watchfiles, "watch", watch)
        done = CliRunner().invoke(dev, [str(directory), "--json", "--state-dir", str(served.state_dir)])
        assert done.exit_code == 0, done
        return [json.loads(line) for line in done.stdout.splitlines()]

    return said


def saved(file: Path, text: str, *, is_seen: bool = True) -> Event:
    """A file is saved; args: is_seen: the watcher tells of it."""

    def save() -> set[str]:
        file.write_text(text)
        return {file.name} if is_seen else set()

    return save


def names(lines: list[dict[str, Any]]) -> list[str]:
    """What each line is about."""
    return [next(iter({"watching", "error", "version"} & set(line))) for line in lines]


def test_what_is_saved_before_it_watches_is_deployed_before_it_says_so(said: Any, directory: Path) -> None:
    lines = said(saved(directory / "handler.py", HANDLER.format(1), is_seen=False), lambda: set())
    assert names(lines) == ["version", "version", "watching"]
    assert [line.get("changed") for line in lines] == [[], ["handler.py"], None]


def test_what_is_saved_before_it_watches_and_does_not_compile_is_not_deployed(said: Any, directory: Path) -> None:
    handler = directory / "handler.py"
    lines = said(saved(handler, BROKEN, is_seen=False), saved(handler, HANDLER.format(1)))
    assert names(lines) == ["version", "error", "watching", "version"]
    assert lines[1]["changed"] == ["handler.py"] and "SyntaxError: expected ':'" in lines[1]["error"]
    assert str(handler) in lines[1]["error"]


def test_a_save_that_is_several_events_is_reported_once(said: Any, directory: Path) -> None:
    handler = directory / "handler.py"
    lines = said(
        lambda: set(),
        *[saved(handler, BROKEN)] * 2,
        *[saved(handler, HANDLER.format(1))] * 2,
        saved(handler, BROKEN),
        saved(handler, HANDLER.format(1)),
        saved(handler, BROKEN),
    )
    assert names(lines) == ["version", "watching", "error", "version", "error", "error"]


def test_what_does_not_compile_is_not_deployed_with_what_is_saved_next(said: Any, directory: Path) -> None:
    other = directory / "other.py"
    lines = said(
        lambda: set(),
        saved(directory / "handler.py", BROKEN),
        saved(other, "x = 1\n"),
        saved(directory / "handler.py", HANDLER.format(1)),
    )
    assert names(lines) == ["version", "watching", "error", "error", "version"]
    assert lines[-1]["changed"] == ["handler.py", "other.py"]


def test_what_is_removed_or_made_executable_changed_too(said: Any, directory: Path) -> None:
    other = directory / "other.py"
    other.write_text("x = 1\n")

    def chmod() -> set[str]:
        other.chmod(0o755)
        return {other.name}

    def remove() -> set[str]:
        other.unlink()
        return {other.name}

    lines = said(lambda: set(), chmod, remove)
    assert [line.get("changed") for line in lines] == [[], None, ["other.py"], ["other.py"]]


def test_a_directory_that_cannot_be_packed_is_reported_with_what_was_saved(said: Any, directory: Path) -> None:
    def link() -> set[str]:
        (directory / "link").symlink_to("/etc/passwd")
        return {"link"}

    lines = said(lambda: set(), link)
    assert names(lines) == ["version", "watching", "error"]
    assert lines[-1]["changed"] == ["link"] and "is a link" in lines[-1]["error"]


def test_what_a_deploy_would_leave_out_is_neither_watched_nor_deployed(
    said: Any, served: Served, directory: Path
) -> None:
    (directory / ".gitignore").write_text("data/\n")
    (directory / "data").mkdir()
    lines = said(lambda: set(), saved(directory / "data" / "big.csv", "1\n"), saved(directory / ".env", "KEY=1\n"))
    assert names(lines) == ["version", "watching"]
    assert served.worker.deployed["watched"][0] == ["handler.py"]
    project = Project(directory, "watched", Management(served.state_dir), as_json=True)
    seen = {
        name: project.is_packed(directory / name) for name in ("handler.py", ".sockdignore", ".env", "data/big.csv")
    }
    assert seen == {"handler.py": True, ".sockdignore": True, ".env": False, "data/big.csv": False}
