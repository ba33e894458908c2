"""Hooks of the import system: how long each module's own import took, AWS's layout for a `logging` that comes late, what serves
botocore, the runtime's own modules that a Zygote has hidden, and AWS's module `snapshot_restore_py` for functions that do not
bring it.

A start of the function's own loads modules of the runtime when it first needs them, and code that looks at `sys.modules` can see
that. So a Zygote hides those that it has loaded for its own work, and each fork gets the same objects back as it imports them.

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
    from types import ModuleType

SNAPSHOT_HOOKS = "snapshot_restore_py"
"""AWS's module in which functions register hooks around a snapshot."""
FILE = os.path.join(os.path.dirname(__file__), f"{SNAPSHOT_HOOKS}.py")
_bootstrap = sys.modules["_frozen_importlib"]
_external = sys.modules["_frozen_importlib_external"]
_find_and_load = _bootstrap._find_and_load_unlocked
_awaits_logging = False
OURS = "sockd_zygote."
"""What the names of the runtime's modules begin with."""
OF_ZYGOTES = f"{OURS}forks.", f"{OURS}template"
"""What the names of modules begin with that no start of a function's own loads for its init."""
WITH_PACKAGES = frozenset(f"{OURS}handlers.botocore_{part}" for part in ("data", "events", "tls", "clients"))
"""Modules that come with the import of a package, in a Zygote and in a start of the function's own alike."""
_hidden: dict[str, ModuleType] = {}
_of_every_start: set[str] = set()


class MetaPath(list):
    """`sys.meta_path` from the start of the root Zygote on, in starts of a function's own, too. A list has a class for good that
    is `list` itself; one of these becomes a list that an observer follows, and this again, while packages keep it."""

    __slots__ = ()


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
    """Notice the imports of `logging`, of parts of botocore and of hidden modules in this process and its forks; find
    SNAPSHOT_HOOKS for them."""
    _bootstrap._find_and_load_unlocked = _load  # type: ignore[attr-defined]
    sys.meta_path = MetaPath(sys.meta_path)
    sys.meta_path.insert(-1, SnapshotHooksFinder)


def note_loaded() -> None:
    """In the root Zygote, when it is ready: what it has loaded by now, each start finds."""
    _of_every_start.update(sys.modules)


def hide(beginnings: tuple[str, ...] = (OURS,)) -> None:
    """Take out what was loaded since `note_loaded`. Args: beginnings: of the names of modules."""
    # A package after its modules, which are then no attributes of it.
    for name in [name for name in reversed(sys.modules) if name.startswith(beginnings)]:
        if name not in _of_every_start and name not in WITH_PACKAGES:
            _hidden[name] = take_out(name)


def take_out(name: str) -> ModuleType:
    """Take a module out of `sys.modules` and out of its package."""
    module = sys.modules.pop(name)
    parent, _, child = name.rpartition(".")
    if parent and getattr(sys.modules.get(parent), child, None) is module:
        delattr(sys.modules[parent], child)
    return module


def show(name: str) -> ModuleType | None:
    """Put a hidden module where an import of it expects it, and its packages. Returns: None, if there is none of this name."""
    module = _hidden.pop(name, None)
    if module is not None:
        parent, _, child = name.rpartition(".")
        if parent not in sys.modules:
            show(parent)
        sys.modules[name] = module
        setattr(sys.modules[parent], child, module)
    return module


def lay_out_logs() -> None:
    """The function has been imported: give it AWS's layout (`log_layout`), now or as soon as it imports `logging`."""
    global _awaits_logging
    if hasattr(sys.modules.get("logging"), "makeLogRecord"):  # no module of the function's own with this name
        from sockd_zygote.messages import log_layout

        log_layout.apply()
    else:
        _awaits_logging = True


def _load(name: str, import_: object) -> object:
    if name.startswith(OURS) and (hidden := show(name)) is not None:
        return hidden
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
    elif name == "botocore.httpsession":
        from sockd_zygote.handlers import botocore_tls

        botocore_tls.attend(module)
    elif name in ("botocore", "botocore.endpoint_provider"):
        from sockd_zygote.handlers import botocore_clients

        botocore_clients.attend(module, name)
    elif name in storage_finder.CLIENTS:
        storage_finder.attend(module, name)
    return module
