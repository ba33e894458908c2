"""Child processes that imports start: what they read is not observed, and their end is reported as in a sandbox.

A child has the variables, the files and the working directory of the Zygote, so a Zygote whose imports start one must not serve.
Knows nothing of the other observations.
"""

from __future__ import annotations

import os
import sys

from sockd_zygote import _native

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

EVENTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.system", "os.exec", "os.fork", "os.forkpty"})
"""Audit events, each before a child is started (native/observe.c)."""
_FONTS = ("HOME", "FONTCONFIG_FILE", "FONTCONFIG_PATH", "FONTCONFIG_SYSROOT", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
HARMLESS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("/sbin/ldconfig", "-p"): (),
    ("uname", "-p"): (),
    ("fc-list", "--help"): (),
    ("fc-list", "--format=%{file}\\n"): (*_FONTS, "XDG_CACHE_HOME", "XDG_DATA_DIRS"),
}
"""Commands that the standard library (`ctypes.util`, `platform`) and matplotlib run at import. Of what functions have otherwise
they read variables alone: these, and `OF_ANY_PROGRAM`."""
OF_ANY_PROGRAM = ("GLIBC_TUNABLES", "LD_AUDIT", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOCPATH")
"""Variables that any program reads, besides PATH, which `subprocess` reads where it is observed, and those that count as read."""
OF_FILE = ("HOME", "MAGIC", "POSIXLY_CORRECT")
"""Variables that file(1) reads, which `platform.architecture` asks about the interpreter."""


class Ends:
    """While it is entered, a child that ends waits to be asked for; else the kernel reaps it (native/fork.c)."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        """Afterwards: why the Zygote may not serve, in words."""
        self._pid = os.getpid()

    def __enter__(self) -> Ends:
        _native.await_children()
        return self

    def __exit__(self, *_: object) -> None:
        # Before the kernel reaps them: of what ends from then on nothing is left to be found.
        if complaint := self._what_is_left():
            self.complaints.append(complaint)
        if not _native.disown_children():
            self.complaints.append("an import handles SIGCHLD")

    def _what_is_left(self) -> str:
        """Say that a child still runs, or has ended and nothing has waited for it; empty: there is none. Reap those that have
        ended."""
        found = ""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                found = "an import starts a process and does not wait for its end"
        except ChildProcessError:
            return found
        return "an import leaves a process running"

    def end_returned_child(self) -> None:
        """End this process if an import has forked it and it has come back from the import: the Zygote is its parent."""
        if os.getpid() != self._pid:  # no flag that `os.fork` sets: C code forks without it
            os._exit(0)


def variables_of(event: str, args: tuple[Any, ...], asked_by: object) -> tuple[str, ...] | None:
    """Return the variables that a child reads, if it shows an import nothing else; none of a child that was reported before.

    Args: asked_by: the name of the module that starts it."""
    if event == "subprocess.Popen" and type(args[1]) in (list, tuple) and args[0] == args[1][0]:
        command = tuple(args[1])
        is_architecture = command == ("file", "-b", os.path.realpath(sys.executable))
        variables = OF_FILE if is_architecture else HARMLESS.get(command)
        return None if variables is None else OF_ANY_PROGRAM + variables
    return () if event == "os.posix_spawn" and asked_by == "subprocess" else None


def in_words(event: str, args: tuple[Any, ...]) -> str:
    """Name the program of a child by its file."""
    if event in ("os.fork", "os.forkpty"):
        return "a fork"
    program, *_ = os.fsdecode(args[0]).split() or [""]
    return os.path.basename(program)
