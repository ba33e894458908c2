"""What the worker of these tests answers: invocations, functions, errors, a trace, a service, numbers and imports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sockd.base import errors
from sockd.base.telemetry import FunctionInfo, Invocation, Times

TIMES = Times(queue=1000, setup=200_000, init=3_000_000, exec=40_000)


def invocation(body: bytes = b"null") -> Invocation:
    """An invocation that was served from a spare."""
    return Invocation(body, "spare", "sandbox-7", "v1", times=TIMES)


def info(name: str) -> FunctionInfo:
    """A plausible function."""
    return FunctionInfo(
        name=name,
        version="ab" * 32,
        version_number=1,
        handler="f:f",
        memory_mb=128,
        timeout_s=3.0,
        concurrency=10,
        network="host",
        packages=["numpy==2.3.0"],
        code_bytes=120,
        created_at=1_700_000_000.0,
        updated_at=1_700_000_000.0,
        state="packages to be installed" if name == "restored" else "ready",
        state_reason="these packages are not on this worker: numpy==2.3.0" if name == "restored" else "",
    )


ERRORS: dict[str, Callable[[], errors.SockdError]] = {
    "raises": lambda: errors.FunctionFailed("ValueError", "no \udcff good", ['  File "/var/task/f.py", line 1\n']),
    "times_out": lambda: errors.TimedOut("Task timed out after 3.00 seconds"),
    "oom": lambda: errors.OutOfMemory(limit_bytes=128 << 20, peak_bytes=128 << 20),
    "busy": lambda: errors.TooManyRequests("10 running, 1000 waiting", retry_after_s=2),
    "full": lambda: errors.NoCapacity("no memory left"),
    "storeless": lambda: errors.StoreUnavailable("s3://images/", "it does not answer"),
    "unread": lambda: errors.ImageUnavailable("the agent is gone", retry_after_s=29),
}


SERVICE: dict[str, Any] = {
    "name": "store",
    "state": "running",
    "version": "3",
    "port": 11211,
    "published": 0,
    "port_reason": "",
    "sandbox": "sandbox-9",
    "up_s": 75.0,
    "start_s": 0.02,
    "connections": 2,
    "draining": 0,
    "memory_bytes": 9 << 20,
    "starts": 2,
    "failures": 1,
    "reason": "Runtime exited with error: exit status 3",
    "retry_in_s": 0.0,
}
PACKAGE: dict[str, Any] = {
    "key": "numpy-2.3.0-abc",
    "name": "numpy",
    "version": "2.3.0",
    "size_bytes": 1 << 20,
    "functions": ["echo"],
}
MS = 1_000_000
TRACE: dict[str, Any] = {
    "request_id": "0a1b2c3d-0000-4000-8000-000000000000",
    "function": "imgrec",
    "version": "3",
    "origin": "zygote",
    "sandbox": "sandbox-7",
    "node": "",
    "outcome": "ok",
    "initscript": "exit",
    "error": "",
    "stack": [],
    "log": "",
    "cut": False,
    "arrived_ns": 1000 * MS,
    "answered_ns": 1400 * MS,
    "fetched_ns": 300 * MS,
    "hidden_ns": 270 * MS,
    "replies": {"sent": 2, "reads": 2, "used": 1},
    "spans": [
        {"track": track, "name": name, "start_ns": start * MS, "end_ns": end * MS, "detail": detail}
        for track, name, start, end, detail in (
            ("daemon", "queue", 1000, 1000, ""),
            ("daemon", "fork", 1000, 1002, "root Zygote"),
            ("sandbox", "setup", 1000, 1005, ""),
            ("sandbox", "init", 1005, 1350, ""),
            ("sandbox", "exec", 1350, 1399, ""),
            ("initscript", "boot", 1001, 1301, "exit 0"),
            ("initscript", "message 0", 1301, 1301, "13000000 bytes"),
            ("rpc", "s3.GetObject data model", 1001, 1301, "200, 13000000 bytes, new connection, 4 parts"),
            ("rpc", "s3.GetObject data image", 1001, 1101, "200, 5000000 bytes, kept connection"),
            ("reads", "s3.GetObject data model", 1271, 1301, "region"),
        )
    ],
    "passed_over": "",
    "critical": [{"name": "setup", "ns": 5 * MS}, {"name": "init", "ns": 345 * MS}, {"name": "exec", "ns": 49 * MS}],
}
"""What the worker says of one invocation: see `sockd.observe.trace_spans`."""


LIVE: dict[str, Any] = {
    "window_s": 60.0,
    "worker": {
        "functions": 12,
        "rate": 81.2,
        "count": 4872,
        "cold": 1218,
        "failed": 5,
        "sandboxes": {"busy": 3, "idle": 2, "paused": 7, "spare": 4},
        "queued": 1,
        "zygotes": 3,
        "memory_reserved_bytes": 900 << 20,
        "memory_total_bytes": 12 << 30,
        "evictions": 0,
    },
    "functions": [
        {
            "name": name,
            "rate": rate,
            "rates": [0.0, rate, rate],
            "p50_ms": p50_ms,
            "p99_ms": p50_ms * 4,
            "count": round(rate * 60),
            "cold_share": 0.25,
            "failed": failed,
            "running": 2,
            "concurrency": 10,
            "queued": 1,
            "idle": 3,
            "memory_bytes": 640 << 20,
        }
        for name, rate, p50_ms, failed in (
            ("thumbnails-of-a-rather-long-name", 80.0, 1.25, 0),
            ("report", 1.2, 1800.0, 5),
        )
    ],
}
"""What the worker is doing: see `sockd.worker.for_apis.live`."""


STREAMS: dict[str, tuple[int, list[tuple[bytes, bytes]]]] = {
    "streams": (200, [(b"content-type", b"text/plain"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]),
    "promises": (200, [(b"content-length", b"5")]),
    "forges": (
        299,
        [
            *((b"transfer-encoding", b"gzip"), (b"x-sockd-cold", b"7"), (b"connection", b"x"), (b"date", b"now")),
            *((b"x-amzn-requestid", b"mine"), (b"x-amzn-trace-id", b"mine")),
        ],
    ),
    "creates": (204, [(b"content-length", b"3")]),
    "breaks": (200, []),
    "late": (200, []),
    "teapot": (418, []),
}
"""Functions that answer with the pieces that their payload lists: status and headers."""
FLOOD = bytes(64 * 1024)


IMPORTS: dict[str, Any] = {
    "function": "echo",
    "version": "1",
    "seen": True,
    "zygotes_allowed": True,
    "sharing": "a Zygote has imported a part ahead: no Zygote has the rest",
    "passed_over": [],
    "packages": [
        {
            "package": "pandas==3.0.0",
            "ms": 180.5,
            "ahead_ms": 0.0,
            "in_zygote": False,
            "shareable": True,
            "refused": None,
            "modules": [
                {"module": "pandas", "ms": 100.5, "in_zygote": False},
                {"module": "pandas.core", "ms": 80.0, "in_zygote": False},
            ],
        },
        {
            "package": "numpy==2.3.0",
            "ms": 60.0,
            "ahead_ms": 60.0,
            "in_zygote": True,
            "shareable": False,
            "refused": None,
            "modules": [],
        },
        {
            "package": "odd==1.0",
            "ms": 1.0,
            "ahead_ms": 0.0,
            "in_zygote": False,
            "shareable": True,
            "refused": "it starts threads",
            "modules": [],
        },
    ],
    "standard": {"ms": 8.5, "ahead_ms": 6.0},
}
"""What a function imports: see `sockd.worker.for_apis.import_report`."""
