"""The confined process of an import: what it may do, one that waits for the next import, and one that dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import pytest

from sockd.base.errors import (
    ImageTooLarge,
    SandboxFailed,
)
from sockd.images.registry.limits import Limits
from sockd.images.registry.reference import Reference
from sockd.images.store import waiting_process
from sockd.images.store.import_runs import FILE, ImportRuns, ImportSettings
from sockd.images.store.import_wire import Imported
from sockd.images.store.waiting_process import WaitingProcess
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.confined.confined_process import ConfinedProcess
from tests.images.store.running_imports import UID, Imports, script
from tests.support.images.oci_images import member, tar
from tests.support.images.scripted_registry import scripted_registry

pytestmark = [pytest.mark.root, pytest.mark.anyio]


async def test_a_process_that_dies_is_a_typed_error(imports: Imports, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sockd.images.store.import_wire", "sockd.nothing"):  # one that says nothing, one that cannot begin
        monkeypatch.setattr(waiting_process, "MODULE", module)
        with pytest.raises(SandboxFailed, match="while it started"):
            await imports.run("127.0.0.1:1/team/app:v1")


async def test_an_import_that_needs_too_much_memory_is_refused(imports: Imports) -> None:
    deep = "/".join(["n" * 200] * 8)
    members = [member(f"{deep}/{number:06}", b"") for number in range(20_000)]
    with scripted_registry(script([tar(members)])) as address, pytest.raises(ImageTooLarge, match="memory"):
        await imports.run(f"{address}/team/app:v1", memory_bytes=48 << 20)


async def test_the_process_is_confined(imports: Imports, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = """
import os, socket, ssl, sys, json
from sockd.images.store import import_wire
from sockd.images.store.import_process import Wire
control = socket.socket(fileno=int(sys.argv[1]))
scratch = Wire(control).request()[1].scratch
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
def fails(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except OSError:
        return True
    return False
found = {
    "uid": os.getuid(), "groups": os.getgroups(), "caps": status["CapEff"], "bound": status["CapBnd"],
    "seccomp": status["Seccomp"],
    "up": sorted(os.listdir("/proc/self/fd/%d/.." % scratch)) == sorted(os.listdir("/proc/self/fd/%d" % scratch)),
    "shadow": fails(open, "/etc/shadow"), "root": sorted(os.listdir("/")), "fork": fails(os.fork),
    "write": fails(open, "/x", "w"), "exec": fails(os.mkdir, "/tmp/x"),
    "names": socket.getaddrinfo("localhost", 443)[0][4][0], "authorities": ssl.get_default_verify_paths().capath,
    "authority": len(os.listdir(ssl.get_default_verify_paths().capath or "/nothing")),
    "fds": sorted(int(each) for each in os.listdir("/proc/self/fd")),
}
control.sendall(import_wire.encode(import_wire.Progress(json.dumps(found))))
"""
    original = ConfinedProcess.start

    async def start(jail: object, *arguments: str, **options: object) -> object:
        return await original(jail, "-c", probe, arguments[-1], **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ConfinedProcess, "start", start)
    with pytest.raises(SandboxFailed):
        await imports.run("127.0.0.1:1/team/app:v1")
    found = json.loads(imports.progress[-1])
    assert (found["uid"], found["groups"], found["caps"].strip("0"), found["bound"].strip("0")) == (UID, [], "", "")
    assert (
        found["seccomp"] == "2"
        and found["up"]
        and found["shadow"]
        and found["fork"]
        and found["write"]
        and found["exec"]
    )
    assert not {"home", "srv", "boot"} & set(found["root"])
    assert found["names"] in ("127.0.0.1", "::1") and found["authority"] > 0, found["authorities"]
    assert len(found["fds"]) == 7, (
        "three streams, the control socket, the scratch directory, the output, and this listing"
    )
    assert not os.path.exists(imports.path / "scratch")


async def test_a_process_that_waits_is_used_once_and_replaced_if_it_has_died(
    imports: Imports, pool: CgroupPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[WaitingProcess] = []
    original = WaitingProcess.start

    async def start(*arguments: Any) -> WaitingProcess:
        started.append(await original(*arguments))
        return started[-1]

    monkeypatch.setattr(WaitingProcess, "start", start)
    settings = ImportSettings(uid=UID, limits=Limits(), deadline_s=60.0)
    runs = ImportRuns(settings, imports.path, pool.take, pool.give_back)
    directory = imports.path / "image"
    directory.mkdir()

    async def run() -> Imported | None:
        (directory / FILE).unlink(missing_ok=True)
        reference = Reference.parse(f"{address}/team/app:v1")
        return await runs.run(reference, directory, imports.progress.append, path="", is_wanted=yes)

    async def yes(digest: str) -> bool:
        return True

    with scripted_registry(script()) as address:
        runs.keep_ready()
        cancelled = asyncio.create_task(run())
        while not (directory / "scratch").exists():
            await asyncio.sleep(0)
        runs.keep_ready()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert await run() and len(started) == 1, "the process that waited has imported, and there was no other"
        assert not started[0].is_alive
        assert await run() and len(started) == 2, "nobody has asked for another one that waits"
        await runs.ready()
        os.kill(started[2].pid, signal.SIGKILL)
        await started[2].wait()
        assert await run() and len(started) == 4
        runs.keep_ready()
        await runs.aclose()
    assert not any(each.is_alive for each in started)
    assert [each.name for each in imports.path.iterdir()] == ["image"], "their trees are unmounted"
