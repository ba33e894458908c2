"""Copies of all environment variables that the standard library makes at import, and each fork makes again.

`wsgiref.handlers` keeps one in a class, and much imports it (prometheus_client). `platform.architecture()` makes one for the
command `file`, and keeps none. No import sees what is in them, so `VariableReads` does not count them as read.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

KEEPER = "wsgiref.handlers"
COPYING = frozenset({(KEEPER, "read_environ"), ("platform", "_syscmd_file")})
"""Functions that copy, by module and name."""
NEAR = 3
"""Frames between a method of `os.environ` and the function that iterates over it, at most: views are generators of their own."""


def is_copying() -> bool:
    """Whether one of these functions iterates over `os.environ`, whose method is the caller."""
    frame = sys._getframe(1)
    for _ in range(NEAR):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in COPYING:
            return True
    return False


def with_code() -> list[Callable[[], object]]:
    """Return what a fork has to call as soon as it has its variables; nothing, if no copy is kept."""
    module = sys.modules.get(KEEPER)
    has_both = hasattr(module, "BaseHandler") and hasattr(module, "read_environ")
    return [lambda: copy_again(module)] if has_both else []


def copy_again(module: Any) -> None:
    """Have the class keep the variables of this process."""
    module.BaseHandler.os_environ = module.read_environ()
