"""Which wheels the interpreter of this worker loads, and which of them it prefers (PEP 425). Pure."""

from __future__ import annotations

from functools import cache

from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

NEVER = (-(1 << 30), ())


def preference(filename: str) -> tuple[int, tuple[int, str] | tuple[()]]:
    """POLICY: which of several wheels? The one with the most specific tag (PEP 425), then the highest build: as pip.

    NEVER for a wheel that this interpreter does not load."""
    try:
        _, _, build, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return NEVER
    ranks = [rank for tag in tags if (rank := _tag_ranks().get(tag)) is not None]
    return (-min(ranks), build) if ranks else NEVER


def build_environment() -> str:
    """What decides what a build makes here, beside its source: the most specific tag of this interpreter and platform."""
    return str(next(iter(_tag_ranks())))


@cache
def _tag_ranks() -> dict[Tag, int]:
    """Each tag that the running interpreter loads, most specific first. The base interpreter is the same build."""
    return {tag: rank for rank, tag in enumerate(sys_tags())}
