"""How often code registers something with the process that nothing can list: codecs, error handlers, audit hooks, hooks of
forks, variables that only C code sees (`os.putenv`).

While a watch is entered, the functions that register count their calls; afterwards all modules have the original ones again.
"""

from __future__ import annotations

import sys

from sockd_zygote.forks import taken_names

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FUNCTIONS = {
    ("codecs", "register"): "the codecs (codecs.register)",
    ("codecs", "register_error"): "the error handlers of codecs (codecs.register_error)",
    ("sys", "addaudithook"): "the audit hooks (sys.addaudithook)",
    ("os", "register_at_fork"): "what runs at a fork (os.register_at_fork)",
    ("os", "putenv"): "variables that only code in C sees (os.putenv)",
    ("os", "unsetenv"): "variables that only code in C sees (os.unsetenv)",
}
"""Module and name of each, and what it changes, in words."""
ALIASES = {"codecs": "_codecs", "os": "posix"}
"""Modules that have the same functions by the same names."""


class Registrations:
    """Counts calls between `__enter__` and `__exit__`, but not those of the function's own module, `os.environ` for one, which is
    compared by value.

    Attributes:
        counts: by what is changed, in words."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(FUNCTIONS.values(), 0)
        self._replaced: list[tuple[Any, Any]] = []

    def __enter__(self) -> Registrations:
        for (module, name), words in FUNCTIONS.items():
            theirs = getattr(sys.modules[module], name)
            ours = self._counting(theirs, vars(sys.modules[module]), words)
            for place in (module, ALIASES.get(module, "")):
                if place in sys.modules:
                    setattr(sys.modules[place], name, ours)
            self._replaced.append((ours, theirs))
        return self

    def __exit__(self, *_: object) -> None:
        for ours, theirs in self._replaced:
            taken_names.give_back(ours, theirs)

    def _counting(self, function: Callable[..., Any], namespace: dict[str, Any], words: str) -> Callable[..., Any]:
        def register(*args: Any, **kwargs: Any) -> Any:
            self.counts[words] += sys._getframe(1).f_globals is not namespace
            return function(*args, **kwargs)

        return register
