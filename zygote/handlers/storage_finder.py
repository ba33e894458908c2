"""`storage` and `nosql` are ours: a finder for functions whose configuration says `storage = "sockd"`.

SeBS's packages bring a storage.py of their own and import it as `from . import storage` in the package `function`. This
stands before the finders of the import system, so that it is asked first, also for those; no file of the package is touched.

What a function needs to take over what its initscript has fetched is imported in the root Zygote, where no function sees it: to
import it anew in each sandbox took 2.3 ms of a start.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_bootstrap = sys.modules["_frozen_importlib"]
_external = sys.modules["_frozen_importlib_external"]

DIRECTORY = os.path.join(__file__.rsplit("/", 3)[0], "storage_lib")
"""Next to our own code: /opt/sockd/storage_lib in a sandbox."""
MODULES = ("storage", "nosql")
PACKAGES = ("sockd_initscript", "sockd_storage")
ALIASES = {"function.storage": "storage", "function.nosql": "nosql"}
"""One module under two names, so that there is one count of what the function has read."""
AHEAD = ("storage", "sockd_initscript.app_link")

CLIENTS = {"botocore.client": "sockd_storage.clients", "requests.adapters": "sockd_storage.web"}
"""Modules whose clients the function has besides the library, and what serves them."""

REQUESTS = b"SOCKD_STORAGE_REQUESTS"
"""The variable by which a function asks to have GETs of `requests` served."""

_served: dict[bytes, bytes] | None = None
"""The variables of a function whose clients are served."""
_ready: dict[str, ModuleType] = {}
"""Modules of the library that functions get as they are, not used yet."""


def prepare(use: Callable[[dict[str, ModuleType]], None] = lambda library: None) -> None:
    """In the root Zygote: import AHEAD, and keep it out of the way of functions that have not asked for it.

    Args: use: called with the library while imports find it. What it changes there, every function gets so."""
    import mmap as mmap  # which the library imports when it first needs it

    finder = StorageFinder(DIRECTORY)
    finder.install()
    for name in AHEAD:
        __import__(name)
    use(sys.modules)
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if is_ours(name)]:
        _ready[name] = sys.modules.pop(name)


def serve_clients(variables: dict[bytes, bytes]) -> None:
    """Have clients of boto3 find what the initscript fetches, those of a botocore that is imported later, too. There is a link.

    Args: variables: the function's own, which its initscript has, too."""
    global _served
    _served = variables
    for name in CLIENTS:
        if name in sys.modules:
            attend(sys.modules[name], name)


def attend(client: ModuleType, name: str) -> None:
    """A module of CLIENTS is imported. Args: name: its own."""
    if _served is None or (name == "requests.adapters" and _served.get(REQUESTS) != b"1"):
        return
    if hasattr(client, "ClientCreator") or hasattr(
        client, "HTTPAdapter"
    ):  # no module of the function's own with this name
        if not any(isinstance(finder, StorageFinder) for finder in sys.meta_path):
            if "sockd_initscript" in sys.modules:  # which the function has brought, and may have the link
                return
            StorageFinder(DIRECTORY, has_modules=False).install()
        __import__(CLIENTS[name])
        environ = {os.fsdecode(variable): os.fsdecode(value) for variable, value in _served.items()}
        sys.modules[CLIENTS[name]].attend(client, environ)


def of_library(name: str) -> ModuleType | None:
    """A module of the library that a function has, or gets when it asks; None: it has another one."""
    return sys.modules.get(name) or _ready.get(name)


def is_ours(name: str) -> bool:
    """Whether a module's name is one of the library's, in it or in a package."""
    return name in ALIASES or name.partition(".")[0] in (*MODULES, *PACKAGES)


class StorageFinder:
    """Finds the storage library, whatever else has its names."""

    def __init__(self, directory: str, *, has_modules: bool = True) -> None:
        """Args: has_modules: whether the function gets MODULES; if not, there are only PACKAGES, which no other package has."""
        self._directory = directory
        self._names = (*MODULES, *PACKAGES, *ALIASES) if has_modules else PACKAGES

    def install(self) -> None:
        """Be asked first. A module of these names that a Zygote with packages imported is forgotten: it may be another one."""
        for name in self._names:
            sys.modules.pop(name, None)
        sys.modules.update((name, module) for name, module in _ready.items() if name.partition(".")[0] in self._names)
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        spec: ModuleSpec | None = None
        if name not in self._names:
            return None
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
