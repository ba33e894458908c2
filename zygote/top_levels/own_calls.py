"""Which code of the function runs: the places on the stack, what has run to its end before an import, and what it has asked.

Between imports a profile function notes each code object of the function's own files that returns (sys.setprofile), and an
audit hook what reaches out of the interpreter. Neither notes while an import of the function's code runs, nor while states are
compared.
"""

from __future__ import annotations

import sys

from sockd_zygote.forks import children
from sockd_zygote.forks.module_kinds import OWN, RUNTIME_PACKAGE, Kinds

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

Place = tuple[str, int, str, int, str]
"""File and line where code runs, the name and first line of its code object, and how that has come to the place inside, or to the
import that begins: BY_IMPORT, BY_CALL, or through code of packages (BY_PACKAGE)."""
BY_IMPORT, BY_CALL, BY_PACKAGE = "import", "call", "package"
CONNECTS = frozenset(("connect", "connect_ex", "sendto", "sendmsg"))
"""Methods of sockets that a client begins with."""
BY_THE_NETWORK = "what it may do next, by an answer of the network,"
BY_A_PROGRAM = "what it may do next, by an answer of a program that it starts,"
IN_C = "what it calls of C libraries, by ctypes,"
FILES = "what files hold"
OUTSIDE = {
    **dict.fromkeys(("subprocess.Popen", "os.posix_spawn", "os.system", "pty.spawn"), BY_A_PROGRAM),
    **dict.fromkeys(("ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle"), IN_C),
    **dict.fromkeys(("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir"), FILES),
    **dict.fromkeys(("os.setxattr", "os.symlink", "os.truncate", "os.utime", "sqlite3.connect"), FILES),
    **dict.fromkeys(("syslog.openlog", "syslog.setlogmask"), "the settings of syslog"),
}
"""Audit events of what reaches out of the interpreter, and what it changes, in words. No comparison shows it, or an answer that
comes back may be another one in each start."""
WRITING = 0o3103
"""O_WRONLY, O_RDWR, O_CREAT, O_TRUNC and O_APPEND, as they are on Linux."""
DEVICES, SHARED = "/dev/", "/dev/shm/"
VARYING = frozenset(
    {
        *(
            "clock_gettime",
            "clock_gettime_ns",
            "generate_time_safe",
            "getloadavg",
            "getrandbits",
            "getrandom",
            "getrusage",
        ),
        *("gmtime", "localtime", "monotonic", "monotonic_ns", "now", "perf_counter", "perf_counter_ns", "process_time"),
        *("random", "strftime", "thread_time", "time", "time_ns", "times", "today", "urandom", "utcnow"),
    }
)
"""Functions in C whose answer is another one in each start."""
ADDRESSES = frozenset({"hash", "id"})
"""Functions whose answer is another one in each life of a worker. Asked by the function's own code alone: `copy` and others ask
for ids, too."""
UNASKED = frozenset({"logging", "threading", "linecache"})
"""Modules that ask for the time for themselves."""
OF_THE_HOST = ("/proc/", "/sys/", "/dev/")
"""Where files are whose content is another one in each start."""
Code = tuple[str, str, int]
"""File, name and first line of a code object."""


class OwnCalls:
    """Notes what runs while it watches.

    Attributes:
        finished: code objects of the function's in the order in which they first returned;
        outside: what reaches out of the interpreter first, in words; empty: nothing has;
        has_varied: whether a clock, a generator of random numbers or the host was asked for something."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._seen: dict[int, CodeType] = {}
        self._hook: Any = self._note
        self._is_on = False
        self.finished: list[Code] = []
        self.outside = ""
        self.has_varied = False

    def watch(self, is_on: bool) -> bool:
        """Begin or pause. Returns: whether it watched."""
        was_on, self._is_on = self._is_on, is_on
        set_profile(self._hook, is_on=is_on)
        return was_on

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            self._note_call(argument.__name__, frame)
        code = frame.f_code
        if event != "return" or id(code) in self._seen:
            return
        self._seen[id(code)] = code
        if _is_code(frame, self._kinds):
            self.finished.append((code.co_filename, code.co_name, code.co_firstlineno))

    def _note_call(self, name: str, frame: FrameType) -> None:
        if name in CONNECTS:
            self.outside = self.outside or BY_THE_NETWORK
        elif name in VARYING and not self.has_varied:
            asked_by = str(frame.f_globals.get("__name__"))
            self.has_varied = asked_by not in UNASKED and not asked_by.startswith(RUNTIME_PACKAGE)
        elif name in ADDRESSES and not self.has_varied:
            self.has_varied = _is_code(frame, self._kinds)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an audit event (sys.addaudithook). A child that only shows what each start has is no answer."""
        if not self._is_on or self.outside:
            return
        if event == "open":
            self.outside = FILES if is_writing(*arguments) else ""
            self.has_varied |= type(arguments[0]) is str and arguments[0].startswith(OF_THE_HOST)
        elif event in children.EVENTS and children.variables_of(event, arguments, None) is not None:
            return
        else:
            self.outside = OUTSIDE.get(event, "")


def set_profile(hook: Any, *, is_on: bool) -> None:
    """Set a profile function, or take it away; where the function's code has set one, that one stays."""
    current = sys.getprofile()
    if is_on and current is None:
        sys.setprofile(hook)
    elif not is_on and current is hook:
        sys.setprofile(None)


def is_writing(path: Any, mode: object, flags: Any) -> bool:
    """Return whether an `open` may change a file. Args: those of its audit event."""
    name = path if type(path) is str else ""
    return type(flags) is int and bool(flags & WRITING) and (not name.startswith(DEVICES) or name.startswith(SHARED))


def places(kinds: Kinds) -> list[Place]:
    """Return where the function's code is, the innermost place first."""
    found: list[Place] = []
    way, frame = BY_IMPORT, sys._getframe(1)
    while frame is not None:
        if _is_code(frame, kinds):
            code = frame.f_code
            found.append((code.co_filename, frame.f_lineno, code.co_name, code.co_firstlineno, way))
            way = BY_CALL
        elif not _is_machinery(frame):
            way = BY_PACKAGE
        elif way == BY_CALL:
            way = BY_IMPORT
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _is_code(frame: FrameType, kinds: Kinds) -> bool:
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
    is_runtime = module.partition(".")[0] == RUNTIME_PACKAGE or module == "__main__"
    return not is_runtime and not file.startswith("<") and kinds.key_of_file(file) == OWN


def _is_machinery(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__"))
    return module in ("importlib", RUNTIME_PACKAGE) or module.startswith((f"{RUNTIME_PACKAGE}.", "importlib._"))
