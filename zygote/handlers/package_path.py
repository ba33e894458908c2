"""What packages add to sys.path: what their .pth files add, and what their imports append, once in a process and its forks.

A Zygote puts its packages on sys.path and runs their .pth files, as each of its functions would before its first import. A
function that is forked from it finds that done. In a start of its own, sys.path has the function's code, its packages and the
standard library, then what .pth files have added, then what imports have appended. An entry does not show which of these it is.
So a Zygote takes the last two out of sys.path when its imports are done, and each of its forks adds them again. The list stays
the same object, because packages may have kept it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable

STORE = "/packages/"
"""Where the distributions are: sockd.starts.packages.distribution.SANDBOX_STORE."""

_run: set[str] = set()
"""Directories whose .pth files have been run."""
_added: list[str] = []
"""What they have put on sys.path."""
_appended: list[str] = []
"""What imports have put there, in this Zygote and in those that it was forked from."""
_base: list[str] = []
"""What was there before both."""


def share(paths: list[str], pth: list[str]) -> None:
    """In a Zygote. Args: paths: of all its packages; pth: those that have .pth files."""
    sys.path[:] = _base[:] = [*paths, *(each for each in sys.path if not each.startswith(STORE))]
    run(pth)
    append()


def replace(path: list[str], pth: list[str], sitecustomize: str) -> None:
    """As `share`, in a Zygote of an image. Args: path: all of sys.path, with what .pth files add; pth: directories with such;
    sitecustomize: as `customize` takes it, or empty."""
    sys.path[:] = _base[:] = path
    run(pth)
    if sitecustomize:
        customize(sitecustomize)
    append()


def append() -> None:
    """Put on sys.path what the imports of this Zygote, or of those that it was forked from, have appended."""
    sys.path += _appended


def keep() -> list[str]:
    """Take what was added out of sys.path, after a Zygote's imports. Returns: why its forks could not have the same.

    Entries at the end can be added in each fork. An entry at the front cannot: it decides before the function's code, and its
    place depends on what the code itself inserts before it imports the package. Nor can the function's directory, which no
    Zygote has on sys.path: a package that appends it if it is absent does not append it in a start of the function's own."""
    from sockd_zygote.forks.surroundings import CODE  # a start of a function's own does not need it

    known = [*_base, *_added, *_appended]
    complaints = []
    if sys.path[: len(known)] != known:
        complaints.append("an import changes the order of sys.path")
    new = sys.path[len(known) :]
    if CODE in new and CODE not in known:
        complaints.append("an import appends the function's directory to sys.path")
    _appended.extend(new)
    sys.path[:] = _base
    return complaints


def with_code() -> list[Callable[[], object]]:
    """Return what a fork has to call as soon as its own entries and those of .pth files are on sys.path."""
    return [append] if _appended else []


def customize(file: str) -> None:
    """Import an image's sitecustomize as its `site` does, which does not see the function's code. It is one that does nothing:
    what it looks for is in no directory of the image's sys.path. Args: file: the module's."""
    path = sys.path[:]
    sys.path[:] = [file.rpartition("/")[0]]
    try:
        __import__("sitecustomize")
    finally:
        sys.path[:] = path


def run(pth: list[str]) -> None:
    """Run the .pth files in these directories, as far as it was not done. What imports append must not be on sys.path yet: a .pth
    file would not add it again."""
    sys.path += _added
    known = set(sys.path)
    for directory in pth:
        if directory not in _run:
            import site

            _run.add(directory)
            before = len(sys.path)
            site.addsitedir(directory, known)
            _added.extend(sys.path[before:])
