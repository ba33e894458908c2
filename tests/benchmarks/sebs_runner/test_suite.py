"""The suite's wheel: fetched once, refused when it is another, noticed when it was changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.sebs_runner.errors import FetchFailed, SuiteChanged, SuiteMissing, WrongHash
from benchmarks.sebs_runner.suite import SUITE, Pin, Suite, default_cache, fetch
from tests.benchmarks.sebs_runner.conftest import THUMBNAILER
from tests.support.servers.package_index import PackageIndex


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    index = PackageIndex()
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    monkeypatch.setenv("UV_NO_CACHE", "1")
    for name in ("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS", "UV_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    yield index
    index.close()


def pin(sha256: str) -> Pin:
    return Pin(SUITE.name, SUITE.version, (sha256,))


def test_it_is_fetched_once(index: PackageIndex, suite_wheel: tuple[str, bytes], tmp_path: Path) -> None:
    right = pin(index.add(suite_wheel))
    root = fetch(right, tmp_path)
    assert "config.json" in Suite(root).files("benchmarks", "200.multimedia", "210.thumbnailer")
    asked = len(index.requests)
    assert fetch(right, tmp_path) == root
    assert len(index.requests) == asked
    assert [path.name for path in tmp_path.iterdir()] == [root.name]


def test_another_file_under_the_same_version_is_refused(
    index: PackageIndex, suite_wheel: tuple[str, bytes], tmp_path: Path
) -> None:
    index.add(suite_wheel)
    with pytest.raises(WrongHash, match="another file than the published one") as caught:
        fetch(SUITE, tmp_path)
    assert caught.value.fix
    assert list(tmp_path.iterdir()) == []


def test_an_index_without_it_is_reported(index: PackageIndex, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="cannot be installed") as caught:
        fetch(SUITE, tmp_path)
    assert not isinstance(caught.value, WrongHash)


def test_a_file_that_was_edited_is_not_used(suite: Suite) -> None:
    path = THUMBNAILER.removeprefix("sebs/")
    assert suite.read(path, "python/function.py").startswith(b"from . import storage")
    with (suite.path / path / "python" / "function.py").open("a") as file:
        file.write("# quicker\n")
    with pytest.raises(SuiteChanged):
        suite.read(path, "python/function.py")


def test_a_file_that_the_wheel_did_not_bring_is_not_used(suite: Suite) -> None:
    (suite.path / "benchmarks" / "new.py").write_text("")
    with pytest.raises(SuiteChanged):
        suite.read("benchmarks", "new.py")


def test_a_cache_without_the_suite_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(SuiteMissing) as caught:
        Suite.of(tmp_path)
    assert caught.value.fix == "sockd sebs fetch"


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOCKD_SEBS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_cache() == Path("/cache/sockd/sebs")
    monkeypatch.setenv("SOCKD_SEBS_CACHE", "/mine")
    assert default_cache() == Path("/mine")
