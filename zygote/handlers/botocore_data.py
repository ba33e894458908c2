"""What botocore reads of its own package to make a client, read ahead in a Zygote.

A session parses 2 MB of JSON for its first S3 client, and looks into each of 450 directories for the names of the services: most
of the processor time of `boto3.client`. The files are those of an installed package, the same in each sandbox and never
written. So a Zygote that has imported botocore reads them, and its forks take over what botocore's own functions would return.

`attend` changes two methods in each start, so that botocore is the same in a fork of a Zygote and in a start of the function's
own, where nothing is read ahead and both methods only call the original ones. They do so as well where the function has changed
anything on the way: another loader, its own files, a log of what is loaded.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

NAME = "botocore.loaders"
ROOT = "/packages/"
"""Where installed packages are, in a sandbox."""
SERVICE = "s3"
FILES = ("endpoints", "partitions", "sdk-default-configuration")
SERVICE_FILES = ("service-2", "service-2.sdk-extras", "endpoint-rule-set-1")
"""What a client of `SERVICE` needs, and of these files of the package each client of any service."""
KINDS = ("service-2", "endpoint-rule-set-1")
"""The kinds of files by which sessions look for services."""
DEBUG = 10

_parsed: dict[str, Any] = {}
"""By path without extension; an object is handed out once, since its owner may change it."""
_pickled: dict[str, bytes] = {}
"""The same, for all who come later."""
_load_pickle: Callable[[bytes], Any]
"""Kept here, since a function that does not import pickle does not find it in `sys.modules`."""
_rules: Any = None
"""The content of the rules of SERVICE's endpoints, as it is handed out first."""
asked: dict[str, int] = {}
"""How often the loaders' methods have returned it."""
_services: dict[str, tuple[str, ...]] = {}
"""Names of services, by the kind of file."""


class Originals:
    """Methods of botocore as they are without this."""

    def __init__(self, loaders: ModuleType) -> None:
        """Raises: AttributeError, of another botocore than this knows."""
        self.files, self.loader = loaders.JSONFileLoader, loaders.Loader
        self.logger = loaders.logger
        self.load_file, self.load_one = self.files.load_file, self.files._load_file
        self.list_services = self.loader.list_available_services
        self.load_model, self.load_path = self.loader.load_service_model, self.loader.load_data_with_path


_originals: Originals | None = None


def attend(loaders: ModuleType) -> None:
    """Have `botocore.loaders`, which was imported just now, look here first, if it is of an installed package."""
    global _originals
    if not str(getattr(loaders, "__file__", "")).startswith(ROOT):
        return
    try:
        _originals = Originals(loaders)
    except AttributeError:
        return
    loader = _originals.loader
    replace(_originals.files, _originals.load_file, load_file)
    for own in (list_available_services, load_service_model, load_data_with_path):
        replace(loader, getattr(loader, own.__name__), own)


def replace(owner: Any, original: Any, own: Any) -> None:
    """Put a function of ours into a class or module in place of an original one, with its names."""
    attribute = own.__name__
    name_as(own, original)
    setattr(owner, attribute, own)


def name_as(own: Any, original: Any) -> None:
    """Give a function of ours what an original one shows of itself."""
    for name in ("__module__", "__qualname__", "__doc__"):
        setattr(own, name, getattr(original, name))


def prepare() -> None:
    """In a Zygote, before it forks: read what its forks will need. What fails is not read ahead."""
    if _originals is None or _pickled:
        return
    try:
        _read(_originals)
    except Exception as error:
        print(f"sockd: botocore's data are not read ahead: {type(error).__name__}: {error}", file=sys.stderr)
        for store in (_parsed, _pickled, _services):
            store.clear()


def load_file(self: Any, file_path: str) -> Any:
    """Stand for `JSONFileLoader.load_file`."""
    originals = _originals
    assert originals is not None
    if file_path not in _pickled or not _is_unchanged(self, originals) or originals.logger.isEnabledFor(DEBUG):
        return originals.load_file(self, file_path)
    found = _parsed.pop(file_path, None)
    return found if found is not None else _load_pickle(_pickled[file_path])


def read_ahead(kind: str) -> Any:
    """What was read ahead of a file of SERVICE, not handed out yet; empty: nothing."""
    return next((each for path, each in _parsed.items() if path.endswith(f"/{kind}")), {})


def load_service_model(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand for `Loader.load_service_model`."""
    assert _originals is not None
    return _recorded("load_service_model", _originals.load_model(self, *args, **kwargs))


def load_data_with_path(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand for `Loader.load_data_with_path`."""
    assert _originals is not None
    found = _originals.load_path(self, *args, **kwargs)
    _recorded("load_data_with_path", found[0])
    return found


def _recorded(method: str, found: Any) -> Any:
    """Count a method's answer, if it is the content of the rules."""
    if found is _rules:
        asked[method] = asked.get(method, 0) + 1
    return found


def list_available_services(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand for `Loader.list_available_services`, which looks into the cache of its loader first."""
    originals = _originals
    assert originals is not None
    if len(args) == 1 and args[0] in _services and type(self) is originals.loader:
        _fill_cache(self, args[0], originals)
    return originals.list_services(self, *args, **kwargs)


def _is_unchanged(files: Any, originals: Originals) -> bool:
    """Whether an object reads files as botocore does."""
    return type(files) is originals.files and originals.files._load_file is originals.load_one


def _read(originals: Originals) -> None:
    global _load_pickle, _rules
    import os
    import pickle

    _load_pickle = pickle.loads
    loader = originals.loader()
    directory = loader.BUILTIN_DATA_PATH
    version = max(os.listdir(os.path.join(directory, SERVICE)))
    paths = [os.path.join(directory, name) for name in FILES]
    paths += [os.path.join(directory, SERVICE, version, name) for name in SERVICE_FILES]
    for path in paths:
        content = originals.load_file(loader.file_loader, path)
        if content is not None:
            _pickled[path], _parsed[path] = pickle.dumps(content, pickle.HIGHEST_PROTOCOL), content
    _rules = read_ahead(KINDS[1])
    loader._search_paths = [directory]
    for kind in KINDS:
        _services[kind] = tuple(originals.list_services(loader, kind))


def _fill_cache(loader: Any, kind: str, originals: Originals) -> None:
    """Note in a loader which services there are, as it would find them."""
    key = ("list_available_services", kind)
    directory = originals.loader.BUILTIN_DATA_PATH
    if key in loader._cache or directory not in loader._search_paths:
        return
    if not _is_unchanged(loader.file_loader, originals):
        return
    others = originals.loader.__new__(originals.loader)
    others.__dict__.update(loader.__dict__)
    others._cache, others._search_paths = {}, [path for path in loader._search_paths if path != directory]
    loader._cache[key] = sorted({*_services[kind], *originals.list_services(others, kind)})
