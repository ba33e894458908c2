"""A rehearsal: one initscript run alone in this process, against the real endpoints, with us in the function's place.

Needs no worker and no root. What it shows is what a cold start would get: the engine is the worker's own. Owns: the
compiled file, the app link's other end.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from sockd.linux.readiness import readable
from sockd_initscripts.engine.engine import Definition, Engine
from sockd_initscripts.engine.modules import ModuleInfo, check_module, compile_module
from sockd_initscripts.engine.run import RunRequest
from sockd_initscripts.limits import Budget, EngineLimits
from sockd_initscripts.report import RunReport
from sockd_initscripts.rpc import preload
from sockd_storage_lib.sockd_initscript import wire

_ONE_FD = socket.CMSG_SPACE(struct.calcsize("i"))
CHECK_RUNS = 5


class Received(msgspec.Struct, kw_only=True):
    """One thing that the function would have received."""

    op: str
    """"message", "failed" or "connection"."""
    id: int
    rpc: list[str] | None = None
    status: int = 0
    bytes: int = 0
    reason: str = ""
    received_ns: int


class Rehearsal(msgspec.Struct):
    """What happened."""

    report: RunReport
    received: list[Received]


class Checked(msgspec.Struct):
    """What there is to know of a module without its endpoints."""

    module: ModuleInfo
    compiled_bytes: int
    compile_ms: float
    start_ms: float
    """From the invocation's arrival to the first instruction; the best of a few, the module loaded."""
    outcome: str
    """The outcome of a run that may connect nowhere, with an empty event."""


def rehearse(wasm: bytes, event: bytes, *, env: Mapping[str, str], budget: Budget) -> Rehearsal:
    """Run a script to its end. Raises: BadModule.

    Args: event: what it gets as its input. env: the function's environment, with its endpoints and credentials."""
    return _rehearse(compile_module(wasm), event, env, budget, times=1)[0]


def check(wasm: bytes) -> Checked:
    """Check and compile a module, and see how soon it starts. Raises: BadModule."""
    module = check_module(wasm)
    begun = time.perf_counter()
    compiled = compile_module(wasm)
    compile_ms = (time.perf_counter() - begun) * 1e3
    runs = _rehearse(compiled, b"{}", {}, Budget(endpoints=[], deadline_s=1.0), times=CHECK_RUNS)
    starts_ms = [(run.report.started_ns - run.report.arrived_ns) / 1e6 for run in runs]
    return Checked(module, len(compiled), compile_ms, min(starts_ms), runs[-1].report.outcome)


def _rehearse(compiled: bytes, event: bytes, env: Mapping[str, str], budget: Budget, *, times: int) -> list[Rehearsal]:
    async def run() -> list[Rehearsal]:
        # What an engine loads before it serves; else the first RPC would seem to wait for it.
        tls = None if budget.endpoints == [] else await preload()
        async with Engine(EngineLimits(runs=1, ready_threads=1), tls=tls) as engine:
            engine.define(
                Definition(id=1, name="alone", module=path, env=dict(env), budget=budget, authorities=_authorities(env))
            )
            return [await _run_once(engine, number, event) for number in range(times)]

    with tempfile.TemporaryDirectory(prefix="sockd-initscript-") as directory:
        path = Path(directory, "module.cwasm")
        path.write_bytes(compiled)
        return asyncio.run(run())


def _authorities(env: Mapping[str, str]) -> bytes | None:
    """What the file AWS_CA_BUNDLE of this host has; as in a worker, no peer is trusted if it cannot be read."""
    file = env.get("AWS_CA_BUNDLE")
    try:
        return Path(file).read_bytes() if file else None
    except OSError:
        return b""


async def _run_once(engine: Engine, number: int, event: bytes) -> Rehearsal:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.setblocking(False)
        arrived_ns = time.monotonic_ns()
        run = engine.start(RunRequest(id=number, function=1, input=event, app=theirs, arrived_ns=arrived_ns))
        received = await _receive(ours)
    return Rehearsal(await run.done, received)


async def _receive(sock: socket.socket) -> list[Received]:
    """Everything until the script has ended; buffers are not looked into."""
    received: list[Received] = []
    while (message := await _next(sock)) is not None and message["op"] != "end":
        if message["op"] != "sent":
            received.append(
                Received(
                    op=message["op"],
                    id=message["id"],
                    rpc=message.get("rpc") or ([message["addr"]] if "addr" in message else None),
                    status=message.get("status", 0),
                    bytes=message.get("length", 0),
                    reason=message.get("reason", ""),
                    received_ns=time.monotonic_ns(),
                )
            )
    return received


async def _next(sock: socket.socket) -> dict[str, Any] | None:
    """One datagram of the engine, without what is attached; None at the end of the link."""
    while True:
        try:
            data, ancillary, _, _ = sock.recvmsg(wire.MAX_DATAGRAM, _ONE_FD, socket.MSG_CMSG_CLOEXEC)
            break
        except BlockingIOError:
            await readable(sock.fileno())
    for _, _, content in ancillary:
        for (fd,) in struct.iter_unpack("i", content):
            os.close(fd)
    return wire.decode(data)[0] if data else None
