"""Inputs: what the bench's own input.py says, of the user's data or of stand-ins."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sebs_runner.benches import find
from benchmarks.sebs_runner.errors import NotPossible
from benchmarks.sebs_runner.inputs import BUCKET, prepare
from benchmarks.sebs_runner.made_inputs import stand_ins
from benchmarks.sebs_runner.suite import Suite

BENCH = find("210")


@pytest.fixture(autouse=True)
def _no_data_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_without_the_user_s_data_there_is_a_stand_in_which_is_kept(suite: Suite, tmp_path: Path) -> None:
    inputs = prepare(BENCH, "test", suite, cache=tmp_path)
    assert inputs.is_stand_in
    (key,) = inputs.objects
    assert key == f"210.thumbnailer-0-input/{stand_ins.PHOTOGRAPH}"
    assert inputs.objects[key].stat().st_size == 2_191_330
    assert inputs.event["bucket"]["bucket"] == BUCKET and inputs.event["object"]["size"] == "test"
    made = inputs.objects[key].stat().st_mtime_ns
    assert prepare(BENCH, "test", suite, cache=tmp_path).objects[key].stat().st_mtime_ns == made


@pytest.mark.parametrize("where", ["200.multimedia/210.thumbnailer", "210.thumbnailer"])
@pytest.mark.parametrize("named", [True, False])
def test_the_user_s_data_wins(suite: Suite, tmp_path: Path, where: str, named: bool) -> None:
    data = tmp_path / "home" / ".sebs" / "benchmarks-data"
    (data / where).mkdir(parents=True)
    (data / where / "mine.jpg").write_bytes(b"picture")
    inputs = prepare(BENCH, "small", suite, cache=tmp_path, data=data if named else None)
    assert not inputs.is_stand_in
    assert {key: path.read_bytes() for key, path in inputs.objects.items()} == {
        "210.thumbnailer-0-input/mine.jpg": b"picture"
    }


def test_data_that_is_named_must_be_there(suite: Suite, tmp_path: Path) -> None:
    with pytest.raises(NotPossible, match="not a directory"):
        prepare(BENCH, "test", suite, cache=tmp_path, data=tmp_path / "nowhere")


def test_bytes_are_counted_by_what_was_read(suite: Suite, tmp_path: Path) -> None:
    inputs = prepare(BENCH, "test", suite, cache=tmp_path)
    (key,) = inputs.objects
    assert inputs.bytes_of({"call": "download", "key": key}) == 2_191_330
    assert inputs.bytes_of({"call": "download_directory", "key": "210.thumbnailer-0-input"}) == 2_191_330
    assert inputs.bytes_of({"call": "download", "key": "other"}) == 0
