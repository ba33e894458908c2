"""The environment variables of CPython 3.11 to 3.14 and of its loader, and what becomes of each in a function. Plain data; pure.

A function is forked from an interpreter that has started before the function's variables are known. `interpreter_settings`
applies this table, and docs/reference/python-variables.md is made from it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass

INTEGER = re.compile(r"\s*[+-]?[0-9]{1,9}", re.ASCII)
LEAST_DIGITS = 640
"""`sys.int_info.str_digits_check_threshold`: the least limit of digits that an interpreter accepts, but for 0."""
MOST_FRAMES = 65535


class Handling(enum.Enum):
    """What becomes of a variable."""

    OBEYED = "Obeyed: the sandbox does what CPython would have done when it starts"
    READ_LATER = "Works by itself: CPython reads it when it is needed"
    NO_EFFECT = "Accepted without effect"
    REFUSED = "Refused if the value would change something: it is obeyed only when a process starts"


@dataclass(frozen=True, slots=True)
class PythonVariable:
    """One variable."""

    name: str
    handling: Handling
    effect: str
    """What it controls."""
    instead: str = ""
    """What a function can do without it."""
    meaning: Callable[[str], object] = str
    """Maps a value to what CPython makes of it. Values with equal meanings are interchangeable; the empty one is the default."""
    mistake: Callable[[str], str] = lambda value: ""
    """Says what a value must be that CPython would refuse to start with; empty: the value is fine."""
    since: int = 11
    """The first 3.N that reads it."""
    is_refused_in_images: bool = False
    """Whether handlers in images are refused it: the deploy asks the image's Python once, without the function's variables."""
    is_seen_by_imports: bool = True
    """Whether the import of a package may have another result with an obeyed variable."""


def level(value: str) -> int:
    """Map the value of a flag to its level, as CPython does: text and negative numbers are 1."""
    if not value:
        return 0
    number = int(value) if INTEGER.fullmatch(value) else -1
    return number if number >= 0 else 1


def is_on(value: str) -> bool:
    """Map the value of a switch that any text turns on, also "0"."""
    return value != ""


def integer(value: str) -> int | None:
    """Map a value to a number; None if CPython does not read one in it."""
    return int(value) if INTEGER.fullmatch(value) else None


def _equal_to(*defaults: str) -> Callable[[str], object]:
    """The meaning of a value that is text, or one of these, which are what holds without the variable."""
    return lambda value: "" if value in defaults else value


def _digits_mistake(value: str) -> str:
    number = integer(value)
    is_fine = not value or number == 0 or (number is not None and number >= LEAST_DIGITS)
    return "" if is_fine else f"must be 0 or an integer of at least {LEAST_DIGITS}"


def _frames_mistake(value: str) -> str:
    number = integer(value)
    is_fine = not value or (number is not None and 0 <= number <= MOST_FRAMES)
    return "" if is_fine else f"must be an integer from 0 to {MOST_FRAMES}"


def _encoding_mistake(value: str) -> str:
    try:
        "".encode(value.partition(":")[0] or "utf-8")
    except (LookupError, UnicodeError, ValueError):
        return "must begin with the name of a text encoding that Python has, as in utf-8:replace"
    return ""


def _obeyed(name: str, effect: str, **details: object) -> PythonVariable:
    return PythonVariable(name, Handling.OBEYED, effect, **details)  # type: ignore[arg-type]


def _read_later(name: str, effect: str, since: int = 11) -> PythonVariable:
    return PythonVariable(name, Handling.READ_LATER, effect, since=since)


def _no_effect(name: str, effect: str, since: int = 11, **details: object) -> PythonVariable:
    return PythonVariable(name, Handling.NO_EFFECT, effect, since=since, **details)  # type: ignore[arg-type]


def _refused(
    name: str, effect: str, meaning: Callable[[str], object], since: int = 11, instead: str = ""
) -> PythonVariable:
    return PythonVariable(name, Handling.REFUSED, effect, instead, meaning, since=since)


VARIABLES: tuple[PythonVariable, ...] = (
    _obeyed(
        "PYTHONPATH", "directories on `sys.path`, behind the code and before the packages", is_refused_in_images=True
    ),
    # Its streams stay the objects that they were, so that a Zygote's packages use the unbuffered ones, too.
    _obeyed("PYTHONUNBUFFERED", "standard output and error without a buffer", meaning=level, is_seen_by_imports=False),
    _obeyed("PYTHONDONTWRITEBYTECODE", "`sys.dont_write_bytecode`", meaning=level),
    _obeyed("PYTHONPYCACHEPREFIX", "`sys.pycache_prefix`"),
    _obeyed("PYTHONWARNINGS", "`sys.warnoptions` and the filters of warnings"),
    _obeyed("PYTHONFAULTHANDLER", "tracebacks of crashes in the log (`faulthandler`)", meaning=is_on),
    _obeyed("PYTHONTRACEMALLOC", "tracing of allocations (`tracemalloc`)", meaning=level, mistake=_frames_mistake),
    _obeyed("PYTHONINTMAXSTRDIGITS", "`sys.set_int_max_str_digits`", meaning=integer, mistake=_digits_mistake),
    _obeyed(
        "PYTHONIOENCODING",
        "encoding and error handler of standard streams",
        meaning=_equal_to(":"),
        mistake=_encoding_mistake,
    ),
    _read_later("PYTHONASYNCIODEBUG", "debug mode of new event loops"),
    _read_later("PYTHONBREAKPOINT", "what `breakpoint()` calls"),
    _read_later("PYTHONDOCS", "where `pydoc` finds the library's pages"),
    _read_later("PYTHONTZPATH", "where `zoneinfo` finds time zones"),
    _read_later("PYTHON_COLORS", "colours in output", since=13),
    _no_effect("PYTHONNOUSERSITE", "sandboxes have no user's site-packages", is_refused_in_images=True, meaning=is_on),
    _no_effect("PYTHONSAFEPATH", "the runtime puts the code on `sys.path`", is_refused_in_images=True, meaning=is_on),
    _no_effect("PYTHONCOERCECLOCALE", "the locale is C.UTF-8, which is not coerced", is_refused_in_images=True),
    _no_effect("PYTHONSTARTUP", "of interactive interpreters"),
    _no_effect("PYTHONINSPECT", "of interactive interpreters"),
    _no_effect("PYTHON_BASIC_REPL", "of interactive interpreters", since=13),
    _no_effect("PYTHON_HISTORY", "of interactive interpreters", since=13),
    _no_effect("PYTHONCASEOK", "of Windows and macOS"),
    _no_effect("PYTHONEXECUTABLE", "of macOS"),
    _no_effect("PYTHONLEGACYWINDOWSFSENCODING", "of Windows"),
    _no_effect("PYTHONLEGACYWINDOWSSTDIO", "of Windows"),
    _no_effect("PYTHONTHREADDEBUG", "of debug builds"),
    _no_effect("PYTHONDUMPREFS", "of debug builds"),
    _no_effect("PYTHONDUMPREFSFILE", "of debug builds"),
    _no_effect("PYTHON_PRESITE", "of debug builds", since=13),
    _no_effect("PYTHON_TLBC", "of builds without the global lock", since=14),
    _refused("PYTHONHASHSEED", "the seed of hashes, which is random", _equal_to("random")),
    _refused(
        *("PYTHONUTF8", "UTF-8 mode", _equal_to("0")),
        instead="functions of the host's Pythons use UTF-8 already, by the locale C.UTF-8",
    ),
    _refused(
        *("PYTHONDEVMODE", "development mode", is_on),
        instead="PYTHONWARNINGS=default, PYTHONFAULTHANDLER=1 and PYTHONASYNCIODEBUG=1 are obeyed",
    ),
    _refused("PYTHONOPTIMIZE", "compilation without assertions", level),
    _refused("PYTHONDEBUG", "the parser's debugging output", level),
    _refused("PYTHONVERBOSE", "a trace of imports", level),
    _refused("PYTHONPROFILEIMPORTTIME", "durations of imports", is_on),
    _refused("PYTHONNODEBUGRANGES", "code objects without columns", is_on),
    _refused(
        *("PYTHONWARNDEFAULTENCODING", "EncodingWarning", is_on), instead="subprocess with -X warn_default_encoding"
    ),
    _refused("PYTHONMALLOC", "the allocator of memory", _equal_to("default", "pymalloc")),
    _refused("PYTHONMALLOCSTATS", "statistics of the allocator", is_on),
    _refused("PYTHONHOME", "where the standard library is", str),
    _refused("PYTHONPLATLIBDIR", "where the standard library is", str),
    _refused("PYTHONUSERBASE", "where the user's site-packages are", str, instead="PYTHONPATH names directories"),
    _refused(
        *("PYTHONPERFSUPPORT", "support of `perf`", lambda value: bool(integer(value))),
        since=12,
        instead='sys.activate_stack_trampoline("perf") in the code',
    ),
    _refused(
        *("PYTHON_PERF_JIT_SUPPORT", "support of `perf`", lambda value: bool(integer(value))),
        since=13,
        instead='sys.activate_stack_trampoline("perf_jit") in the code',
    ),
    _refused(
        *("PYTHON_CPU_COUNT", "`os.cpu_count()`", _equal_to("default")),
        since=13,
        instead="give the number to what asks for it, as in ThreadPoolExecutor(4)",
    ),
    _refused("PYTHON_FROZEN_MODULES", "frozen modules", _equal_to("on"), since=13),
    _refused("PYTHON_GIL", "the global lock", _equal_to("1"), since=13),
    _refused("PYTHON_JIT", "the experimental compiler", str, since=13),
    _refused("PYTHON_DISABLE_REMOTE_DEBUG", "`sys.remote_exec`", is_on, since=14),
    _refused("PYTHON_THREAD_INHERIT_CONTEXT", "the context of new threads", _equal_to("0"), since=14),
    _refused("PYTHON_CONTEXT_AWARE_WARNINGS", "the filters of `catch_warnings`", _equal_to("0"), since=14),
    # ld.so(8)
    _refused(
        "LD_PRELOAD",
        "libraries that are loaded before all others",
        str,
        instead="ctypes.CDLL loads a library at any time",
    ),
    _refused(
        "LD_LIBRARY_PATH",
        "where the loader looks for libraries",
        str,
        instead="ctypes.CDLL with a path, or libraries with an rpath",
    ),
    _refused("LD_AUDIT", "libraries that watch the loader", str),
    _refused("GLIBC_TUNABLES", "settings of the C library, as of its allocator", str),
)
"""POLICY: all of them; any other name is the function's own."""
