"""Variables of the interpreter that a forked one can still obey: the function's own, applied when it becomes the function.

Each function does what CPython does with the variable when its process starts. sockd/isolation/roots/python_variables.py lists
all variables; the daemon sends only values that are valid and that change something.
"""

from __future__ import annotations

import io
import sys

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable


def apply(settings: dict[str, str]) -> None:
    """Apply variables, by name."""
    for name, value in settings.items():
        APPLIED[name](value)


def unbuffer(value: str) -> None:
    """Write standard output and error at once, as with -u. The streams stay the same objects, which packages may hold."""
    for fd, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        raw = io.FileIO(fd, "wb", closefd=False)
        raw.name = stream.name
        encoding, errors = stream.encoding, stream.errors
        stream.__init__(raw, encoding, errors, newline="\n", write_through=True)  # type: ignore[misc]


def encode(value: str) -> None:
    """Give the standard streams an encoding and an error handler; standard error keeps its own, with which nothing fails."""
    import codecs

    name, _, errors = value.partition(":")
    encoding = codecs.lookup(name or "utf-8").name
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding=encoding, errors=errors or "strict")  # type: ignore[union-attr]
    sys.stderr.reconfigure(encoding=encoding, errors=sys.stderr.errors)  # type: ignore[union-attr]


def filter_warnings(value: str) -> None:
    """Put options before the filters that an interpreter starts with, of which the last one given is the first."""
    options = [each for each in value.split(",") if each]
    sys.warnoptions += options  # behind that of the development mode, which an image may have
    loaded = sys.modules.get("warnings")
    if loaded is not None:
        loaded._processoptions(options)
    else:
        import warnings  # noqa: F401  it processes them


def handle_faults(value: str) -> None:
    """Print tracebacks of fatal signals to standard error."""
    import faulthandler

    faulthandler.enable()


def trace_allocations(value: str) -> None:
    """Trace allocations with this many frames. The module behind `tracemalloc` does not import what that one needs."""
    import _tracemalloc

    _tracemalloc.start(int(value))


def forbid_bytecode(value: str) -> None:
    """Let imports write no bytecode."""
    sys.dont_write_bytecode = True


def place_bytecode(value: str) -> None:
    """Let imports look for bytecode below this directory."""
    sys.pycache_prefix = value


def limit_digits(value: str) -> None:
    """Limit the digits of conversions between integers and text."""
    sys.set_int_max_str_digits(int(value))


APPLIED: dict[str, Callable[[str], None]] = {
    "PYTHONUNBUFFERED": unbuffer,
    "PYTHONIOENCODING": encode,
    "PYTHONWARNINGS": filter_warnings,
    "PYTHONFAULTHANDLER": handle_faults,
    "PYTHONTRACEMALLOC": trace_allocations,
    "PYTHONDONTWRITEBYTECODE": forbid_bytecode,
    "PYTHONPYCACHEPREFIX": place_bytecode,
    "PYTHONINTMAXSTRDIGITS": limit_digits,
}
