"""What the .pth files of packages add to sys.path, and what else they do: once in a process and its forks.

A Zygote puts its packages on sys.path and runs their .pth files, as each of its functions would before its first import. A
function that is forked from it finds that done.
"""

from __future__ import annotations

import sys

STORE = "/packages/"
"""Where the distributions are: sockd.caches.packages.distribution.SANDBOX_STORE."""

_run: set[str] = set()
"""Directories whose .pth files have been run."""
_added: list[str] = []
"""What they have put on sys.path, of packages' directories."""


def share(paths: list[str], pth: list[str]) -> None:
    """In a Zygote. Args: paths: of all its packages; pth: those that have .pth files."""
    sys.path[:] = [*paths, *(each for each in sys.path if not each.startswith(STORE))]
    run(pth)


def replace(path: list[str], pth: list[str], sitecustomize: str) -> None:
    """As `share`, in a Zygote of an image. Args: path: all of sys.path, with what .pth files add; pth: directories with such;
    sitecustomize: as `customize` takes it, or empty."""
    sys.path[:] = path
    run(pth)
    if sitecustomize:
        customize(sitecustomize)


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
    """Run the .pth files in these directories, as far as it was not done. Nothing else of packages is behind sys.path's end."""
    sys.path += _added
    known = set(sys.path)
    for directory in pth:
        if directory not in _run:
            import site

            _run.add(directory)
            before = len(sys.path)
            site.addsitedir(directory, known)
            _added.extend(each for each in sys.path[before:] if each.startswith(STORE))
