"""Modules of packages that were built from source, next to those of the other packages of a function.

A build runs foreign code, which decides what its wheel holds. One that holds a module of another package takes that package's
place for each function that has both, wherever their directories stand on sys.path. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from sockd.starts.packages.distribution import Closure, Distribution
from sockd.starts.packages.provided_names import Provided

COMMON = frozenset(
    ("benchmarks", "conftest", "docs", "doc", "example", "examples", "scripts", "setup", "test", "tests", "tools")
)
"""Modules that packages leave in their wheels by mistake, and no function imports."""


def module_of_another(closure: Closure, provided: Callable[[Distribution], Provided]) -> str:
    """Return which package that was built holds a module of another package, as words for people; nothing if none does.

    POLICY: a module belongs to every package of a closure that holds it, and to the one that has its name."""
    for built in closure.distributions:
        if built.source is None:
            continue
        own = {name for name in provided(built).modules if name.partition(".")[0] not in COMMON}
        for other in closure.distributions:
            if other.key == built.key:
                continue
            theirs = own & (provided(other).modules | {other.name.replace("-", "_")})
            if theirs:
                return (
                    f"{built.name} {built.version}, which was built from source, holds {min(theirs)}, a module of {other.name}; "
                    "a package may hold its own modules alone"
                )
    return ""
