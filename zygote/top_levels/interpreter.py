"""What code may change in the interpreter and the standard library besides the names of modules: registries, settings, the
process.

Read in a trial, before and after imports and in two sandboxes that are compared. It imports nothing: what is not loaded has not
been changed, and reading must not load it.
"""

from __future__ import annotations

import os
import sys

from sockd_zygote.top_levels.platform_caches import wrong_caches

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LIBRARIES = "shared libraries"
"""The name of the setting with the paths of all that are mapped."""
SIGNALS = range(1, 32)
STANDARD_FDS = range(3)
MOST_IN_TMP = 1000
"""Most files of /tmp that are named."""


def settings() -> dict[str, object]:
    """Return the state of this process by name; values are plain data that two processes can compare."""
    return {**{name: read() for name, read in OF_THE_PROCESS.items()}, **read_modules(OF_MODULES)}


def random_states() -> dict[str, object]:
    """Return the states of the global generators of random numbers, which differ from process to process unless they are
    seeded."""
    return read_modules(RANDOM)


def read_modules(readers: dict[str, tuple[str, Callable[[Any], object]]]) -> dict[str, object]:
    """Return what is read of the modules that are loaded, by name."""
    found: dict[str, object] = {}
    for name, (module, read) in readers.items():
        if module in sys.modules:
            try:
                found[name] = read(sys.modules[module])
            except Exception as error:  # code has replaced the module or its registry
                found[name] = type(error).__name__
    return found


def libraries() -> list[str]:
    """Return the paths of the shared libraries that are mapped."""
    with open("/proc/self/maps", "rb") as maps:  # as text, a codec would be imported where code has changed the locale
        return sorted({os.fsdecode(line[line.index(b"/") : -1]) for line in maps if b".so" in line and b"/" in line})


def process_name() -> str:
    """Return the name of the main thread, which PR_SET_NAME and `setproctitle` change."""
    with open("/proc/self/comm", "rb") as name:
        return os.fsdecode(name.read()[:-1])


def streams() -> list[list[object]]:
    """Return type and settings of the standard streams."""
    names = ("encoding", "errors", "line_buffering", "write_through")
    return [
        [type(stream).__qualname__, *(getattr(stream, name, None) for name in names)]
        for stream in (sys.stdin, sys.stdout, sys.stderr)
    ]


def names_in_main() -> list[str]:
    """Return the names of `__main__`, which is sockd's own, with the types of their values, and texts themselves."""
    names = vars(sys.modules["__main__"]).items()
    return sorted(f"{name}: {value if isinstance(value, str) else type(value).__qualname__}" for name, value in names)


def asyncgen_hooks() -> list[str]:
    hooks = sys.get_asyncgen_hooks()
    return [name_of(hooks.firstiter), name_of(hooks.finalizer)]


def wakeup_fd(signal: Any) -> int:
    """Return the descriptor that signals are written to, which set_wakeup_fd gives only for another one. Afterwards a warning is
    written when it is full, which is the default."""
    fd: int = signal.set_wakeup_fd(-1)
    if fd != -1:
        signal.set_wakeup_fd(fd)
    return fd


def limits(resource: Any) -> list[object]:
    """Return the soft limits; hard ones are not changed without them."""
    names = sorted(name for name in vars(resource) if name.startswith("RLIMIT_"))
    return [[name, resource.getrlimit(getattr(resource, name))[0]] for name in names]


def files_in_tmp() -> list[str]:
    """Return the paths below /tmp, as many as are compared."""
    paths: list[str] = []
    for directory, _, files in os.walk("/tmp"):
        paths += [directory, *(f"{directory}/{name}" for name in files)]
        if len(paths) > MOST_IN_TMP:
            break
    return sorted(paths)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def umask() -> int:
    """Return the umask, which umask(2) tells only by setting another."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def environs() -> list[object]:
    """Return the types of `os.environ` and `os.environb`, and whether both are of one environment: code may put others in their
    places."""
    data = getattr(os.environ, "_data", None)
    return [*type_names([os.environ, os.environb]), data is getattr(os.environb, "_data", data)]


def type_names(values: Any) -> list[str]:
    return [type(value).__qualname__ if not isinstance(value, type) else value.__qualname__ for value in values]


def signal_handlers(signal: Any) -> dict[str, str]:
    return {str(number): name_of(signal.getsignal(number)) for number in SIGNALS}


def name_of(value: Any) -> str:
    return str(getattr(value, "__qualname__", value))


def loggers(logging: Any) -> dict[str, list[object]]:
    """Return the settings of the root logger and of each logger that differs from a new one."""
    known = {"root": logging.root, **logging.root.manager.loggerDict}
    settings = {name: logger_settings(each) for name, each in known.items() if isinstance(each, logging.Logger)}
    return {name: each for name, each in settings.items() if each[1:] != NEW_LOGGER}


def handler_settings(handler: Any) -> list[object]:
    """Return what decides where and how a handler of logging writes."""
    formatter, stream = getattr(handler, "formatter", None), getattr(handler, "stream", None)
    layout = [getattr(formatter, name, None) for name in ("_fmt", "datefmt")]
    return [
        type(handler).__qualname__,
        handler.level,
        type_names([formatter]),
        layout,
        str(getattr(stream, "name", "")),
    ]


def logger_settings(logger: Any) -> list[object]:
    handlers, filters = list(map(handler_settings, logger.handlers)), type_names(logger.filters)
    return [type(logger).__qualname__, logger.level, logger.propagate, logger.disabled, handlers, filters]


NEW_LOGGER: list[object] = [0, True, False, [], []]

OF_THE_PROCESS: dict[str, Callable[[], object]] = {
    "os.environ": lambda: {os.fsdecode(name): os.fsdecode(value) for name, value in os.environb.items()},
    "the object os.environ": environs,
    "process name": process_name,
    "working directory": os.getcwd,
    "umask": umask,
    "threads": lambda: len(sys._current_frames()),
    "__main__": names_in_main,
    "niceness": lambda: os.getpriority(os.PRIO_PROCESS, 0),
    "os.get_blocking()": lambda: [os.get_blocking(fd) for fd in STANDARD_FDS if is_open(fd)],
    "files in /tmp": files_in_tmp,
    "sys.path": lambda: [str(entry) for entry in sys.path],
    "sys.argv": lambda: [str(argument) for argument in sys.argv],
    "sys.meta_path": lambda: [type(finder).__qualname__ for finder in sys.meta_path],
    "sys.path_hooks": lambda: len(sys.path_hooks),
    "sys.excepthook": lambda: str(getattr(sys.excepthook, "__module__", "")),
    "sys.displayhook": lambda: str(getattr(sys.displayhook, "__module__", "")),
    "standard streams": streams,
    LIBRARIES: libraries,
    "CPU affinity": lambda: sorted(os.sched_getaffinity(0)),
    "sys.getdlopenflags()": sys.getdlopenflags,
    "sys.get_int_max_str_digits()": lambda: getattr(sys, "get_int_max_str_digits", int)(),
    "sys.dont_write_bytecode": lambda: sys.dont_write_bytecode,
    "sys.getrecursionlimit()": sys.getrecursionlimit,
    "sys.getswitchinterval()": sys.getswitchinterval,
    "sys.get_asyncgen_hooks()": asyncgen_hooks,
    "sys.get_coroutine_origin_tracking_depth()": sys.get_coroutine_origin_tracking_depth,
    "sys.gettrace()": lambda: [name_of(sys.gettrace()), name_of(sys.getprofile())],
}
OF_MODULES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "atexit callbacks": ("atexit", lambda module: module._ncallbacks()),
    "builtins": ("builtins", lambda module: sorted(vars(module))),
    "copyreg.dispatch_table": ("copyreg", lambda module: sorted(str(key) for key in module.dispatch_table)),
    "csv": ("_csv", lambda module: [module.field_size_limit(), sorted(module.list_dialects())]),
    "decimal context": ("decimal", lambda module: str(module.getcontext())),
    "faulthandler": ("faulthandler", lambda module: module.is_enabled()),
    "gc": ("gc", lambda module: [module.isenabled(), *module.get_threshold()]),
    "json": ("json", lambda module: str(module.JSONEncoder.default.__qualname__)),
    "locale": ("_locale", lambda module: module.setlocale(module.LC_ALL)),
    "logging": ("logging", lambda module: [module.root.manager.disable, name_of(module.getLoggerClass())]),
    "logging levels": ("logging", lambda module: sorted((str(k), str(v)) for k, v in module._levelToName.items())),
    "loggers": ("logging", loggers),
    "mimetypes": ("mimetypes", lambda module: [len(table) for table in getattr(module._db, "types_map", ())]),
    "what platform has worked out": ("platform", wrong_caches),
    "resource limits": ("resource", limits),
    "signal handlers": ("_signal", signal_handlers),
    "signal mask": ("_signal", lambda module: sorted(module.pthread_sigmask(module.SIG_BLOCK, ()))),
    "socket": ("_socket", lambda module: str(module.getdefaulttimeout())),
    "socket.socket": ("socket", lambda module: module.socket.__module__),
    "ssl": ("ssl", lambda module: module.SSLContext.__module__),
    "signal.set_wakeup_fd()": ("_signal", wakeup_fd),
    "the name of the main thread": ("threading", lambda module: module.main_thread().name),
    "threading.stack_size()": ("_thread", lambda module: module.stack_size()),
    "threading.Thread": ("threading", lambda module: module.Thread.__module__),
    "tracemalloc": ("_tracemalloc", lambda module: module.is_tracing()),
    "warnings.filters": (
        "warnings",
        lambda module: [" ".join(str(part) for part in (entry[0], *entry[2:])) for entry in module.filters],
    ),
    "warnings.showwarning": ("warnings", lambda module: name_of(module.showwarning)),
}
"""By name: the module that must be loaded, and how its registry is read."""
RANDOM: dict[str, tuple[str, Callable[[Any], object]]] = {
    "random state": ("random", lambda module: hash(module.getstate())),
    "numpy.random state": ("numpy.random", lambda module: module.get_state(legacy=False)["state"]["key"].tobytes()),
}
