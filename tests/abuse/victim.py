"""Whom an attack is aimed at: a function in the middle of a request, which must go on unharmed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.daemon.gate import Gate
from tests.daemon.kernel_view import host_pid, unified
from tests.support.emulated import SLOWER
from tests.support.private_worker import PrivateWorker
from tests.support.threads import in_background

WAITS = """
from gate import wait
import os
def f(event): return [wait(event, open("/proc/self/cgroup").read().split("0::")[1].strip()), os.getpid()]
"""


@contextmanager
def victim(worker: PrivateWorker, **settings: Any) -> Iterator[int]:
    """A function in the middle of a request; the body gets its pid on the host. It must end well afterwards."""
    gate = Gate()
    worker.deploy("victim", {"f.py": WAITS, "gate.py": Gate.CODE}, timeout_s=20 * SLOWER, **settings)
    try:
        with in_background(lambda: worker.invoke("victim", gate.port)) as answer:
            cgroup = unified(gate.arrived())
            try:
                yield host_pid(cgroup)
            finally:
                gate.open()
            assert answer().json == ["go", 1]
    finally:
        gate.close()
