"""Pictures of results: one for each question, distributions on a logarithmic axis."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.plots import file_name, plot, questions
from benchmarks.harness.results import LEAST_SAMPLES, Result

# Found and not imported: each process of a run collects all files, and most of them run none of these tests.
pytestmark = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")


@pytest.fixture(scope="module", autouse=True)
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """matplotlib keeps the files of fonts open that it has used."""
    result = measured()
    result.series["case"] = [1.0, 2.0, 9.0]
    plot(result, tmp_path_factory.mktemp("fonts"))


@pytest.fixture
def result() -> Result:
    return measured()


def measured() -> Result:
    result = Result("cold_start", machine={})
    for case, factor in (("floor", 1.0), ("no-op", 2.0), ("docker", 400.0)):
        result.add(case, "cold start", "ms", [factor * (1 + n / 10) for n in range(50)])
        result.add(case, "rate, 10 at once", "1/s", [1000 / factor, 900 / factor], tail=False)
    result.add("no-op, spares", "answered by a spare", "%", [0.0], tail=False)
    return result


def test_each_question_has_a_picture_of_its_own(result: Result, tmp_path: Path) -> None:
    assert questions(result) == [("cold start", "ms"), ("rate, 10 at once", "1/s"), ("answered by a spare", "%")]
    files = plot(result, tmp_path / "plots")
    assert [file.name for file in files] == [file_name(result, *each) for each in questions(result)]
    assert file_name(result, "rate, 10 at once", "1/s") == "cold_start-rate-10-at-once-1-per-s.png"
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_scales_and_labels(result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("matplotlib.pyplot.close", drawn.append)
    plot(result, tmp_path)
    assert [figure.axes[0].get_xscale() for figure in drawn] == ["log", "log", "linear"]
    assert [len(figure.axes) for figure in drawn] == [1, 1, 1]
    labels = [label.get_text() for label in drawn[0].axes[0].get_yticklabels()]
    assert labels == ["floor (n = 50)", "no-op (n = 50)", "docker (n = 50)"]
    monkeypatch.undo()
    close_all()


def close_all() -> None:
    from matplotlib import pyplot

    pyplot.close("all")


def saved(result: Result, directory: Path) -> Path:
    path = directory / "r.json"
    path.write_text(result.to_json())
    return path


def test_distributions_are_in_the_json(result: Result, tmp_path: Path) -> None:
    read = Result.load(saved(result, tmp_path))
    assert read.distributions == result.distributions and len(read.distributions) == 3
    floor = read.distributions[0]
    assert (floor.at(0), floor.at(0.5), floor.at(1)) == (1.0, result.row("floor", "cold start").p50, 5.9)


def test_few_samples_are_no_distribution() -> None:
    result = Result("few", machine={})
    result.add("case", "latency", "ms", [1.0] * (LEAST_SAMPLES - 1))
    assert result.distributions == []


def test_a_series_is_a_picture_more(result: Result, tmp_path: Path) -> None:
    result.series["case"] = [1.0, 2.0, 9.0]
    assert plot(result, tmp_path)[-1].name == "cold_start-cdf.png"


def test_parts_of_a_whole_are_stacked(result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result.stacks = {"sockd": {"setup": 1.0, "exec": 3.0}, "runc": {"mount": 20.0, "exec": 60.0}}
    assert Result.load(saved(result, tmp_path)).stacks == result.stacks
    drawn: list[Any] = []
    monkeypatch.setattr("matplotlib.pyplot.close", drawn.append)
    assert plot(result, tmp_path)[-1].name == "cold_start-parts.png"
    panel = drawn[-1].axes[0]
    bars = [(bar.get_x(), bar.get_width()) for bar in panel.patches]
    assert bars == [(0, 25), (25, 75), (0, 25), (25, 75)]
    assert [text.get_text() for text in panel.texts] == ["4 ms", "80 ms"]
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["setup", "exec", "mount"]
    monkeypatch.undo()
    close_all()
