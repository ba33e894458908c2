"""The clock that `logging` starts when it is imported: each fork starts it again when it has its code.

`LogRecord.relativeCreated` counts from it. In a fork it would show the age of the Zygote, and of a spare the time for which it
waited. No other module of the standard library (3.11 to 3.13) keeps the time of its import.
"""

from __future__ import annotations

import sys
import time
from functools import partial

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

UNITS: dict[type, Callable[[], float]] = {float: time.time, int: time.time_ns}
"""What the clock was read with: seconds until Python 3.12, nanoseconds since 3.13."""


def with_code() -> list[Callable[[], object]]:
    """Return what a fork has to call as soon as it has its code; nothing, if `logging` was not imported."""
    module = sys.modules.get("logging")
    read = UNITS.get(type(getattr(module, "_startTime", None)))  # a package may have a module of this name
    return [partial(restart, module, read)] if read is not None else []


def restart(module: Any, read: Callable[[], float]) -> None:
    """Let the clock of `logging` begin now."""
    module._startTime = read()
