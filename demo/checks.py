"""Whether the functions of the demonstration answered what they must. Each check recomputes the answer without the packages."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.s3.client import Client as S3
from benchmarks.sebs_runner.made_inputs.jpeg import jpeg_size

FUNCTIONS = Path(__file__).with_name("functions")
BUCKET, PICTURE = "pictures", "mandelbrot.jpg"
SIDE = 128


class WrongAnswer(Exception):
    """A function answered, but not what it must."""


def expect(name: str, actual: object, wanted: object) -> None:
    """Raises WrongAnswer unless both are equal."""
    if actual != wanted:
        raise WrongAnswer(f"{name}: {actual!r} instead of {wanted!r}")


def check_noop(answer: Any) -> None:
    expect("noop", answer, {"ok": True})


def check_thumbnail(answer: Any, s3: S3) -> None:
    """The object in S3, not only the answer: a JPEG whose longer side is 128 pixels."""
    expect("thumbnail key", answer["key"], f"thumbnails/{PICTURE}")
    thumbnail = s3.get(BUCKET, answer["key"])
    expect("thumbnail bytes", len(thumbnail), answer["bytes"])
    try:
        size = jpeg_size(thumbnail)
    except ValueError as error:
        raise WrongAnswer(f"the thumbnail is {error}") from None
    expect("thumbnail longer side", max(size), SIDE)


def check_report(answer: Any) -> None:
    with (FUNCTIONS / "report" / "elements.csv").open() as file:
        elements = list(csv.DictReader(file))
    gases = [element for element in elements if element["phase"] == "gas"]
    expect("elements", answer["elements"], 118)
    expect("by phase", answer["by_phase"], dict(Counter(element["phase"] for element in elements)))
    expect("heaviest gas", answer["heaviest_gas"], max(gases, key=lambda gas: float(gas["weight"]))["name"])
    for period, mean in answer["mean_weight_by_period"].items():
        weights = [float(element["weight"]) for element in elements if element["period"] == period]
        if abs(sum(weights) / len(weights) - mean) > 0.001:
            raise WrongAnswer(f"mean weight of period {period}: {mean}")


def check_page(answer: Any) -> None:
    expect("page status", answer["statusCode"], 200)
    for text in ("Hello, stranger: 4 rocky planets", "<td>Mars</td><td>2 moons</td>", "365.2 days"):
        if text not in answer["body"]:
            raise WrongAnswer(f"page without {text!r}")
