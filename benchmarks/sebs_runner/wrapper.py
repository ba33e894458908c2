"""The handler that every bench is packed with, as `handler.py`: SeBS's wrapper, plus the times of the function's reads.

Runs in the sandbox; the standard library only, and as little of it as SeBS's own wrapper. The answer is what SeBS's clients
parse (begin, end, results_time, is_cold, result, request_id, container_id), with one key more:

    "sockd": {"entered_ns", "imported_ns", "init_done_ns", "ended_ns", "reads": [{call, key, start_ns, end_ns}]}

All on CLOCK_MONOTONIC, which is one clock for the whole machine. `init_done_ns` is the first moment at which the function
can work on its data: the return of its last read from storage before it writes anything, or, without such reads, the
moment that it is called. Reads are seen from outside, by methods laid over those of the storage and nosql objects: alike
for SeBS's own wrapper and for ours.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
import uuid

TYPE_CHECKING = False  # typing is not imported here, and type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

sys.path.append(os.path.join(os.path.dirname(__file__), ".python_packages/lib/site-packages"))
if "SEBS_SYSTEM_PACKAGES" in os.environ:
    sys.path.append(os.environ["SEBS_SYSTEM_PACKAGES"])

READS = ("download", "download_stream", "download_directory", "get", "query")
WRITES = ("upload", "upload_stream", "insert", "update", "delete")

container_id: str | None = None


class Calls:
    """What the function asked of its storage since `reset`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.reads: list[dict[str, Any]] = []
        self.written = False
        self.depth = 0

    def read(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            # SeBS's download_directory calls its own download; only the outer call is the function's.
            self.depth += 1
            start = time.monotonic_ns()
            try:
                return method(*args, **kwargs)
            finally:
                self.depth -= 1
                if not self.depth and not self.written:
                    end = time.monotonic_ns()
                    key = str(args[1]) if len(args) > 1 else ""
                    self.reads.append({"call": name, "key": key, "start_ns": start, "end_ns": end})

        return timed

    def write(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def marked(*args: Any, **kwargs: Any) -> Any:
            self.written = True
            return method(*args, **kwargs)

        return marked


calls = Calls()


def watch() -> None:
    """Lay the timers over the storage objects that the function has imported."""
    for name in ("storage", "nosql"):
        module = sys.modules.get("function." + name)
        if module is None:
            continue
        instance = getattr(module, name).get_instance()
        for method in READS:
            if hasattr(instance, method):
                setattr(instance, method, calls.read(method, getattr(instance, method)))
        for method in WRITES:
            if hasattr(instance, method):
                setattr(instance, method, calls.write(getattr(instance, method)))


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    global container_id
    entered_ns = time.monotonic_ns()
    calls.reset()
    is_cold = container_id is None
    event["request-id"] = context.aws_request_id
    event["income-timestamp"] = datetime.datetime.now().timestamp()

    begin = datetime.datetime.now()
    from function import function  # type: ignore[import-not-found]  # the bench's own, in the sandbox

    if is_cold:
        watch()
    imported_ns = time.monotonic_ns()
    ret = function.handler(event)
    end = datetime.datetime.now()
    ended_ns = time.monotonic_ns()

    result = {"output": ret["result"]}
    if "measurement" in ret:
        result["measurement"] = ret["measurement"]
    if is_cold:
        container_id = str(uuid.uuid4())[:8]
    return {
        "begin": begin.strftime("%s.%f"),
        "end": end.strftime("%s.%f"),
        "results_time": 0,
        "is_cold": is_cold,
        "result": result,
        "request_id": context.aws_request_id,
        "cold_start_var": os.environ.get("cold_start", ""),  # noqa: SIM112 - SeBS's name
        "container_id": container_id,
        "sockd": {
            "entered_ns": entered_ns,
            "imported_ns": imported_ns,
            "init_done_ns": calls.reads[-1]["end_ns"] if calls.reads else imported_ns,
            "ended_ns": ended_ns,
            "reads": calls.reads,
        },
    }
