"""Which bench a name means."""

from __future__ import annotations

import pytest

from benchmarks.sebs_runner.benches import BENCHES, USUAL, find
from benchmarks.sebs_runner.errors import NoSuchBench


@pytest.mark.parametrize("name", ["210", "thumbnailer", "210.thumbnailer"])
def test_a_bench_has_a_number_and_a_name(name: str) -> None:
    assert find(name).id == "210.thumbnailer"


def test_every_way_to_say_a_bench_means_it_alone() -> None:
    for bench in BENCHES:
        assert find(bench.id) is find(bench.name) is find(bench.number) is bench


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(NoSuchBench, match="did you mean 'thumbnailer'"):
        find("tumbnailer")


def test_all_that_the_suite_has_for_applications_is_there() -> None:
    numbers = {bench.number for bench in BENCHES}
    assert numbers == {
        "010",
        "110",
        "120",
        "130",
        "210",
        "220",
        "311",
        "411",
        "501",
        "502",
        "503",
        "504",
        "imgrec",
        "imgrec-wasm",
    }
    assert {bench.id for bench in BENCHES} - {bench.id for bench in USUAL} == {"411.image-recognition"}
