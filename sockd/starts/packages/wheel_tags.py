"""Which wheels an interpreter of this host loads, and which of them it prefers (PEP 425). Pure."""

from __future__ import annotations

from functools import cache

from packaging.tags import Tag, compatible_tags, cpython_tags, sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from sockd.isolation.roots.interpreter import OWN_PYTHON, Interpreter

NEVER = (-(1 << 30), ())


def preference(filename: str, python: Interpreter = OWN_PYTHON) -> tuple[int, tuple[int, str] | tuple[()]]:
    """POLICY: which of several wheels? The one with the most specific tag (PEP 425), then the highest build: as pip.

    NEVER for a wheel that the interpreter does not load."""
    try:
        _, _, build, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return NEVER
    known = _tag_ranks(python.tag)
    ranks = [rank for tag in tags if (rank := known.get(tag)) is not None]
    return (-min(ranks), build) if ranks else NEVER


def build_environment(python: Interpreter = OWN_PYTHON) -> str:
    """What decides what a build makes here, besides its source: the most specific tag of the interpreter and platform."""
    return str(next(iter(_tag_ranks(python.tag))))


@cache
def _tag_ranks(tag: str) -> dict[Tag, int]:
    """Each tag that an interpreter loads, most specific first. The worker's own base interpreter is the same build as the one
    that runs this; another one of the host has the same platform.

    Args: tag: `Interpreter.tag`."""
    if not tag:
        return {each: rank for rank, each in enumerate(sys_tags())}
    version, name = tuple(map(int, tag.split("."))), f"cp{tag.replace('.', '')}"
    tags = (*cpython_tags(version, [name]), *compatible_tags(version, name))
    return {each: rank for rank, each in enumerate(tags)}
