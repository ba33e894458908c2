"""What else own code may change of its process and its interpreter: compared within one process, by identity or by what the
kernel shows of it.

`interpreter` has what two processes can compare. This has numbers of descriptors, ids and objects, which are others in each.
"""

from __future__ import annotations

import os
import sys
from stat import S_IFCHR, S_IFMT, S_IFREG

from sockd_zygote.forks.module_kinds import MACHINERY, is_a, namespace

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

UNCOMPARED = frozenset(
    {
        *("Cpus_allowed", "Cpus_allowed_list", "FDSize", "Name", "Ngid", "PPid", "SigBlk", "SigQ", "State", "Threads"),
        *("TracerPid", "Umask", "nonvoluntary_ctxt_switches", "voluntary_ctxt_switches"),
    }
)
"""Lines of /proc/self/status that change without the process's doing, or that `interpreter` has by other names."""
MEMORY = ("Vm", "Rss", "Hugetlb")
LOCKED = "VmLck"
"""The one line about memory that a process decides about: what it has locked."""
FILES = ("cmdline", "coredump_filter", "limits", "oom_score_adj", "timers", "timerslack_ns")
"""Files of /proc/self with settings of a process."""
THREADS = "the number of threads of C libraries"
TIMERS = range(3)
"""ITIMER_REAL, ITIMER_VIRTUAL and ITIMER_PROF."""
CHANGING = frozenset(
    {
        *("sys.path_importer_cache", "sys.last_type", "sys.last_value", "sys.last_traceback", "sys.last_exc"),
        *("_frozen_importlib._find_and_load_unlocked", "_frozen_importlib._load_unlocked"),
    }
)
"""Names of the interpreter's modules that change without an effect, or that a recording has put in their place."""
ALIASES = frozenset({"importlib._bootstrap", "importlib._bootstrap_external"})
"""Other names of `_frozen_importlib` and `_frozen_importlib_external`."""
DESCRIPTORS = "descriptors"
READ = (S_IFREG, S_IFCHR)
USUAL_FINDERS = ("FileFinder", "NoneType", "zipimporter")


def of_this_process() -> dict[str, Any]:
    """Return what the kernel and the interpreter know of this process, by name."""
    return {
        **kernel_status(),
        **{f"/proc/self/{name}": read(name) for name in FILES},
        DESCRIPTORS: descriptors(),
        "files in /tmp, or what they hold,": contents_of_tmp(),
        THREADS: len(os.listdir("/proc/self/task")),
        "os.sched_getscheduler()": [os.sched_getscheduler(0), os.sched_getparam(0).sched_priority],
        "gc.get_debug()": asked("gc", lambda module: [module.get_debug(), module.get_freeze_count()]),
        "timers (signal.setitimer)": asked("_signal", timers),
        "tracemalloc.get_traceback_limit()": asked("_tracemalloc", lambda module: module.get_traceback_limit()),
        "locale.textdomain()": asked("_locale", lambda module: module.textdomain(None)),
        "tools of sys.monitoring": monitoring(),
        "sys.path_importer_cache": unusual_finders(),
    }


def kernel_status() -> dict[str, object]:
    """Return lines of proc_pid_status(5), by name: sessions, handlers of signals that C code has set, capabilities."""
    found: dict[str, object] = {}
    for line in read("status").splitlines():
        name, _, value = line.partition(":")
        if name not in UNCOMPARED and (not name.startswith(MEMORY) or name == LOCKED):
            found[f"/proc/self/status ({name})"] = value
    return found


def read(name: str) -> str:
    """Return the text of a file of /proc/self; empty, where it may not be read."""
    try:
        with open(f"/proc/self/{name}", "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""


def descriptors() -> dict[str, Any]:
    """Return what is open, by number: the file, flags and position of its description (proc_pid_fdinfo(5)), and whether it is no
    more than a file that is read."""
    found: dict[str, Any] = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            status = os.fstat(fd)
        except OSError:
            continue  # that of the listing
        position = read(f"fdinfo/{fd}") if fd > 2 else ""  # of standard streams it is that of a log
        is_read = S_IFMT(status.st_mode) in READ and not flags_of(position) & os.O_ACCMODE
        found[str(fd)] = [
            status.st_dev,
            status.st_ino,
            status.st_mode,
            os.get_inheritable(fd),
            position,
            fd > 2 and is_read,
        ]
    return found


def flags_of(position: str) -> int:
    """Return the flags of an open file. Args: position: the text of its fdinfo."""
    _, _, rest = position.partition("flags:")
    return int(rest.split(maxsplit=1)[0], 8) if rest else 0


def are_same_descriptors(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether the same is open, files besides that are read: `with open(PATH) as file: import json`."""
    more = [after[fd] for fd in after.keys() - before.keys()]
    return all(after.get(fd) == before[fd] for fd in before) and all(each[-1] for each in more)


def contents_of_tmp(most: int = 1000) -> dict[str, object]:
    """Return size and time of the files below /tmp. Args: most: files that are compared."""
    found: dict[str, object] = {}
    for directory, _, files in os.walk("/tmp"):
        for path in (f"{directory}/{name}" for name in files):
            try:
                status = os.lstat(path)
            except OSError:
                continue
            found[path] = [status.st_size, status.st_mtime_ns, status.st_ino, status.st_mode]
        if len(found) > most:
            break
    return found


def asked(module: str, question: Callable[[Any], object]) -> object:
    """Return what a module answers, if it is loaded."""
    try:
        return question(sys.modules[module]) if module in sys.modules else None
    except Exception as error:  # code has replaced the module, or the C library has no such call
        return type(error).__name__


def timers(signal: Any) -> list[bool]:
    return [any(signal.getitimer(which)) for which in TIMERS]


def monitoring() -> list[object]:
    tools = getattr(sys, "monitoring", None)
    return [tools.get_tool(number) for number in range(6)] if tools else []


def unusual_finders() -> list[str]:
    """Return the directories of `sys.path_importer_cache` for which something else than the import system's own is kept."""
    items = list(sys.path_importer_cache.items())
    return [f"{path}: {type(finder)}" for path, finder in items if type(finder).__name__ not in USUAL_FINDERS]


def names_of_interpreter() -> dict[str, dict[str, Any]]:
    """Return the names of the interpreter's own modules, items of `sys` and attributes of importlib's classes, by module."""
    found: dict[str, dict[str, Any]] = {}
    for module in sorted((MACHINERY - ALIASES) & sys.modules.keys()):
        names = {key: value for key, value in namespace(sys.modules[module]).items() if type(key) is str}
        names = {key: value for key, value in names.items() if f"{module}.{key}" not in CHANGING}
        found[module] = {**names, **dict(items_of_lists(names))}
        if "importlib" in module:
            found[module] |= dict(attributes(module, names))
    found["sys"] |= {f"_xoptions[{name!r}]": value for name, value in getattr(sys, "_xoptions", {}).items()}
    return found


def items_of_lists(names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the items of lists: finders, suffixes of source files, callbacks of the garbage collector."""
    for name, value in names.items():
        if is_a(value, list):
            yield from ((f"{name}[{number}]", each) for number, each in enumerate(list.__iter__(value)))


def attributes(module: str, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of the classes that a module defines."""
    for name, value in names.items():
        if is_a(value, type) and value.__module__ == module:
            yield from ((f"{name}.{key}", each) for key, each in vars(value).items())


def next_thread() -> str:
    """Return the number in the name of the next thread that gets none, as the text of its counter."""
    counter: Any = getattr(sys.modules.get("threading"), "_counter", None)
    return repr(getattr(counter, "__self__", None)) if counter is not None else "count(1)"


def running() -> list[Any]:
    """Return in what an import runs: the event loop of asyncio, and the greenlet."""
    loops, greenlets = sys.modules.get("_asyncio"), sys.modules.get("greenlet")
    return [
        loops._get_running_loop() if loops is not None else None,
        greenlets.getcurrent() if greenlets is not None else None,
    ]
