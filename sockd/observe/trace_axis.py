"""The axis of a trace: from when to when it is drawn, and in which order its spans are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

TRACKS = ("daemon", "sandbox", "initscript", "rpc", "reads")
"""In the order in which they are drawn."""


def extent(trace: Mapping[str, Any]) -> tuple[int, int]:
    """The time axis: from the request to whatever ended last."""
    ends = [span["end_ns"] for span in trace["spans"]]
    return trace["arrived_ns"], max([trace["answered_ns"], *ends, trace["arrived_ns"] + 1])


def in_order(spans: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """By track, then by time."""
    known = {track: place for place, track in enumerate(TRACKS)}
    return sorted(spans, key=lambda span: (known.get(span["track"], len(TRACKS)), span["start_ns"], span["end_ns"]))
