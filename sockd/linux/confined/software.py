"""The software that confined processes import besides the standard library, and its places in their trees."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

HOME = "opt/sockd"
"""Where our own packages are in a tree."""
Places = tuple[tuple[str, str], ...]
"""Pairs: a directory of the host, its place in the tree. A place inside of what is there anyhow needs no mount."""


def software(ours: Sequence[str], libraries: Sequence[str]) -> Places:
    """Pure but for looking. Args: ours: packages of ours; libraries: packages of others; what these import is next to them."""
    home = Path(__file__).parents[3]
    places = [(str(home / name), f"{HOME}/{name}") for name in ours if (home / name).is_dir()]
    return (*places, *((directory, f"{HOME}/lib-{number}") for number, directory in enumerate(_directories(libraries))))


def import_paths(places: Places) -> tuple[str, ...]:
    """PYTHONPATH in the tree."""
    libraries = [f"/{target}" for _, target in places if os.path.basename(target).startswith("lib-")]
    return (f"/{HOME}", *libraries)


def _directories(names: Sequence[str]) -> list[str]:
    """What holds these packages, each once: site-packages, mostly."""
    found: dict[str, None] = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue
        if spec.submodule_search_locations:
            found[os.path.realpath(os.path.dirname(next(iter(spec.submodule_search_locations))))] = None
        elif spec.origin:
            found[os.path.realpath(os.path.dirname(spec.origin))] = None
    return list(found)
