"""What a Zygote's imports see: what the daemon compares with what a function would show them (`soundness` in the daemon).

While an Observer is entered, it notes each name that the import system looks up and whether anything provides it, questions to
`importlib.metadata` (the standard library's and its backport ask every finder), directories of packages that are listed, files
that are looked for in the function's directory, child processes, and environment variables that Python or C reads or sets.
Afterwards nothing of it is left but the audit hook in C, which is off.
"""

from __future__ import annotations

import os
import sys

from sockd_zygote import _native
from sockd_zygote.forks import children
from sockd_zygote.forks.surroundings import CODE
from sockd_zygote.forks.variable_reads import VariableReads, names_in

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

STORE = "/packages/"
"""Where the distributions are: sockd.starts.packages.distribution.SANDBOX_STORE."""
EVERY_FILE = "."
"""In the place of a file's name: the function's directory was listed."""
FOLLOWED_ANYWAY = frozenset(
    {"importlib._bootstrap_external", "_frozen_importlib_external", "importlib.metadata", "importlib_metadata", "site"}
)
"""Modules that list directories to look for names and .pth files, which are recorded themselves."""
DEEPEST = 12
"""Frames between `entry_points` and the finder that it asks, at most."""


class Observer:
    """Notes between `__enter__` and `__exit__`; `report` then."""

    def __init__(self, *finders: Any) -> None:
        """Args: finders: besides the observer's own, to be asked before all that `sys.meta_path` has."""
        self._looked_up: dict[str, None] = {}
        self._missed: set[str] = set()
        self._listed: set[str] = set()
        self._files: set[str] = set()
        self._metadata: set[str] = set()
        self._groups: set[str] = set()
        self._every_distribution = False
        self._variables = VariableReads(copies_count=False)
        self.processes: list[str] = []
        """Programs of child processes that see what is not observed."""
        self._first, self._last = (First(self), *finders), Last(self)
        self.complete = False
        """Afterwards: whether no package took what observes out of its place."""

    def __enter__(self) -> Observer:
        self._meta_path, self._kind = sys.meta_path, type(sys.meta_path)  # import_hooks.MetaPath
        self._meta_path.__class__ = self._asked(self._kind)
        self._variables.watch()
        _native.observe(self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        variables, every_variable_known, files, every_file_known = _native.stop_observing()
        in_place = self._variables.unwatch()
        self._variables.add_names_of_c(variables, are_all=every_variable_known)
        self._files.update(names_in(files) if every_file_known else (EVERY_FILE,))
        self.complete = in_place and self._meta_path is sys.meta_path
        self._meta_path.__class__ = self._kind
        ours = (*self._first, self._last)  # which are in the list if a package has copied it
        sys.meta_path[:] = [each for each in sys.meta_path if not any(each is one for one in ours)]

    def report(self) -> dict:
        """What was seen, as `sockd.isolation.farm.imported` reads it."""
        namespaces: set[str] = set()
        found: set[str] = set()
        missed: set[str] = set()
        for name in sorted(self._looked_up, key=lambda name: name.count(".")):
            parent = name.rpartition(".")[0]
            if parent and parent not in namespaces:
                continue  # a regular package's `__path__` decides, and that is its own
            if name in self._missed:
                missed.add(name)
            if name not in self._missed or name in sys.modules:
                (namespaces if is_namespace(name) else found).add(name)
        return {
            "missed": sorted(missed),
            "found": sorted(found),
            "namespaces": sorted(namespaces),
            "listed": sorted(self._listed),
            "files": sorted(self._files),
            "metadata": sorted(self._metadata),
            "groups": sorted(self._groups),
            "every_distribution": self._every_distribution,
            "variables": sorted(self._variables.names),
            "prefixes": sorted(self._variables.prefixes),
            "every_variable": self._variables.is_every,
        }

    # -- the import system

    def _asked(self, kind: Any) -> type:
        first, last = self._first, self._last

        class Asked(kind):  # type: ignore[misc]
            """`sys.meta_path` with what observes for those who go through it, and without for those who count: packages put
            finders at numbers of it (absl's is at -1)."""

            __slots__ = ()

            def __iter__(self) -> Any:
                yield from first
                yield from super().__iter__()
                yield last

        return Asked

    def looks_up(self, name: str) -> None:
        self._looked_up[name] = None

    def misses(self, name: str) -> None:
        self._looked_up[name] = None
        self._missed.add(name)

    def asks_for_metadata(self, name: str | None) -> None:
        """Args: name: of one distribution; None: of all."""
        if name is not None:
            self._metadata.add(normalized(name))
            return
        group = group_asked_for()
        if group is not None:
            self._groups.add(group)
        else:
            self._every_distribution = True

    # -- audit events

    def _heard(self, event: str, args: tuple) -> None:
        """From native/observe.c: os.listdir, os.scandir, os.putenv, os.unsetenv, and what starts a process."""
        asked_by = sys._getframe(1).f_globals.get("__name__")
        if event in ("os.putenv", "os.unsetenv"):
            self._variables.add_set(args[0])
        elif event in children.EVENTS:
            self._starts_process(event, args, asked_by)
        elif asked_by not in FOLLOWED_ANYWAY:
            self._lists(args[0])

    def _starts_process(self, event: str, args: tuple, asked_by: object) -> None:
        """A child has all variables, and may read any file, even if its own environment is a few variables."""
        variables = children.variables_of(event, args, asked_by)
        if variables is not None:
            self._variables.names.update(variables)
            return
        self._variables.add_every()
        self._files.add(EVERY_FILE)
        self.processes.append(children.in_words(event, args))

    def _lists(self, path: object) -> None:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        path = os.path.abspath(os.fsdecode(path or "."))  # type: ignore[arg-type]
        if path + "/" == STORE:
            self._listed.add("")
        elif path.startswith(STORE):
            self._listed.add(path.removeprefix(STORE).partition("/")[2].replace("/", "."))
        elif path == CODE:
            self._files.add(EVERY_FILE)
        elif path.startswith(f"{CODE}/"):
            self._files.add(path.removeprefix(f"{CODE}/").partition("/")[0])


class First:
    """The first finder: sees each name, provides none."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        self._observer.looks_up(name)


class Last:
    """The last finder: sees the names that no other provides, and questions for metadata."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        self._observer.misses(name)

    def find_distributions(self, context: Any = None) -> tuple[()]:
        self._observer.asks_for_metadata(getattr(context, "name", None))
        return ()


def is_namespace(name: str) -> bool:
    path = getattr(sys.modules.get(name), "__path__", None)
    return type(path).__name__ == "_NamespacePath"


def normalized(name: str) -> str:
    """A distribution's name as PEP 503 has it."""
    return "-".join(part for part in name.lower().replace("_", "-").replace(".", "-").split("-") if part)


def group_asked_for() -> str | None:
    """The group of the `entry_points(group=…)` that is being worked out; None: it is another question."""
    frame = sys._getframe(1)
    for _ in range(DEEPEST):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        if frame.f_code.co_name == "entry_points":
            group = frame.f_locals.get("params", {}).get("group")
            return group if isinstance(group, str) else None
    return None
