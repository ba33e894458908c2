"""AWS's module of hooks around a snapshot, for functions that do not bring it themselves: same names, same meaning.

A function imports it as `snapshot_restore_py`. The hooks run only where a snapshot is made and restored: those of
`register_before_snapshot` once, the last registered first; those of `register_after_restore` in each start, in order.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Hook = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]

_before_snapshot: list[Hook] = []
_after_restore: list[Hook] = []


def register_before_snapshot(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Have a function called with these arguments before the snapshot is made. Returns: the function."""
    _before_snapshot.append((func, args, kwargs))
    return func


def register_after_restore(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Have a function called with these arguments in each start from the snapshot. Returns: the function."""
    _after_restore.append((func, args, kwargs))
    return func


def get_before_snapshot() -> list[Hook]:
    """Return the list of what is registered for before the snapshot, as (function, arguments, keyword arguments)."""
    return _before_snapshot


def get_after_restore() -> list[Hook]:
    """Return the list of what is registered for after a restore, as (function, arguments, keyword arguments)."""
    return _after_restore
