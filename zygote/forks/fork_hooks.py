"""What packages want done around each fork (`os.register_at_fork`), rehearsed.

A child runs these hooks before its function, and code that has never run costs it the most: the interpreter specializes it,
and fills caches, in pages that are copied for that. So they are remembered, to be rehearsed. Owns the list; the hooks are
the interpreter's, which runs them all (native/fork.c).
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable

    Hook = Callable[[], object]

LONGEST_S = 0.1
"""How long all of a rehearsal may take: hooks that are slow are so for other reasons."""

_before: list[Hook] = []
_in_child: list[Hook] = []


class Watch:
    """While it is entered, hooks that are registered are remembered."""

    def __enter__(self) -> None:
        self._register = os.register_at_fork
        self._ours = os.register_at_fork = self._remember  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        from sockd_zygote.forks import taken_names  # in Zygotes with packages only

        taken_names.give_back(self._ours, self._register)

    def _remember(self, **hooks: Hook) -> None:
        self._register(**hooks)
        if "after_in_child" not in hooks:
            return  # what no child takes back, such as a lock, is not taken twice
        _in_child.append(hooks["after_in_child"])
        if "before" in hooks:
            _before.insert(0, hooks["before"])  # the last one first, as at a fork


def rehearse(times: int) -> None:
    """Run those that are remembered, in the order in which a fork and its child would."""
    end = time.monotonic() + LONGEST_S
    for _ in range(times):
        if time.monotonic() > end:
            return
        for hook in (*_before, *_in_child):
            try:
                hook()
            except Exception:
                continue  # so does a fork
