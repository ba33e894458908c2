"""Makes attacks out of Python functions: their source, deployed as a function or run inside a Zygote as a package.

The body of an attack sees the names of `prelude` and nothing else of these tests.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.emulated import SLOWER
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel

NOBODYS = {"home", "root", "boot", "mnt", "srv", "sys", "media"} - {Path(os.path.realpath(sys.base_prefix)).parts[1]}
"""Names in a host's root that no sandbox has, unless the interpreter is there."""

PRELUDE = Path(__file__).with_name("prelude.py").read_text()
WORTH_A_ZYGOTE = "import time as _t\n_end = _t.perf_counter() + 0.03\nwhile _t.perf_counter() < _end: pass\n"
_numbers = itertools.count(1)

Attack = Callable[[Any], Any]


def source(attack: Attack) -> str:
    """The text of an attack as `f`, with all that it needs."""
    text = textwrap.dedent(inspect.getsource(attack))
    return f"from __future__ import annotations\nfrom prelude import *\n{text}\nf = {attack.__name__}\n"


def files(attack: Attack) -> dict[str, str | bytes]:
    """What is deployed."""
    return {"f.py": source(attack), "prelude.py": PRELUDE}


def attack(worker: PrivateWorker, attack: Attack, event: Any = None, **settings: Any) -> Any:
    """Deploy an attack and invoke it once; what it returns."""
    name = f"attack-{next(_numbers)}"
    worker.deploy(name, files(attack), **{"timeout_s": 15 * SLOWER, **settings})
    return worker.call(name, event)


CLEAN_UP = """\
def clean_up():
    for top, directories, names in os.walk(os.environ.get("TMPDIR", "/tmp"), topdown=False):
        for each in (f"{top}/{name}" for name in (*names, *directories)):
            (os.rmdir if os.path.isdir(each) and not os.path.islink(each) else os.unlink)(each)
"""
"""Removes what an attack leaves in /tmp: forks of the Zygote would have it, and verification would refuse the Zygote for that."""


def in_zygote(worker: PrivateWorker, attack: Attack, event: Any = None, *, also: str = "") -> Any:
    """Have a package run an attack while a Zygote imports it; what it returned there.

    The package brings the attack in its wheel. A function's first start teaches the worker that the import is worth a Zygote, a
    later one is forked from it and tells what the package has seen: kept in a closure, which fingerprints do not describe, as
    verification would refuse a Zygote in which it has seen something else.

    Args:
        event: passed to the attack (as its repr); also: more code of the package's module, behind the attack."""
    number = next(_numbers)
    name, module = f"evil-{number}", f"evil_{number}"
    text = textwrap.dedent(inspect.getsource(attack))
    also_in_own = "".join(
        f"{ast.unparse(node)}\n" for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import)
    )
    code = (
        f"from __future__ import annotations\nimport os\n{also_in_own}"  # a Zygote may load no more than a start of its own
        f"{WORTH_A_ZYGOTE}from {module}_prelude import *\n{text}\n"
        f"{CLEAN_UP}PID = os.getpid()\nERROR = SEEN = None\n"
        f"if PID != 1:\n"
        f"    try:\n        SEEN = {attack.__name__}({event!r})\n"
        f"    except BaseException as error:\n        ERROR = repr(error)\n    clean_up()\n{also}\n"
        f"def keep(*values): return lambda: values\n"
        f"SEEN = keep(PID, ERROR, SEEN)\ndel ERROR\n"
    )
    package = wheel(name, "1.0", {f"{module}.py": code, f"{module}_prelude.py": PRELUDE})
    user = f"import {module}\ndef f(event): return {module}.SEEN()\n"
    worker.deploy(f"in-zygote-{number}", user, requirements=[name], wheels=[package], timeout_s=10 * SLOWER)
    worker.call(f"in-zygote-{number}")
    pid, error, seen = worker.call_learned(f"in-zygote-{number}")
    assert pid != 1, "the package was not imported in a Zygote"
    assert error is None, error
    return seen
