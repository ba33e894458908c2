"""What imports do with a listing of all environment variables: most look for a prefix (`TQDM_`, `NETWORKX_`), and at no other.

A listing gives names and values that notice what is done with them. If each name was only asked whether it begins with
something, nothing of the listing was kept, and no variable of this Zygote has such a name, then only variables with that prefix
count. Whatever else is done makes all variables count.
"""

from __future__ import annotations

from _weakref import ref  # `weakref` itself must not be in `sys.modules` before a function imports it

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

UNSEEN = frozenset(
    {"__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__delattr__", "__dict__", "__weakref__"}
)
"""Attributes of a string that say nothing about it."""


class Listings:
    """Notes of all listings; `prefixes` and `are_understood` afterwards."""

    def __init__(self) -> None:
        self.prefixes: set[str] = set()
        self._otherwise = False
        self._given: list[ref[Any]] = []
        self._untested: set[int] = set()
        """Names of which nothing was asked so far, by number."""
        self._name, self._value = self._noticing("Name"), self._noticing("Value")
        self._name.startswith = self._starts_with()

    def name(self, plain: str) -> str:
        """A name of a listing."""
        given = self._name(plain)
        given.number = len(self._given)
        self._untested.add(given.number)
        self._given.append(ref(given))
        return given  # type: ignore[no-any-return]

    def value(self, plain: str) -> str:
        """The value that belongs to a name of a listing."""
        given = self._value(plain)
        self._given.append(ref(given))
        return given  # type: ignore[no-any-return]

    def is_name(self, key: object) -> bool:
        return type(key) is self._name

    @property
    def are_understood(self) -> bool:
        """Whether of all that was listed only variables with these prefixes count."""
        return not self._otherwise and not self._untested and all(given() is None for given in self._given)

    def _noticing(self, title: str) -> Any:
        """A class of strings that note each use."""

        def noting(method: Callable[..., Any]) -> Callable[..., Any]:
            def use(own: Any, *args: Any, **kwargs: Any) -> Any:
                self._otherwise = True
                return method(own, *args, **kwargs)

            return use

        methods = {
            name: noting(method) for name, method in vars(str).items() if name not in UNSEEN and callable(method)
        }
        return type(title, (str,), {**methods, "__radd__": noting(lambda own, other: other + str.__str__(own))})

    def _starts_with(self) -> Callable[..., bool]:
        def startswith(own: Any, prefix: Any, *bounds: Any) -> bool:
            begins = str.startswith(own, prefix, *bounds)
            self._untested.discard(own.number)
            self.prefixes.update([prefix] if isinstance(prefix, str) else prefix)
            self._otherwise = self._otherwise or begins or bool(bounds)
            return begins

        return startswith


def plain(text: str) -> str:
    """The same as a common string."""
    return str.__str__(text)
