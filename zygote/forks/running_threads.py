"""Threads that run when an init has ended, by name: a fork has one thread only.

Allowed are those that their library starts again by itself, and those of native libraries that compute on one thread instead.
Only libraries that were tried are named here; any other thread is a reason why there can be no snapshot.
"""

from __future__ import annotations

import os
import sys

STARTED_AGAIN = ("Otel", "raven-sentry.", "sentry.", "sentry-sdk.")
"""Beginnings of names of Python threads: OpenTelemetry starts its own again after a fork, sentry at its next use."""
ON_ONE_THREAD = ("numpy", "scipy", "sklearn", "duckdb", "onnxruntime")
"""Modules whose native pools a fork does without: their answers are right, computed by the thread that calls them."""
HARMLESS = ("jemalloc_bg_thd",)
"""Names of native threads of allocators."""
ADVICE = "start it at the first request, or in a function that snapshot_restore_py.register_after_restore registers"


def complaints() -> list[str]:
    """Say which threads no fork can do without."""
    found, known, count = [], {os.getpid()}, 1
    threading = sys.modules.get("threading")
    if threading is not None:
        threads = threading.enumerate()
        count = len(threads)
        for thread in threads:
            known.add(thread.native_id or 0)
            if thread is not threading.main_thread() and not thread.name.startswith(STARTED_AGAIN):
                found.append(f"init leaves the thread {thread.name!r} running, and a fork has only one: {ADVICE}")
    own = name_of(os.getpid())
    for number in map(int, os.listdir("/proc/self/task")):
        if number in known:
            continue
        try:
            name = name_of(number)
        except OSError:
            continue  # it has just ended
        if is_refused(name, own):
            which = f"the native thread {name!r}" if name != own else "a native thread of an unknown library"
            found.append(f"init leaves {which} running, and a fork has only one: {ADVICE}")
    if len(sys._current_frames()) > count:
        found.append(f"init leaves a thread running that `threading` does not know, and a fork has only one: {ADVICE}")
    return found


def is_refused(name: str, own: str) -> bool:
    """Whether a native thread is of a library that was not tried. Args: own: what an unnamed thread is called."""
    if name in HARMLESS:
        return False
    return name != own or not any(module in sys.modules for module in ON_ONE_THREAD)


def name_of(number: int) -> str:
    """Return the name of a thread of this process. Raises: OSError: it has ended."""
    with open(f"/proc/self/task/{number}/comm") as file:
        return file.read().rstrip("\n")
