"""A start of a function for verification: import the modules, tell what they are, and try what a fingerprint cannot see.

The handler `sockd_zygote.own_functions.trial:answer` of a sandbox that has the function's packages, code and environment. It is
run in a fork of a Zygote and in one of the root Zygote (`sockd.caches.zygotes.verifier`), and the two answers are compared. No
code of the function is called. What it says is a claim, as everything that a sandbox says.
"""

from __future__ import annotations

import os
import sys
import time

from sockd_zygote.forks import hygiene
from sockd_zygote.handlers import import_hooks
from sockd_zygote.own_functions.checks import CHECKED, begin, try_out
from sockd_zygote.own_functions.fingerprint import Fingerprint, Names, constant_text, digest, digest_of, owner, shown

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

INTERPRETER, CHECKS, IMPORTS = "(interpreter)", "(checks)", "(imports)"
"""Beside the modules: what packages change in the interpreter and the standard library; what was tried; what failed."""
MOST_NAMES = 20_000
"""Of all modules whose names are told."""
BALLAST = 12_007
"""Objects that move the addresses of all that come after them, for each step of `moved`."""
SMALL, ODD = 512, 600
"""Bytes: up to the former, pymalloc has a pool for each 16 more; the latter is malloc's, which gives it 41 times 16."""


def answer(event: dict[str, Any]) -> dict[str, Any]:
    """One trial.

    Args:
        event: `modules` to import, in this order; `expected`: digest by module, of the other process: the names of modules
            that differ are told; `names_of`: modules whose names are told in any case; `pids`: of the other process and its
            Zygotes; `moved`: another number, other addresses; `variables`: names of the function's own,
            whose values are not told.
    """
    began = time.process_time()
    ballast = shift_memory(event["moved"])
    failed = import_all(event["modules"])
    import_hooks.lay_out_logs()
    begin("fingerprint")
    pids = sorted({os.getpid(), *hygiene.pids, *event["pids"]})
    fingerprint = Fingerprint(pids)
    modules = fingerprint.modules()
    every: dict[str, Names] = {name: fingerprint.names_of(name, module) for name, module in modules.items()}
    every[IMPORTS] = {name: fingerprint.looks(words) for name, words in failed.items()}
    every[INTERPRETER] = {name: fingerprint.looks(value) for name, value in interpreter().items()}
    every[CHECKS] = {name: fingerprint.looks(try_out(name, check)) for name, check in CHECKED.items()}
    digests = {name: digest_of(names) for name, names in every.items()}
    wanted, expected = set(event["names_of"]), event["expected"]
    if expected is not None:
        wanted |= {name for name in digests if digests[name] != expected.get(name)}
    told = tell({name: every[name] for name in sorted(wanted) if name in every}, event["variables"])
    del ballast
    return {
        "digests": digests,
        "names": told,
        "complete": sum(map(len, told.values())) <= MOST_NAMES,
        "owners": {name: owner(modules[name]) for name in told if name in modules},
        "pids": pids,
        "cpu_s": time.process_time() - began,
    }


def shift_memory(steps: int) -> list[object]:
    """What makes all that is allocated from now on get other addresses, by another number of 16 bytes each: a set's order depends
    on the last bits."""
    every_size = [bytes(size) for size in range(16, SMALL - 32, 16) for _ in range(steps)]
    return [[object() for _ in range(BALLAST * steps)], every_size, bytes(ODD * steps)]


def import_all(names: list[str]) -> dict[str, str]:
    """Import modules in an order; error by module, of those that cannot be imported."""
    failed = {}
    for name in names:
        begin(f"import {name}")
        try:
            __import__(name)
        except BaseException as error:  # user code: SystemExit and KeyboardInterrupt are failures like any other
            failed[name] = type(error).__name__
    return failed


def tell(modules: Mapping[str, Names], variables: list[str]) -> dict[str, dict[str, tuple[str, str]]]:
    """Digest and words for each name, of as many modules as may be told and one more.

    A value may be a function's variable, or be made from one, and what is told is shown to people: where a function has
    variables, values are not told."""
    known = {constant_text(os.environ[name], str.__repr__): f"${name}" for name in variables if name in os.environ}
    told: dict[str, dict[str, tuple[str, str]]] = {}
    count = 0
    for module, names in modules.items():
        if count > MOST_NAMES:
            break
        count += len(names)
        hidden = known if variables and module != CHECKS else None
        told[module] = {name: (digest(repr(look)), shown(look, hidden)) for name, look in names.items()}
    return told


# -- what packages change beside their own modules


def interpreter() -> dict[str, object]:
    """Registries and settings of the interpreter and the standard library."""
    import atexit
    import copyreg
    import locale
    import logging
    import signal
    import warnings

    for name in PATCHED:
        __import__(name)
    found: dict[str, object] = {
        "atexit callbacks": atexit._ncallbacks(),
        "copyreg.dispatch_table": sorted(str(key) for key in copyreg.dispatch_table),
        "locale": locale.setlocale(locale.LC_ALL),
        "logging.root": [type(handler).__qualname__ for handler in logging.getLogger().handlers] + [logging.root.level],
        "os.environ": {name: digest(value) for name, value in os.environ.items()},
        "signal handlers": {str(number): str(signal.getsignal(number)) for number in range(1, 32)},
        "sys.excepthook": getattr(sys.excepthook, "__module__", ""),
        "sys.getrecursionlimit()": sys.getrecursionlimit(),
        "sys.getswitchinterval()": sys.getswitchinterval(),
        "sys.meta_path": [type(finder).__qualname__ for finder in sys.meta_path],
        "sys.path": list(sys.path),
        "sys.path_hooks": len(sys.path_hooks),
        "working directory": os.getcwd(),
    }
    found |= {
        f"warnings.filters[{number}]": " ".join(str(part) for part in (entry[0], *entry[2:]))
        for number, entry in enumerate(warnings.filters)
    }
    return found | {name: what(sys.modules[name]) for name, what in PATCHED.items()}


PATCHED: dict[str, Callable[[Any], object]] = {
    "builtins": lambda module: sorted(vars(module)),
    "decimal": lambda module: str(module.getcontext()),
    "json": lambda module: str(module.JSONEncoder.default.__qualname__),
    "mimetypes": lambda module: [len(table) for table in getattr(module._db, "types_map", ())],
    "socket": lambda module: [str(module.getdefaulttimeout()), module.socket.__module__],
    "threading": lambda module: [module.Thread.__module__, module.active_count()],
    "ssl": lambda module: module.SSLContext.__module__,
}
"""Of modules of the standard library that packages patch or register with."""
