"""The names of changes as people know them, where a snapshot (`state`) has those of internals of the standard library."""

from __future__ import annotations

MOST_SHOWN = 3
NAMES = {
    "_decimal.DefaultContext": "decimal.DefaultContext",
    "_warnings.filters": "warnings.filters",
    "logging._at_fork_reinit_lock_weakset": "handlers of logging",
    "logging._warnings_showwarning": "warnings.showwarning",
    "loggers['root']": "the root logger",
    "numpy.random state": "the state of numpy.random",
    "random state": "the state of random",
    "random._inst": "the state of random",
}
BEGINNINGS = {
    "contextvars.Context.": "the context variable ",
    "loggers[": "the logger ",
    "signal handlers[": "the handler of signal ",
}
"""What the names of changes begin with, whose rest names one of many: instead of it, in words."""


def in_words(changes: list[str]) -> str:
    """Return the first changes; empty if there are none."""
    names = sorted(set(map(name_for_people, changes)))
    shown = ", ".join(names[:MOST_SHOWN])
    return f"{shown} and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else shown


def name_for_people(change: str) -> str:
    """Return what a change is called in a reason."""
    for beginning, words in BEGINNINGS.items():
        if change.startswith(beginning) and change not in NAMES:
            return words + change.removeprefix(beginning).removesuffix("]")
    module, _, name = change.rpartition(".")
    if change not in NAMES and module and " " not in module and name.startswith("_") and name.isidentifier():
        return f"the state of {module} ({name})"
    return NAMES.get(change, change)
