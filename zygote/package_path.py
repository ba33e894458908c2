"""sys.path as a function sees it: its code, its packages, the standard library, and what the packages' .pth files add.

A Zygote puts its packages there and runs their .pth files, as each of its functions would before its first import; a function
that is forked from it puts its own there and runs what was not run.
"""

from __future__ import annotations

import sys

_shared: frozenset[str] = frozenset()
"""What a Zygote has put on sys.path."""
_run: set[str] = set()
"""Directories whose .pth files have been run."""


def share(paths: list[str], pth: list[str]) -> None:
    """In a Zygote. Args: as `put`."""
    global _shared
    put(paths, pth)
    _shared = frozenset(paths)


def put(paths: list[str], pth: list[str]) -> None:
    """Args: paths: directories, first those that are to be first; pth: those of packages with .pth files."""
    path = [*paths]
    for each in sys.path:
        if each not in _shared and each not in paths:
            path.append(each)
    sys.path[:] = path
    if pth and not _run.issuperset(pth):
        import site

        known = set(path)
        for directory in pth:
            if directory not in _run:
                _run.add(directory)
                site.addsitedir(directory, known)
