"""Imports that compile: bytecode is added to the image that is written, once, and is not left out on a full disk."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from sockd.base.errors import (
    StorageFull,
)
from sockd.base.notes import Progress
from sockd.images.store.import_runs import FILE
from sockd.images.store.import_wire import Compiled, Uncompiled
from sockd.images.store.missing_bytecode import CompiledBatch
from sockd.linux import syscalls
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.confined.confined_process import ConfinedProcess
from sockd.linux.syscalls import MountFlag
from tests.images.store.running_imports import Imports, reader, script
from tests.support.images.oci_images import member, tar
from tests.support.images.scripted_registry import scripted_registry

pytestmark = [pytest.mark.root, pytest.mark.anyio]


async def test_data_of_an_image_is_written_once_when_bytecode_is_added(imports: Imports) -> None:
    python = "opt/python/lib/python3.12"
    data = random.Random(2).randbytes(3 << 20)
    members = [
        member("opt/python/bin/python3.12", b"a program", mode=0o755),
        *(member(f"{python}/{name}.py", b"x = 1") for name in ("os", "io", "no")),
        member("data", data),
    ]
    code = [b"code of the first", b"", b"code of the third"]
    changed = b"written by nobody else"

    async def compile_sources(file: Path, uncompiled: Uncompiled, answers: int, progress: Progress) -> Compiled:
        assert file.name == FILE, "the file itself, as its process is stopped"
        with open(file, "r+b") as image:
            at = image.read().index(data[:100])
            image.seek(at)
            image.write(changed)
        answer = b"\xcb\r\r\n" + b"".join(struct.pack("<I", len(each)) for each in code) + b"".join(code)
        os.pwrite(answers, answer, 0)
        return Compiled((CompiledBatch(0, 0, 0, len(answer)),))

    with scripted_registry(script([tar(members)])) as address:
        imported = await imports.run(f"{address}/team/app:v1", compile_sources=compile_sources)
    assert imported.notes == () and imported.size_bytes == len(imports.file)
    found = reader(imports.file)
    assert found.read_file("data") == changed + data[len(changed) :], "what stands in the file since before"
    cached = found.list_directory(f"{python}/__pycache__")
    assert [found.read_file(f"{python}/__pycache__/{name}")[16:] for name in cached] == [code[0], code[2]]
    assert cached == ["io.cpython-312.pyc", "os.cpython-312.pyc"]


async def test_an_import_that_compiles_writes_the_layers_and_the_image_once(
    imports: Imports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count the bytes that the import process and the daemon write: 2.0 times the image, which may become 2.2. It was 4.0.

    The import process waits to be killed: Linux adds what a process has written to the one that waits for it."""
    counting = """
import signal, sys
from sockd.images.store import import_process, import_wire
send = import_process.Wire.send
def counted(wire, message):
    if isinstance(message, import_wire.Imported):
        send(wire, import_wire.Progress(open("/proc/self/io").read()))
        send(wire, message)
        signal.pause()
    send(wire, message)
import_process.Wire.send = counted
import_process.main(int(sys.argv[1]))
"""
    original = ConfinedProcess.start

    async def start(jail: object, *arguments: str, **options: object) -> object:
        return await original(jail, "-c", counting, arguments[-1], **options)  # type: ignore[arg-type]

    async def compile_sources(file: Path, uncompiled: Uncompiled, answers: int, progress: Progress) -> Compiled:
        answer = b"\xcb\r\r\n" + struct.pack("<I", 4) + b"code"
        os.pwrite(answers, answer, 0)
        return Compiled((CompiledBatch(0, 0, 0, len(answer)),))

    monkeypatch.setattr(ConfinedProcess, "start", start)
    python = "opt/python/lib/python3.12"
    members = [
        member("opt/python/bin/python3.12", b"a program", mode=0o755),
        member(f"{python}/os.py", b"x = 1"),
        member("data", random.Random(3).randbytes(32 << 20)),
    ]
    with scripted_registry(script([tar(members)])) as address:
        before = bytes_written(Path("/proc/self/io").read_text())
        imported = await imports.run(f"{address}/team/app:v1", compile_sources=compile_sources)
        ours = bytes_written(Path("/proc/self/io").read_text()) - before
    theirs = next(bytes_written(text) for text in imports.progress if "wchar" in text)
    assert reader(imports.file).list_directory(f"{python}/__pycache__") == ["os.cpython-312.pyc"]
    assert 1.9 * imported.size_bytes < ours + theirs <= 2.2 * imported.size_bytes


def bytes_written(text: str) -> int:
    """What a process has given to write(2) and its kind, of proc_pid_io(5)."""
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("wchar:")))


async def test_bytecode_that_a_full_disk_prevents_is_not_left_out_of_the_image(
    tmp_path: Path, pool: CgroupPool
) -> None:
    """The import fails, instead of giving an image without bytecode to all workers of the store; the next one compiles."""
    python = "opt/python/lib/python3.12"
    members = [
        member("opt/python/bin/python3.12", b"a program", mode=0o755),
        member(f"{python}/os.py", b"x = 1"),
        member(f"{python}/site-packages/m.py", b"x = 1"),
        member("data", random.Random(1).randbytes(12 << 20)),
    ]
    asked: list[int] = []

    async def compile_sources(file: Path, uncompiled: Uncompiled, answers: int, progress: Progress) -> Compiled:
        asked.append(uncompiled.sources)
        for at in range(0, 16 << 20, 1 << 20):
            os.pwrite(answers, bytes(1 << 20), at)
        return Compiled(reason="it is a test")

    disk = tmp_path / "disk"
    disk.mkdir()
    syscalls.mount("tmpfs", str(disk), "tmpfs", MountFlag.NOSUID | MountFlag.NODEV, "size=32m")
    try:
        imports = Imports(disk, pool)
        with scripted_registry(script([tar(members)])) as address:
            with pytest.raises(StorageFull):
                await imports.run(f"{address}/team/app:v1", compile_sources=compile_sources)
            syscalls.mount(
                "tmpfs", str(disk), "tmpfs", MountFlag.REMOUNT | MountFlag.NOSUID | MountFlag.NODEV, "size=96m"
            )
            imported = await imports.run(f"{address}/team/app:v1", compile_sources=compile_sources)
        assert asked == [2, 2] and imported.notes == ("bytecode was not compiled: it is a test",)
    finally:
        syscalls.umount(str(disk))
