"""The n-th-call sweep: let the first, the second, ... call of a function fail, until the work needs no more calls.

SQLite's out-of-memory and I/O-error loops do the same. It needs no hook in the product because every system call of the
product is a function of a module in sockd/linux, and its callers name that module.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

_MOST_CALLS = 500


def nth_call(module: ModuleType, name: str, *, error: int = errno.EIO) -> Iterator[int]:
    """For n = 1, 2, ...: n, while the n-th call of `module.name` raises OSError(error); ends after an n that was too many.

    The loop's body must do the whole work and expect it to fail; in the last round it succeeds.

    Raises: AssertionError when even hundreds of calls do not suffice: the work tries again for ever."""
    original = getattr(module, name)
    for n in range(1, _MOST_CALLS):
        calls = 0

        def failing(*args: Any, _n: int = n, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == _n:
                raise OSError(error, f"{os.strerror(error)} (injected into call {_n} of {name})")
            return original(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, failing)
            yield n
        if calls < n:
            return
    raise AssertionError(f"{name} was called {_MOST_CALLS} times and more")
