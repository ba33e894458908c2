"""The engine as the daemon has it: confined, given what it must know, replaced when it dies, and never waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from sockd.linux.confined.confined_process import ConfinedProcess, Jail
from sockd_initscripts.client import client as client_module
from sockd_initscripts.client.client import BUSY, DIED, NOT_READY, EngineClient, EngineDown
from sockd_initscripts.client.daemon_run import Definition, Run
from sockd_initscripts.client.keeper import EngineSettings
from sockd_initscripts.limits import Budget, EngineLimits
from tests.initscripts.guests import LOOP, module
from tests.initscripts.rooms import compile_once
from tests.support.harness import status_of
from tests.support.jail import jail_at

pytestmark = [pytest.mark.anyio, pytest.mark.root]

MB = 1 << 20
UID = 0x1FFFFFFF
RUNS = 2


@pytest.fixture
async def jail(tmp_path: Path) -> AsyncIterator[Jail]:
    async with jail_at(tmp_path / "engine") as jail:
        yield jail


@pytest.fixture
async def engine(jail: Jail) -> AsyncIterator[EngineClient]:
    """One that may start."""
    client = EngineClient(jail, EngineSettings(UID, 512 * MB, RUNS))
    client.open(EngineLimits(runs=RUNS))
    yield client
    await client.close()


def definition(tmp_path: Path, wasm: bytes, number: int = 1) -> Definition:
    path = tmp_path / f"{uuid.uuid4().hex}.cwasm"
    path.write_bytes(compile_once(wasm))
    path.chmod(0o444)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return Definition(number, "f", fd, {}, Budget(deadline_s=30, cpu_ms=60_000), None)


def start(engine: EngineClient, event: bytes = b"{}", number: int = 1) -> Run:
    run = engine.start(number, bytes(16), event, time.monotonic_ns())
    assert run is not None, engine.outcomes
    return run


def engine_pid(engine: EngineClient) -> int:
    """The launcher's one child."""
    launcher = engine.pid
    return int(Path(f"/proc/{launcher}/task/{launcher}/children").read_text())


async def heard(run: Run) -> bytes:
    """Everything that came on the link, until the script's end."""
    said = b""
    run.link.setblocking(False)
    while b'"end"' not in said:
        said += await asyncio.get_running_loop().sock_recv(run.link, 1 << 16)
    return said


async def test_the_engine_holds_nothing_that_it_does_not_need(engine: EngineClient) -> None:
    await engine.ready()
    pid = engine_pid(engine)
    status = status_of(pid)
    assert status["Uid"].split() == status["Gid"].split() == [str(UID)] * 4
    assert status["Groups"] == ""
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[capabilities], 16) == 0, capabilities
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    for kind in ("mnt", "pid", "ipc", "uts"):
        assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    assert os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    root = Path(f"/proc/{pid}/root")
    names = {path.name for path in root.iterdir()} - {Path(sys.base_prefix).parts[1]}
    assert names.isdisjoint({"home", "root", "sys", "work", "boot", "srv", "mnt", "media"})
    assert not (root / "etc" / "shadow").exists() and os.listdir(root / "tmp") == []
    assert [name for name in os.listdir(root / "proc") if name.isdigit()] != []
    held = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd") if int(fd) > 2]
    assert all(name.startswith(("socket:", "anon_inode:", "pipe:")) for name in held), held


async def test_a_run_is_started_reported_and_counted(engine: EngineClient, tmp_path: Path) -> None:
    engine.define(definition(tmp_path, module("(call $exit (i32.const 5))")))
    await engine.ready()
    run = start(engine)
    assert engine.running == 1 and run.ending is None and run.report() is None
    await heard(run)
    run.close_link()
    ending = await run.done
    assert (ending.outcome, ending.status) == ("exit", 5)
    report = run.report()
    assert report is not None and (report.run, report.outcome, report.status) == (run.id, "exit", 5)
    assert report.arrived_ns < report.started_ns < report.ended_ns
    assert engine.running == 0 and engine.outcomes == {"exit": 1}


@pytest.mark.parametrize("size", [10, 100_000])
async def test_the_event_reaches_the_script_whatever_its_size(engine: EngineClient, tmp_path: Path, size: int) -> None:
    engine.define(definition(tmp_path, module("(call $exit (call $input_len))")))
    await engine.ready()
    run = start(engine, b"x" * size)
    await heard(run)
    run.close_link()
    assert (await run.done).status == size


async def test_an_abort_is_reported_before_the_end(engine: EngineClient, tmp_path: Path) -> None:
    engine.define(definition(tmp_path, module("(call $abort_launch (i32.const 3) @why)", why="no work")))
    await engine.ready()
    run = start(engine)
    reported = asyncio.Event()
    run.abort_listeners.append(reported.set)
    await reported.wait()
    assert run.abort is not None and (run.abort.status, run.abort.message) == (3, "no work")
    run.cancel()
    assert (await run.done).outcome == "abort"


async def test_a_cancelled_run_ends_wherever_it_is(engine: EngineClient, tmp_path: Path) -> None:
    engine.define(definition(tmp_path, module(LOOP)))
    await engine.ready()
    run = start(engine)
    run.cancel()
    assert (await run.done).outcome == "cancelled"
    run.cancel()


async def test_when_it_dies_its_runs_end_and_the_next_knows_what_it_knew(engine: EngineClient, tmp_path: Path) -> None:
    engine.define(definition(tmp_path, module(LOOP), 1))
    engine.define(definition(tmp_path, module(""), 2))
    await engine.ready()
    run = start(engine)
    os.kill(engine_pid(engine), signal.SIGKILL)
    assert (await run.done).outcome == DIED
    assert run.report() is None and run.link.recv(1) == b""
    run.cancel()
    assert engine.start(2, bytes(16), b"", 0) is None and engine.outcomes[NOT_READY] == 1
    await engine.ready()
    assert engine.starts == 2 and engine.defined == 2
    run = start(engine, number=2)
    run.cancel()
    assert (await run.done).outcome in ("exit", "cancelled")


async def test_an_engine_that_cannot_take_a_start_is_replaced(engine: EngineClient, tmp_path: Path) -> None:
    engine.define(definition(tmp_path, module(LOOP), 1))
    engine.define(definition(tmp_path, module("(call $exit (i32.const 5))"), 2))
    await engine.ready()
    run = start(engine)
    assert engine._wire is not None and engine._keeper._process is not None
    engine._wire._starts.send(b"no start\n")
    await engine._keeper._process.wait()
    assert (await run.done).outcome in ("cancelled", DIED)  # whether its last report came through or not
    run.close_link()
    await engine.ready()
    assert engine.starts == 2
    run = start(engine, number=2)
    await heard(run)
    run.cancel()
    assert ((await run.done).outcome, (await run.done).status) == ("exit", 5)


async def test_no_more_runs_than_allowed(engine: EngineClient, tmp_path: Path) -> None:
    engine.define(definition(tmp_path, module(LOOP)))
    await engine.ready()
    runs = [start(engine) for _ in range(RUNS)]
    assert engine.start(1, bytes(16), b"", 0) is None and engine.outcomes[BUSY] == 1
    for run in runs:
        run.cancel()
        await run.done
    start(engine).cancel()


async def test_a_script_that_has_ended_takes_no_place_however_long_its_app_goes_on(
    engine: EngineClient, tmp_path: Path
) -> None:
    engine.define(definition(tmp_path, module("")))
    await engine.ready()
    runs = []
    for _ in range(2 * RUNS):
        runs.append(start(engine))
        while engine.running:
            await asyncio.sleep(0)
    assert [run.ending for run in runs] == [None] * 2 * RUNS
    for run in runs:
        run.close_link()
        assert (await run.done).outcome == "exit"
    assert engine.outcomes == {"exit": 2 * RUNS}


async def test_what_was_forgotten_is_not_started_and_its_file_is_let_go(engine: EngineClient, tmp_path: Path) -> None:
    known = definition(tmp_path, module(""))
    engine.define(known)
    await engine.ready()
    engine.forget(known.id)
    engine.forget(known.id)
    assert engine.start(known.id, bytes(16), b"", 0) is None
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(known.module_fd)


async def test_it_is_started_when_it_is_needed_and_not_before(jail: Jail, tmp_path: Path) -> None:
    client = EngineClient(jail, EngineSettings(UID, 512 * MB, RUNS))
    client.open(EngineLimits())
    assert client.pid == 0 and not client.serving
    client.define(definition(tmp_path, module("")))
    await client.ready()
    assert client.serving and client.memory_bytes() > 0
    await client.close()
    assert client.pid == 0


async def test_without_its_packages_it_says_so(engine: EngineClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "missing", lambda: ["wasmtime"])
    with pytest.raises(EngineDown, match=r"wasmtime not installed: .* -m pip install .*'wasmtime[<>=]"):
        await engine.ready()
    assert engine.pid == 0


async def test_more_definitions_than_the_wire_takes_at_once_all_arrive(engine: EngineClient, tmp_path: Path) -> None:
    """The engine does not read before it is ready, and what is said meanwhile must not be lost."""
    text = "x" * 60_000
    for number in range(1, 200):
        engine.define(Definition(number, "f", -1, {"A": text}, Budget()))
    engine.define(definition(tmp_path, module(""), 500))
    await engine.ready()
    assert await until_started(engine, 500)


async def until_started(engine: EngineClient, number: int) -> bool:
    """Begin a run of this function, as soon as that is possible: what the engine must know first is sent in other turns of
    the loop."""
    while (run := engine.start(number, bytes(16), b"", time.monotonic_ns())) is None:
        await asyncio.sleep(0)
    run.cancel()
    return (await run.done).outcome in ("exit", "cancelled")


# -- the launcher


Confined = Callable[..., Awaitable[tuple[str, str]]]


@pytest.fixture
def confined(jail: Jail) -> Confined:
    """Run Python code confined like the compiler; how it ended, and what it printed."""

    async def run(code: str, memory_bytes: int = 128 * MB) -> tuple[str, str]:
        child = await ConfinedProcess.start(
            jail,
            *("-c", code),
            uid=UID,
            memory_bytes=memory_bytes,
            tmp_bytes=MB,
            pids=16,
            network="none",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            assert child.launcher.stdout is not None
            return await child.wait(), (await child.launcher.stdout.read()).decode()
        finally:
            await child.close()

    return run


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os.fork()", "Operation not permitted"),
        ("import os; os.posix_spawn('/bin/true', ['true'], {})", "Operation not permitted"),
        ("import socket; socket.create_connection(('1.1.1.1', 80), 1)", "unreachable"),
        ("open('/usr/x', 'w')", "Read-only file system"),
        ("open('/proc/sys/kernel/hostname')", "No such file"),
        ("import os; os.mkdir('/tmp/x')", "Operation not permitted"),
        ("import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0", "AssertionError"),
    ],
)
async def test_a_confined_process_cannot(confined: Confined, code: str, words: str) -> None:
    ended, said = await confined(code)
    assert ended == "exit status 1" and words in said, (ended, said)


async def test_a_confined_process_is_ended_by_its_memory_limit(confined: Confined) -> None:
    ended, _ = await confined("b = bytearray(300 << 20)\nprint(len(b))", memory_bytes=64 * MB)
    assert ended == "out of memory"


async def test_a_confined_process_can_make_shared_memory_and_threads(confined: Confined) -> None:
    code = """
import fcntl, mmap, os, threading
memory = os.memfd_create("x", os.MFD_ALLOW_SEALING)
os.ftruncate(memory, 4096)
mmap.mmap(memory, 4096)[:3] = b"abc"
fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
thread = threading.Thread(target=print, args=("in a thread",))
thread.start(); thread.join()
"""
    assert await confined(code) == ("exit status 0", "in a thread\n")


async def test_what_ends_by_a_signal_is_named(confined: Confined) -> None:
    ended, _ = await confined("import ctypes; ctypes.string_at(0)")
    assert ended == "killed by signal 11 (segmentation fault)"


async def test_the_engine_goes_with_the_wire(engine: EngineClient) -> None:
    await engine.ready()
    pidfd = os.pidfd_open(engine_pid(engine))
    try:
        await engine.close()
        assert await asyncio.to_thread(exited, pidfd)
    finally:
        os.close(pidfd)


def exited(pidfd: int) -> bool:
    import select

    return bool(select.select([pidfd], [], [], 10)[0])
