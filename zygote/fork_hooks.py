"""What packages want done around each fork (`os.register_at_fork`), as far as it makes a Zygote's own forks slow.

A child runs these hooks before its function, and code that has never run costs it the most: the interpreter specializes it,
and fills caches, in pages that are copied for that. So they are remembered, to be rehearsed. Those of the standard library
that renew locks and forget threads have nothing to do in a child of a Zygote, where nobody holds a lock and there is one
thread; they are registered for other forks only. Owns the list; the hooks are the interpreter's.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable

    Hook = Callable[[], object]

LONGEST_S = 0.1
"""How long all of a rehearsal may take: hooks that are slow are so for other reasons."""
FOR_THREADS = frozenset({"concurrent.futures.thread", "logging", "threading"})
"""Modules whose hooks only do what other threads, who may hold their locks, make necessary."""

is_zygote = False
"""Whether the next fork is a Zygote's own (`fork_server.serve`): of a process with one thread, which is in no package's code."""

_before: list[Hook] = []
_in_child: list[Hook] = []


class Watch:
    """While it is entered, hooks that are registered are remembered, or kept from a Zygote's own forks."""

    def __enter__(self) -> None:
        self._register = os.register_at_fork
        os.register_at_fork = self._remember  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        os.register_at_fork = self._register

    def _remember(self, **hooks: Hook) -> None:
        if sys._getframe(1).f_globals.get("__name__") in FOR_THREADS:
            self._register(**{when: for_others(hook) for when, hook in hooks.items()})
            return
        self._register(**hooks)
        if "after_in_child" not in hooks:
            return  # what no child takes back, such as a lock, is not taken twice
        _in_child.append(hooks["after_in_child"])
        if "before" in hooks:
            _before.insert(0, hooks["before"])  # the last one first, as at a fork


def for_others(hook: Hook) -> Hook:
    """What does nothing around the forks of a Zygote."""
    return lambda: None if is_zygote else hook()


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
