"""`storage` and `nosql` are ours: a finder for functions whose configuration says `storage = "sockd"`.

SeBS's packages bring a storage.py of their own and import it as `from . import storage` in the package `function`. This
stands before the finders of the import system, so that it is asked first, also for those; nothing is imported until the
function does it, and no file of the package is touched.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_bootstrap = sys.modules["_frozen_importlib"]
_external = sys.modules["_frozen_importlib_external"]

DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(__file__)), "storage_lib")
"""Beside our own code: /opt/sockd/storage_lib in a sandbox."""
MODULES = ("storage", "nosql")
PACKAGES = ("sockd_initscript", "sockd_storage")
ALIASES = {"function.storage": "storage", "function.nosql": "nosql"}
"""One module under two names, so that there is one count of what the function has read."""


class StorageFinder:
    """Finds the storage library, whatever else has its names."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def install(self) -> None:
        """Be asked first. A module of these names that a Zygote imported is forgotten: it may be another one."""
        for name in (*MODULES, *PACKAGES, *ALIASES):
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        spec: ModuleSpec | None = None
        if name in MODULES:
            spec = _external.spec_from_file_location(name, f"{self._directory}/{name}.py")
        elif name in PACKAGES:
            directory = f"{self._directory}/{name}"
            file = f"{directory}/__init__.py"
            spec = _external.spec_from_file_location(name, file, submodule_search_locations=[directory])
        elif name in ALIASES:
            spec = _bootstrap.ModuleSpec(name, Alias())
        return spec


class Alias:
    """Loads a module as another one that has a name of its own already."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        target = ALIASES[module.__name__]
        __import__(target)
        sys.modules[module.__name__] = sys.modules[target]  # the import system looks here for what it gives back
