"""Hooks of the import system: how long each module's own import took, AWS's layout for a `logging` that comes late, what serves
botocore, and AWS's module `snapshot_restore_py` for functions that do not bring it.

All but the last wrap `_find_and_load_unlocked`, which is a Python function looked up at each import. The timer costs under a
microsecond an import, and after the first answer of a sandbox nothing of it is left. The others are put in place once, in the
root Zygote, and no start pays for them: a fork of a Zygote whose packages have imported `logging` has its layout from the
beginning, and a start of the function's own must not log otherwise because it has not.
"""

from __future__ import annotations

import os
import sys
import time

from sockd_zygote.handlers import storage_finder

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

SNAPSHOT_HOOKS = "snapshot_restore_py"
"""AWS's module in which functions register hooks around a snapshot."""
FILE = os.path.join(os.path.dirname(__file__), f"{SNAPSHOT_HOOKS}.py")
_bootstrap = sys.modules["_frozen_importlib"]
_external = sys.modules["_frozen_importlib_external"]
_find_and_load = _bootstrap._find_and_load_unlocked
_awaits_logging = False


class ImportTimer:
    """Between `start` and `stop`, `seconds[module]` is the time its import took without those it imported in turn."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]
        self._load = _bootstrap._find_and_load_unlocked

    def start(self) -> None:
        _bootstrap._find_and_load_unlocked = self._timed  # type: ignore[attr-defined]

    def stop(self) -> None:
        _bootstrap._find_and_load_unlocked = self._load  # type: ignore[attr-defined]

    def _timed(self, name: str, import_: object) -> object:
        self._inner.append(0.0)
        self.seconds[name] = 0.0  # takes its place in the order in which imports begin
        started = time.perf_counter()
        try:
            return self._load(name, import_)
        finally:
            spent = time.perf_counter() - started
            self.seconds[name] = spent - self._inner.pop()
            self._inner[-1] += spent


class SnapshotHooksFinder:
    """Finds SNAPSHOT_HOOKS where nothing else has it. It stands before the finder of `sys.path` and asks that one first, which
    stays the last, as packages insert finders before the last one."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of the module; None for any other name."""
        if name != SNAPSHOT_HOOKS:
            return None
        spec: ModuleSpec | None = _external.PathFinder.find_spec(name)
        return spec or _external.spec_from_file_location(name, FILE)


def watch_imports() -> None:
    """Notice the imports of `logging` and of parts of botocore in this process and its forks; find SNAPSHOT_HOOKS for them."""
    _bootstrap._find_and_load_unlocked = _load  # type: ignore[attr-defined]
    sys.meta_path.insert(-1, SnapshotHooksFinder)


def lay_out_logs() -> None:
    """The function has been imported: give it AWS's layout (`log_layout`), now or as soon as it imports `logging`."""
    global _awaits_logging
    if hasattr(sys.modules.get("logging"), "makeLogRecord"):  # no module of the function's own with this name
        from sockd_zygote.messages import log_layout

        log_layout.apply()
    else:
        _awaits_logging = True


def _load(name: str, import_: object) -> object:
    module = _find_and_load(name, import_)
    if name == "logging":
        if _awaits_logging:
            lay_out_logs()
    elif name == "botocore.loaders":
        from sockd_zygote.handlers import botocore_data

        botocore_data.attend(module)
    elif name == "botocore.hooks":
        from sockd_zygote.handlers import botocore_events

        botocore_events.attend(module)
    elif name == storage_finder.CLIENTS:
        storage_finder.attend(module)
    return module
