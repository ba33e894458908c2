"""Extras of sockd's distribution, and the command that installs their packages.

The name `sockd` on a package index is not ours, so no command names it: the packages of an extra are named themselves, as the
installed metadata lists them.
"""

from __future__ import annotations

from importlib import metadata
from shlex import quote

from sockd.base.own_command import runnable

DISTRIBUTION = "sockd"


def installing(extra: str) -> str:
    """Return the command that installs what an extra needs, with this interpreter's pip."""
    packages = sorted(packages_of(extra))
    if not packages:  # a source tree that was never installed has no metadata
        return runnable(f"pip install -e '.[{extra}]'") + "  # in a checkout of sockd"
    return runnable(f"pip install {' '.join(map(quote, packages))}")


def packages_of(extra: str) -> set[str]:
    """Return the requirements of an extra, with those of the extras that it includes; empty without metadata."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return set()
    from packaging.requirements import Requirement  # not for modules that import this one and never fail

    found: set[str] = set()
    for requirement in map(Requirement, lines):
        if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name == DISTRIBUTION:
            for inner in requirement.extras:
                found |= packages_of(inner)
        else:
            requirement.marker = None
            found.add(str(requirement))
    return found
