"""Which environment variables imports read or set: by name, by a prefix of their names, or all of them.

Between `watch` and `unwatch`, `os.environ` and `os.environb` note what is asked of them. What C code asks for comes from
native/observe.c by `add_names_of_c`, and what is set from audit events by `add_set`: the owner of these calls both (`Observer` in
a Zygote, `top_levels.own_variables` in a recording).
"""

from __future__ import annotations

import os
import posix

from sockd_zygote.forks.copied_variables import is_copying
from sockd_zygote.forks.listed_variables import Listings, plain

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

UNOBSERVED = frozenset({"TZ", "LANG", "LANGUAGE"})
UNOBSERVED_PREFIX = "LC_"
"""Variables that the C library reads inside itself, unseen: taken to be read by every import."""


class VariableReads:
    """Notes while it watches; `names`, `prefixes` and `is_every` then. It may watch again."""

    def __init__(self, *, copies_count: bool = True) -> None:
        """Args: copies_count: whether the copies that each fork makes again (`copied_variables`) are reads of all variables."""
        self._copies_count = copies_count
        self.names: set[str] = set()
        self._listings = Listings()
        self._every = False
        self._watched = self._noting()

    @property
    def prefixes(self) -> set[str]:
        """What the names of variables begin with that a listing of all was searched for."""
        return self._listings.prefixes

    @property
    def is_every(self) -> bool:
        """Whether all variables were listed, and it is not known for which."""
        return self._every or not self._listings.are_understood

    def watch(self) -> None:
        """Have `os.environ`, `os.environb` and `posix.environ` note what is asked of them."""
        self._environs = os.environ, os.environb
        # Not the class's methods: whatever is cached of a changed class is worked out anew in every child.
        os.environ.__class__ = os.environb.__class__ = self._watched
        # What both keep their variables in. No module has a reason to use it, and one that does is not followed.
        self._variables_of_posix = vars(posix).pop("environ")
        vars(posix)["__getattr__"] = self._asked_of_posix

    def unwatch(self) -> bool:
        """Note nothing more. Returns: whether no package has put another object in the place of one that was watched."""
        for environ in self._environs:
            environ.__class__ = os._Environ
        vars(posix).pop("__getattr__", None)
        vars(posix).setdefault("environ", self._variables_of_posix)
        return self._environs[0] is os.environ and self._environs[1] is os.environb

    def add_every(self) -> None:
        """Note that all variables were read."""
        self._every = True

    def add_set(self, name: Any) -> None:
        """Note a variable that `os.putenv` or `os.unsetenv` has changed. Args: name: from the audit event."""
        self.names.add(os.fsdecode(name).rstrip("="))

    def add_names_of_c(self, data: bytes, *, are_all: bool) -> None:
        """Note what C code asked for. Args: are_all: whether there was room for all names."""
        self.names.update(names_in(data))
        self._every = self._every or not are_all

    def _noting(self) -> type:
        reads = self

        class Copied(str):
            """A variable's name that a copy is made with. Gone with this object: functions see subclasses of `str`."""

            __slots__ = ()

        class Watched(os._Environ):
            __slots__ = ()

            def __getitem__(self, key: Any) -> Any:
                if type(key) is Copied:
                    return super().__getitem__(plain(key))
                if reads._listings.is_name(key):  # a listing of names and values
                    return reads._listings.value(super().__getitem__(plain(key)))
                reads.names.add(os.fsdecode(key) if isinstance(key, (str, bytes)) else "")
                return super().__getitem__(key)

            def __iter__(self) -> Any:
                is_copy = not reads._copies_count and is_copying()
                for key in super().__iter__():
                    if is_copy:
                        key = Copied(key)
                    elif isinstance(key, str):
                        key = reads._listings.name(key)
                    else:
                        reads._every = True
                    yield key

            def __len__(self) -> int:
                reads._every = True
                return super().__len__()

            def __repr__(self) -> str:
                reads._every = True
                return super().__repr__()

        return Watched

    def _asked_of_posix(self, name: str) -> Any:
        if name != "environ":
            raise AttributeError(f"module 'posix' has no attribute {name!r}")
        self._every = True
        return self._variables_of_posix


def names_in(data: bytes) -> list[str]:
    """Names with a zero behind each."""
    return [os.fsdecode(name) for name in data.split(b"\0") if name]
