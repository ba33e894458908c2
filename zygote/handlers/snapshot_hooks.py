"""Runs the hooks around a snapshot that a function has registered.

A requirement or an image may bring AWS's `snapshot_restore_py` itself: the module in `sys.modules` counts.
"""

from __future__ import annotations

import sys

from sockd_zygote.handlers.import_hooks import SNAPSHOT_HOOKS
from sockd_zygote.messages.errors import ReportedError, describe

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def run_before_snapshot() -> None:
    """Run the hooks for before the snapshot, the last registered first. Raises: ReportedError, `Runtime.BeforeSnapshotError`."""
    hooks = _registered("get_before_snapshot")
    while hooks:
        _run(hooks.pop(), "Runtime.BeforeSnapshotError")


def run_after_restore() -> None:
    """Run the hooks for after a restore, in order. Raises: ReportedError, `Runtime.AfterRestoreError`."""
    for hook in list(_registered("get_after_restore")):
        _run(hook, "Runtime.AfterRestoreError")


def _registered(getter: str) -> list[Any]:
    get: Callable[[], list[Any]] | None = getattr(sys.modules.get(SNAPSHOT_HOOKS), getter, None)
    return get() if get is not None else []


def _run(hook: Any, kind: str) -> None:
    from json import loads

    func, args, kwargs = hook
    try:
        func(*args, **kwargs)
    except SystemExit:
        raise ReportedError(kind, f"{name_of(func)} ended the process with sys.exit", []) from None
    except BaseException as error:
        described = loads(describe(error))
        message = f"{name_of(func)}: {described['errorType']}: {described['errorMessage']}"
        raise ReportedError(kind, message, described.get("stackTrace", [])) from None


def name_of(func: object) -> str:
    """Return the name of a hook for an error's text."""
    return str(getattr(func, "__qualname__", None) or type(func).__qualname__)
