"""A report of an interpreter's state, deployed beside each program of the answer cases and imported after the answer was taken.

It imports only what is built into the interpreter or part of every start: any other import would be learned as one of the
program's own. Modules of the standard library that may be absent are looked up in `sys.modules`. All values are texts, so that
JSON loses nothing.
"""

from __future__ import annotations

import _locale
import _socket
import _thread
import _warnings
import atexit
import builtins
import gc
import os
import signal
import sys
from types import ModuleType

TYPE_CHECKING = False  # typing is not part of every start
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PROGRAM = ("f", "state_report")
"""Modules of the program itself, which its top level may load under other names."""
RUNTIME = ("sockd_zygote", "__main__", "__mp_main__", *PROGRAM)
PATCHABLE = (
    "json.JSONEncoder.default socket.socket socket.create_connection socket.getaddrinfo select.select "
    "select.poll time.sleep time.time time.monotonic threading.Thread threading.Lock threading.excepthook "
    "threading.local subprocess.Popen ssl.SSLContext queue.Queue queue.LifoQueue os.fork os.read "
    "http.client.HTTPConnection datetime.datetime datetime.date decimal.Decimal pickle.Pickler pickle.dumps "
    "tempfile.tempdir urllib.request._opener asyncio.events._event_loop_policy asyncio.run warnings.showwarning "
    "warnings.formatwarning copyreg.dispatch_table mimetypes.inited sqlite3.connect logging._srcfile "
    "logging.raiseExceptions logging._logRecordFactory logging._loggerClass importlib.import_module "
    "importlib.metadata.version"
).split()
"""What programs and packages replace in the standard library."""
KEPT_DUNDERS = frozenset({"__all__", "__file__", "__path__", "__version__"})
FUNCTIONS = ("function", "builtin_function_or_method", "method", "method_descriptor", "wrapper_descriptor")
LONGEST = 60
DEPTH = 3


def report(names: list[str]) -> dict[str, dict[str, str]]:
    """Describe the interpreter.

    Args: names: of sys.modules, before this module was imported. Returns: by part, a table of texts."""
    return {
        "environment": dict(os.environ),
        "interpreter": _interpreter(names),
        "modules": dict.fromkeys((name for name in names if name not in PROGRAM), "there"),
        "subclasses": _subclasses(),
        "warnings": {str(number): _filter(each) for number, each in enumerate(_warnings.filters)},
        "logging": _logging(),
        "signals": {str(int(number)): _named(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
        "builtins": {name: _named(value) for name, value in vars(builtins).items()},
        "patched": {path: _value(_found(path), DEPTH - 1) for path in PATCHABLE},
        "registries": _registries(),
        "constants": _constants(names),
    }


def _interpreter(names: list[str]) -> dict[str, str]:
    return {
        "path": repr(sys.path),
        "argv": repr(sys.argv),
        "cwd": os.getcwd(),
        "meta_path": repr([_named(each if isinstance(each, type) else type(each)) for each in sys.meta_path]),
        "path_hooks": repr([_named(each) for each in sys.path_hooks]),
        "hooks": repr([_named(getattr(sys, name)) for name in ("excepthook", "unraisablehook", "displayhook")]),
        "streams": repr([_named(type(getattr(sys, name))) for name in ("stdin", "stdout", "stderr")]),
        "tracing": repr([_named(sys.gettrace()), _named(sys.getprofile())]),
        "recursion_limit": repr(sys.getrecursionlimit()),
        "switch_interval": repr(sys.getswitchinterval()),
        "warn_options": repr(sys.warnoptions),
        "dont_write_bytecode": repr(sys.dont_write_bytecode),
        "garbage": repr([gc.isenabled(), gc.get_threshold(), len(gc.callbacks)]),
        "exit_functions": repr(atexit._ncallbacks()),
        "threads": repr(_thread._count()),
        "locale": _locale.setlocale(_locale.LC_ALL),
        "socket_timeout": repr(_socket.getdefaulttimeout()),
        "umask": repr(_umask()),
        "absent": repr(sorted(name for name in names if sys.modules.get(name, "") is None)),
    }


def _subclasses() -> dict[str, str]:
    """The classes that are derived from those of `builtins`, but for `object`, from which the runtime's are."""
    gc.collect()
    kinds = {name: kind for name, kind in vars(builtins).items() if issubclass(type(kind), type) and kind is not object}
    return {name: repr(sorted(map(_named, type.__subclasses__(kind)))) for name, kind in kinds.items()}


def _logging() -> dict[str, str]:
    logging = sys.modules.get("logging")
    if logging is None:
        return {}
    root = logging.root
    loggers = {
        f"logger {name}": repr([_named(type(each)), getattr(each, "level", ""), len(getattr(each, "handlers", ()))])
        for name, each in root.manager.loggerDict.items()
    }
    return {
        "root": repr([root.level, root.disabled, root.manager.disable, [_handler(each) for each in root.handlers]]),
        "levels": repr(sorted(logging._levelToName.items())),
        **loggers,
    }


def _registries() -> dict[str, str]:
    """What modules of the standard library keep for others, of those that are loaded."""
    decimal, csv, trees = map(sys.modules.get, ("decimal", "_csv", "xml.etree.ElementTree"))
    pickle, sqlite, types, process = map(sys.modules.get, ("pickle", "sqlite3.dbapi2", "mimetypes", "multiprocessing"))
    threading, ctypes = map(sys.modules.get, ("threading", "ctypes"))
    return {
        "codecs": repr(sorted(sys.modules["encodings"]._cache)),
        "decimal": repr(decimal and [str(decimal.getcontext()), str(decimal.DefaultContext)]),
        "csv": repr(csv and [sorted(csv.list_dialects()), csv.field_size_limit()]),
        "xml": repr(trees and sorted(trees._namespace_map.items())),
        "pickle": repr(pickle and sorted(map(_named, pickle._Pickler.dispatch))),
        "sqlite": repr(sqlite and [sorted(map(repr, sqlite.adapters)), sorted(sqlite.converters)]),
        "mimetypes": repr(types and len(types.types_map)),
        "threads that run": repr(threading and _running(getattr(threading, "_shutdown_locks", ()))),
        "functions of ctypes": repr(ctypes and len(ctypes._c_functype_cache)),
        "pointers of ctypes": repr(ctypes and sorted(map(_named, ctypes._pointer_type_cache))),
        "arrays of ctypes": repr(ctypes and sorted(map(_named, type.__subclasses__(ctypes.Array)))),
        "multiprocessing": repr(process and process.get_start_method(allow_none=True)),
    }


def _running(locks: Iterable[Any]) -> int:
    """The threads that the interpreter waits for at its end. `threading` keeps the lock of one that has ended until another one
    begins, asks it for nothing, and a child of a fork begins without it."""
    return sum(each.locked() for each in locks)


def _constants(names: list[str]) -> dict[str, str]:
    """Names of the modules that are neither the standard library's nor the runtime's: `module.name`."""
    found = {}
    for name in names:
        root, module = name.partition(".")[0], sys.modules.get(name)
        if root in RUNTIME or root in sys.stdlib_module_names:
            continue
        if not issubclass(type(module), ModuleType):
            found[name] = _named(type(module))
            continue
        for key, value in sorted(object.__getattribute__(module, "__dict__").items(), key=lambda item: str(item[0])):
            if not str(key).startswith("__") or key in KEPT_DUNDERS:
                found[f"{name}.{key}"] = _short(_value(value))
    return found


def _value(value: Any, depth: int = 0) -> str:
    """A constant as it is written, containers of them to a depth, the order of sets left out, and the name of anything else."""
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes):
        return repr(value)
    if value is sys.modules:
        return "sys.modules"  # the names in it are compared by themselves
    if depth < DEPTH:
        if kind in (list, tuple):
            return f"{kind.__name__} {[_value(each, depth + 1) for each in value]}"
        if kind in (set, frozenset):
            return f"{kind.__name__} {sorted(_value(each, depth + 1) for each in value)}"
        if kind is dict:
            return f"dict {[(_value(key, depth + 1), _value(each, depth + 1)) for key, each in value.items()]}"
    return _named(value)


def _short(text: str) -> str:
    """The text, or its beginning and its hash: starts of one worker have one hash secret."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... {len(text)} {hash(text):x}"


def _named(value: Any) -> str:
    """The name of a class, function or module, else of the value's type; numbers as they are.

    Classes are asked with `type`'s own methods: a metaclass or a property may compute a name, an object may deny its class."""
    kind = type(value)
    if value is None or issubclass(kind, int):
        return repr(None if value is None else int(value))
    if issubclass(kind, ModuleType):
        return f"module {object.__getattribute__(value, '__dict__').get('__name__')}"
    if kind.__name__ in FUNCTIONS:
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    owner, article = (value, "") if issubclass(kind, type) else (kind, "a ")
    names = (type.__getattribute__(owner, each) for each in ("__module__", "__qualname__"))
    return article + ".".join(name if isinstance(name, str) else "?" for name in names)


def _found(path: str) -> Any:
    """The object at a dotted path, if its module is loaded."""
    names = path.split(".")
    for count in range(len(names) - 1, 0, -1):
        module = sys.modules.get(".".join(names[:count]))
        if module is not None:
            value: Any = module
            for name in names[count:]:
                value = getattr(value, name, None)
            return value
    return "not loaded"


def _filter(each: tuple[Any, ...]) -> str:
    action, message, category, module, line = each
    texts = (getattr(message, "pattern", message), _named(category), getattr(module, "pattern", module))
    return repr([action, *texts, line])


def _handler(each: Any) -> list[Any]:
    return [_named(type(each)), each.level, _named(type(each.formatter)), getattr(each.formatter, "_fmt", "")]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
