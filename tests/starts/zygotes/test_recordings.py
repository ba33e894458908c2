"""What is kept of top levels and of Zygotes for the next daemon, and what is not believed of it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.starts.zygotes.top_levels import recordings as all_recordings
from sockd.starts.zygotes.top_levels.recordings import FORMAT, WORKER, Recordings, SavedNode, load_learned, save_learned
from sockd.starts.zygotes.top_levels.refusals import Refusals
from sockd.starts.zygotes.top_levels.top_level import MAX_MODULES, Module, Step, TopLevel

PANDAS, NUMPY, FLASK = "pandas-2.2.3-aa", "numpy-1.26.4-bb", "flask-3.1-cc"


def step(name: str, key: str, outer: int = -1, *, before: str = "", seconds: float = 0.01) -> Step:
    modules = (Module(key, name, seconds), Module(key, f"{name}.core", seconds))
    return Step(name, key, outer, before, (f"{name} writes",), modules)


TOP = TopLevel(
    (step("pandas", PANDAS), step("numpy", NUMPY, 0), step("json", ""), step("flask", FLASK, before="sys.path")),
    frozenset({PANDAS, NUMPY, FLASK}),
)


def alike(one: TopLevel | None, other: TopLevel) -> bool:
    return one is not None and (one.steps, one.closure, one.standard_only, one.peak_bytes) == (
        other.steps,
        other.closure,
        other.standard_only,
        other.peak_bytes,
    )


@pytest.mark.parametrize("standard_only", [False, True])
def test_a_recording_is_there_for_the_next_daemon(tmp_path: Path, standard_only: bool) -> None:
    top = TopLevel(TOP.steps, TOP.closure, standard_only, 23 << 20)
    first, directory = Recordings(tmp_path / "recordings"), tmp_path / "recordings"
    assert first.find("f") is None
    first.keep("f", top)
    assert first.find("f") is top
    later = Recordings(directory)
    found = later.find("f")
    assert found is not None and alike(found, top) and found.wanted == top.wanted
    assert later.find("f") is found, "read once"
    assert later.find("g") is None and later.find("") is None
    (file,) = directory.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_later_recording_of_a_version_replaces_the_first(tmp_path: Path) -> None:
    recordings, less = Recordings(tmp_path), TopLevel(TOP.steps[:1], TOP.closure)
    recordings.keep("f", TOP)
    recordings.keep("f", less)
    assert recordings.find("f") is less and alike(Recordings(tmp_path).find("f"), less)


def test_as_many_modules_as_the_configuration_allows_are_read_back(tmp_path: Path) -> None:
    modules = tuple(Module("", f"m{number}", 0.0) for number in range(MAX_MODULES + 1))
    Recordings(tmp_path).keep("f", TopLevel((msgspec.structs.replace(TOP.steps[0], modules=modules),), TOP.closure))
    assert Recordings(tmp_path).find("f") is None
    found = Recordings(tmp_path, max_modules=MAX_MODULES + 1).find("f")
    assert found is not None and found.steps[0].modules == modules


def file_of(top: TopLevel, **changes: object) -> bytes:
    data = {"worker": WORKER, "closure": sorted(top.closure), "standard_only": False, "peak_bytes": 0}
    data["steps"] = top.steps
    return msgspec.json.encode({**data, **changes})


def test_the_file_of_these_tests_is_one(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_bytes(file_of(TOP))
    assert alike(Recordings(tmp_path).find("f"), TOP)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        file_of(TOP, worker="0.0.1 3.11.0"),
        file_of(TOP, closure=[PANDAS]),
        file_of(TOP, closure=[1]),
        file_of(TOP, peak_bytes="all"),
        file_of(TOP, peak_bytes=1e999),
        file_of(TOP, steps={}),
        file_of(TOP, steps=[["numpy", NUMPY]]),
        file_of(TOP, steps=[{"name": "numpy", "key": NUMPY, "outer": 0, "before": "", "writes": [], "modules": []}]),
    ],
)
def test_a_recording_that_is_none_is_made_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f.json").write_bytes(content)
    recordings = Recordings(tmp_path)
    assert recordings.find("f") is None
    recordings.keep("f", TOP)
    assert alike(Recordings(tmp_path).find("f"), TOP)


def test_a_torn_recording_is_never_half_of_one(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    whole = file_of(TOP)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert Recordings(tmp_path).find("f") is None


def test_a_recording_that_cannot_be_written_is_known_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings = Recordings(tmp_path / "file" / "recordings")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        recordings.keep("f", TOP)
    assert recordings.find("f") is TOP
    full = Recordings(tmp_path / "full")
    full.keep("f", TOP)

    def no_space(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        full.keep("g", TOP)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["f.json"]


def test_of_many_recordings_those_that_were_written_last_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_recordings, "MAX_RECORDINGS", 10)
    recordings = Recordings(tmp_path)
    for number in range(11):
        recordings.keep(f"f{number}", TOP)
        os.utime(tmp_path / f"f{number}.json", ns=(number, number))
    assert {path.stem for path in tmp_path.iterdir()} == {f"f{number}" for number in range(1, 11)} - {"f1"}
    assert alike(Recordings(tmp_path).find("f10"), TOP)


def test_what_is_in_memory_is_bounded_and_the_rest_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_recordings, "MAX_KNOWN", 3)
    recordings = Recordings(tmp_path)
    for number in range(5):
        recordings.keep(f"f{number}", TopLevel((step(f"m{number}", NUMPY),), frozenset({NUMPY})))
    assert set(recordings.seconds()) == {f"m{number}@{NUMPY}" for number in (2, 3, 4)}
    found = recordings.find("f0")
    assert found is not None and found.steps[0].name == "m0"
    assert set(recordings.seconds()) == {f"m{number}@{NUMPY}" for number in (0, 3, 4)}


def test_import_seconds_are_the_mean_over_the_recordings_that_have_the_import(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path)
    recordings.keep("f", TopLevel((step("numpy", NUMPY, seconds=0.01), step("json", "")), frozenset({NUMPY})))
    recordings.keep("g", TopLevel((step("numpy", NUMPY, seconds=0.03),), frozenset({NUMPY})))
    assert recordings.seconds() == pytest.approx({f"numpy@{NUMPY}": 0.04, "json@": 0.02})


def test_the_memory_of_an_import_is_the_mean_over_the_recordings_that_have_it(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path)
    recordings.keep(
        "f", TopLevel((step("numpy", NUMPY, seconds=3.0), step("json", "", seconds=1.0)), peak_bytes=40_000)
    )
    recordings.keep("g", TopLevel((step("numpy", NUMPY, seconds=3.0),), peak_bytes=10_000))
    assert recordings.memory_bytes() == pytest.approx({f"numpy@{NUMPY}": 20_000, "json@": 10_000})


def test_a_removed_distribution_takes_its_recordings_along(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path)
    recordings.keep("f", TOP)
    recordings.keep("g", TopLevel((step("numpy", NUMPY),), frozenset({NUMPY})))
    recordings.forget(FLASK)
    assert recordings.find("f") is None and recordings.find("g") is not None
    assert [path.name for path in tmp_path.iterdir()] == ["g.json"]
    recordings.forget(FLASK)


def learned() -> tuple[Recordings, Refusals]:
    recordings, refused = Recordings(Path("/none")), Refusals()
    recordings.note_failed(f"numpy.bad@{NUMPY}", "ValueError: not here")
    for pair in ("node/f", "node/g", "node/f"):
        recordings.note_verified(pair)
    recordings.nodes = [SavedNode("f", (f"numpy@{NUMPY}",), ("numpy",), 0.5)]
    refused.refuse(FLASK, "canary: no answer in 2 s", module="flask", node="flask", by_deadline=True)
    return recordings, refused


def load(path: Path) -> tuple[Recordings, Refusals, str]:
    recordings = Recordings(Path("/none"))
    return recordings, *load_learned(path, recordings)


def test_verdicts_failures_and_refusals_survive_a_restart(tmp_path: Path) -> None:
    recordings, refused = learned()
    save_learned(tmp_path / "learned.json", recordings, refused)
    again, refused_again, problem = load(tmp_path / "learned.json")
    assert problem == ""
    assert list(again.verified) == ["node/g", "node/f"], "the one that was verified last is dropped last"
    assert again.failed == {f"numpy.bad@{NUMPY}": "ValueError: not here"}
    assert refused_again.list() == refused.list() and again.nodes == recordings.nodes
    assert [path.name for path in tmp_path.iterdir()] == ["learned.json"]
    assert json.loads((tmp_path / "learned.json").read_text())["format"] == FORMAT


def test_a_first_start_has_nothing_to_say(tmp_path: Path) -> None:
    recordings, refused, problem = load(tmp_path / "learned.json")
    assert (dict(recordings.failed), dict(recordings.verified), refused.list(), problem) == ({}, {}, [], "")


def part(**changes: object) -> bytes:
    data = {"format": FORMAT, "worker": WORKER, "failed": {}, "verified": [], "refused": [], "nodes": []}
    return json.dumps({**data, **changes}).encode()


def test_the_parts_of_these_tests_are_a_file(tmp_path: Path) -> None:
    (tmp_path / "learned.json").write_bytes(part(verified=["node/f"]))
    recordings, _, problem = load(tmp_path / "learned.json")
    assert list(recordings.verified) == ["node/f"] and problem == ""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        part(failed=[]),
        part(failed={"a": 1}),
        part(verified={"a": 1, "b": 2}, refused=[["a"]]),
        part(verified=[1]),
        part(verified=None),
        part(verified=["node/f"], refused=[["a"]]),
        part(verified=["node/f"], nodes=None),
        part(verified=["node/f"], nodes=[{"program": "f"}]),
    ],
)
def test_a_damaged_file_is_an_empty_start_that_says_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "learned.json"
    path.write_bytes(content)
    recordings, refused, problem = load(path)
    assert str(path) in problem
    assert not recordings.failed and not recordings.verified and not recordings.nodes and refused.list() == []


@pytest.mark.parametrize("older", [{"format": 3}, {"format": 2, "worker": None}, {"worker": "0.0.1 3.11.0"}])
def test_nothing_of_an_older_workers_file_counts(tmp_path: Path, older: dict[str, object]) -> None:
    path = tmp_path / "learned.json"
    save_learned(path, *learned())
    path.write_text(json.dumps({**json.loads(path.read_text()), **older}))
    recordings, refused, problem = load(path)
    assert not recordings.failed and not recordings.verified and not recordings.nodes
    assert refused.list() == [] and problem == ""


def test_a_torn_file_never_starts_half_full(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    save_learned(path, *learned())
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        recordings, refused, problem = load(path)
        assert problem and not recordings.failed and not recordings.verified and not refused.list()


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    save_learned(path, Recordings(tmp_path), Refusals())
    before = path.read_bytes()
    refused = Refusals()
    refused._failed["key"] = object()  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        save_learned(path, Recordings(tmp_path), refused)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["learned.json"]


@given(st.lists(st.integers(0, 9), max_size=30))
def test_of_many_verdicts_and_failures_the_last_are_kept(numbers: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(all_recordings, "MAX_VERIFIED", 4)
        patch.setattr(all_recordings, "MAX_FAILED", 4)
        recordings = Recordings(Path("/none"))
        for number in numbers:
            recordings.note_verified(str(number))
            recordings.note_failed(str(number), "no")
    last = list(dict.fromkeys(map(str, reversed(numbers))))
    assert list(recordings.verified) == last[:4][::-1]
    assert len(recordings.failed) == min(4, len(set(numbers)))
    assert not numbers or str(numbers[-1]) in recordings.failed
