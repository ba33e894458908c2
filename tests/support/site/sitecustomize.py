"""Puts the guard of event loops (`tests/support/watched_descriptors.py`) into a process that a test starts.

tests/conftest.py has this directory first in PYTHONPATH, so the interpreter imports this file by its name at each start
(site). It imports next to nothing, and patches uvloop when the program imports that: commands that have no loop stay as
they are.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class GuardLoops:
    """Stands before the finders of modules until uvloop has been found."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "uvloop":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_guard(module: ModuleType) -> None:
            execute(module)
            guard()

        spec.loader.exec_module = execute_and_guard  # type: ignore[method-assign]
        return spec


def guard() -> None:
    """From the file beside this directory: the program may have another tests package, or none."""
    from importlib.util import module_from_spec, spec_from_file_location

    file = __file__.rpartition("/site/")[0] + "/watched_descriptors.py"
    spec = spec_from_file_location("watched_descriptors", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install(is_fatal=True)


sys.meta_path.insert(0, GuardLoops())
