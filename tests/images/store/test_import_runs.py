"""Imports in a confined process: what it writes, what it may do, and that nothing is left of one that fails."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sockd.base.errors import (
    BadImage,
    ImageAccessDenied,
    ImageTooLarge,
    NoSuchImage,
    RegistryUnavailable,
    SandboxFailed,
    StorageFull,
)
from sockd.base.notes import Progress
from sockd.images.registry import documents
from sockd.images.registry.image import ImageConfig
from sockd.images.registry.limits import MOST_CONFIG_TEXTS, Limits
from sockd.images.registry.reference import Reference
from sockd.images.store import import_wire, waiting_process
from sockd.images.store.image_facts import ImageFacts
from sockd.images.store.import_runs import FILE, Compile, ImportRuns, ImportSettings
from sockd.images.store.import_wire import Compiled, Imported, Uncompiled
from sockd.images.store.missing_bytecode import CompiledBatch
from sockd.images.store.waiting_process import WaitingProcess
from sockd.linux import syscalls
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.cgroups.tree import CgroupTree, Hierarchies
from sockd.linux.confined.confined_process import ConfinedProcess
from sockd.linux.syscalls import MountFlag
from tests.images.registry.test_registry import certificate
from tests.support.cases import case
from tests.support.erofs_reader import ErofsReader
from tests.support.oci_images import Blobs, digest, link, member, tar
from tests.support.scripted_registry import Script, scripted_registry

pytestmark = [pytest.mark.root, pytest.mark.anyio]

UID = 0x0FFFFF05
LAYERS = [
    tar([member("bin/f", b"#!program", mode=0o755), member("data", bytes(range(256)) * 10_000)]),
    tar([link("bin/g", "f"), member("etc/", None), member("gone/.wh.x", b"")]),
]


@pytest.fixture
async def pool() -> AsyncIterator[CgroupPool]:
    async with AsyncExitStack() as stack:
        tree = CgroupTree.create(Hierarchies.detect(), f"sockd-test-{uuid.uuid4().hex[:8]}")
        stack.callback(tree.destroy_all, 5)
        pool = CgroupPool(tree, 0)
        await pool.start()
        stack.push_async_callback(pool.aclose)
        yield pool


class Imports:
    """Runs of imports and the directories that they leave."""

    def __init__(self, path: Path, pool: CgroupPool) -> None:
        self.path = path
        self._pool = pool
        self.progress: list[str] = []
        self.file = b""

    async def run(
        self,
        reference: str,
        *,
        path: str = "",
        is_wanted: bool = True,
        compile_sources: Compile | None = None,
        **settings: object,
    ) -> Imported:
        values = {"uid": UID, "limits": Limits(), "deadline_s": 60.0, **settings}
        runs = ImportRuns(ImportSettings(**values), self.path, self._pool.take, self._pool.give_back)  # type: ignore[arg-type]
        runs.compile = compile_sources
        directory = self.path / "image"
        directory.mkdir(exist_ok=True)

        async def wanted(digest: str) -> bool:
            return is_wanted

        try:
            found = await runs.run(
                Reference.parse(reference), directory, self.progress.append, path=path, is_wanted=wanted
            )
            assert (found is not None) == is_wanted
            return found  # type: ignore[return-value]
        finally:
            assert {each.name for each in self.path.iterdir()} <= {"image", "archive.tar", "config.json"}
            assert [each.name for each in directory.iterdir()] in ([], [FILE])
            if (directory / FILE).exists():
                self.file = (directory / FILE).read_bytes()
                (directory / FILE).unlink()


@pytest.fixture
def imports(tmp_path: Path, pool: CgroupPool) -> Imports:
    return Imports(tmp_path, pool)


def script(layers: list[bytes] | None = None) -> Script:
    blobs = Blobs()
    manifest = blobs.image(LAYERS if layers is None else layers, Entrypoint=["/bin/f"], Env=["PATH=/opt/python/bin"])
    return Script({"v1": (manifest, documents.OCI_MANIFEST)}, dict(blobs))


def reader(data: bytes) -> ErofsReader:
    return ErofsReader(lambda offset, size: data[offset : offset + size])


async def test_an_image_of_a_registry_becomes_a_file_system(imports: Imports) -> None:
    one = script()
    with scripted_registry(one) as address:
        record = await imports.run(f"{address}/team/app:v1")
    assert record.digest == digest(one.manifests["v1"][0])
    assert (record.layers, record.size_bytes) == (2, len(imports.file)) and record.metadata_chunks == 1
    assert (record.facts.command, record.config.entrypoint) == ("/bin/f", ("/bin/f",))
    files = reader(imports.file)
    assert files.read_file("bin/g") == b"#!program" and files.read_file("data") == bytes(range(256)) * 10_000
    assert {"proc", "tmp", "dev", "var"} <= set(files.list_directory(""))
    assert "merging layers" in imports.progress


async def test_the_same_layers_become_the_same_bytes(imports: Imports) -> None:
    found = []
    for _ in range(2):
        with scripted_registry(script()) as address:
            await imports.run(f"{address}/team/app:v1")
        found.append(imports.file)
    assert found[0] == found[1]


async def test_an_archive_that_was_uploaded_is_read_by_its_descriptor(imports: Imports) -> None:
    blobs = Blobs()
    manifest = blobs.image(LAYERS)
    path = blobs.write_layout(imports.path / "layout", {"v1": manifest})
    files = [(str(each.relative_to(path)), each.read_bytes()) for each in sorted(path.rglob("*")) if each.is_file()]
    archive = imports.path / "archive.tar"
    archive.write_bytes(tar([member(name, data) for name, data in files]))
    archive.chmod(0o600)
    for each in sorted(path.rglob("*"), reverse=True):
        each.rmdir() if each.is_dir() else each.unlink()
    path.rmdir()
    for reference in ("-", "oci:somewhere/app:v1", "oci-archive:app.tar", "./app.tar"):
        assert (await imports.run(reference, path=str(archive))).digest == digest(manifest)
    with pytest.raises(NoSuchImage, match="no tag 'v2'"):
        await imports.run("oci:app:v2", path=str(archive))
    with pytest.raises(BadImage, match="are uploaded"):
        await imports.run("oci:/etc")


async def test_of_an_image_that_is_not_wanted_no_layer_is_fetched(imports: Imports) -> None:
    one = script()
    with scripted_registry(one) as address:
        await imports.run(f"{address}/team/app:v1", is_wanted=False)
        assert one.count("/blobs") == 0


async def test_credentials_are_those_of_the_file_and_of_this_registry_only(imports: Imports) -> None:
    one = script()
    one.wants, one.accepted = "Basic", {"Basic dTpw"}
    config = imports.path / "config.json"
    with scripted_registry(one) as address:
        with pytest.raises(ImageAccessDenied):
            await imports.run(f"{address}/team/app:v1", docker_config=config)
        config.write_text(json.dumps({"auths": {address: {"auth": "dTpw"}}}))
        config.chmod(0o600)
        await imports.run(f"{address}/team/app:v1", docker_config=config)
        assert one.authorizations("/blobs") == {"Basic dTpw": 3}
        config.write_text("{")
        with pytest.raises(BadImage, match="malformed"):
            await imports.run(f"{address}/team/app:v1", docker_config=config)


@pytest.mark.parametrize(
    ("layers", "limits", "error", "words"),
    [
        ([tar([member("../x", b"")])], Limits(), BadImage, "layer 1 .* leaves its directory"),
        ([tar([member("x", bytes(3 << 20))])], Limits(max_bytes=1 << 20), ImageTooLarge, "more than 1 MB"),
        ([tar([member("var", b"")])], Limits(), BadImage, "var is a file"),
    ],
)
async def test_a_hostile_image_is_a_typed_error(
    imports: Imports, layers: list[bytes], limits: Limits, error: type[Exception], words: str
) -> None:
    with scripted_registry(script(layers)) as address, pytest.raises(error, match=words):
        await imports.run(f"{address}/team/app:v1", limits=limits)


async def test_an_import_contacts_other_services_of_the_host_only_if_they_are_configured(imports: Imports) -> None:
    one = script()
    other = Script(blobs=one.blobs)
    with scripted_registry(one) as address, scripted_registry(other) as storage:
        one.redirect = f"http://{storage}"
        with pytest.raises(
            BadImage, match=r"only spoken with over HTTPS; images\.insecure_registries names exceptions"
        ):
            await imports.run(f"{address}/team/app:v1")
        one.redirect = f"https://{storage}"
        with pytest.raises(BadImage, match=r"not a public address; images\.redirect_hosts names hosts"):
            await imports.run(f"{address}/team/app:v1")
        assert not other.requests
        one.redirect = f"http://{storage}"
        await imports.run(f"{address}/team/app:v1", insecure_registries=(storage,))
        assert other.count("/blobs") == 3


@case(
    "K29",
    "an import process of strangers sends an image with 4097 variables",
    expect="refused before the daemon uses it",
)
def test_a_message_with_a_configuration_over_the_limits_is_none() -> None:
    """As a process would send it that strangers have taken over; its own check is in `documents`."""

    def line(variables: int) -> bytes:
        config = ImageConfig(env=tuple(f"A{n}=1" for n in range(variables)))
        values = {"facts": ImageFacts(), "layers": 1, "size_bytes": 1, "metadata_chunks": 1, "notes": ()}
        return import_wire.encode(Imported(digest=f"sha256:{'0' * 64}", config=config, **values))  # type: ignore[arg-type]

    assert isinstance(import_wire.decode(line(MOST_CONFIG_TEXTS)), Imported)
    with pytest.raises(msgspec.ValidationError, match="4097 variables; the limit is 4096"):
        import_wire.decode(line(MOST_CONFIG_TEXTS + 1))


async def test_an_import_that_takes_too_long_ends_with_its_process(imports: Imports) -> None:
    one = script()
    one.answers["/manifests"] = [(503, {"Retry-After": "30"})] * 10
    with scripted_registry(one) as address, pytest.raises(RegistryUnavailable, match="import_timeout_s"):
        await imports.run(f"{address}/team/app:v1", deadline_s=3.0)


async def test_an_import_that_is_cancelled_leaves_nothing(imports: Imports) -> None:
    one = script()
    one.answers["/manifests"] = [(503, {"Retry-After": "30"})] * 10
    with scripted_registry(one) as address:
        running = asyncio.create_task(imports.run(f"{address}/team/app:v1"))
        async with asyncio.timeout(30):
            await asyncio.to_thread(one.begun.wait)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


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


async def test_authorities_of_the_worker_are_trusted_besides_the_systems(imports: Imports, tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    context, authority = certificate(tmp_path / "image")
    own = tmp_path / "config.json"
    own.write_bytes(authority.read_bytes())
    for path in (tmp_path / "image").iterdir():
        path.unlink()
    with scripted_registry(script(), tls=context) as address:
        with pytest.raises(RegistryUnavailable, match="is not valid"):
            await imports.run(f"{address}/team/app:v1")
        assert (await imports.run(f"{address}/team/app:v1", ca_file=own)).layers == 2


async def test_a_mirror_is_asked_first_and_the_registry_for_what_it_does_not_have(imports: Imports) -> None:
    origin, mirror = script(), script()
    with scripted_registry(origin) as address, scripted_registry(mirror) as other:
        mirrors = {address: other}
        assert (await imports.run(f"{address}/team/app:v1", mirrors=mirrors)).layers == 2
        assert not origin.requests and mirror.count("/v2/team/app/manifests/v1") == 1
        mirror.manifests.clear()
        assert (await imports.run(f"{address}/team/app:v1", mirrors=mirrors)).layers == 2
        assert origin.count("/v2/team/app/manifests/v1") == 1
        assert any(f"not from the mirror {other}" in line for line in imports.progress)
    with scripted_registry(script()) as address:
        mirrors = {address: other}  # which has ended
        assert (await imports.run(f"{address}/team/app:v1", mirrors=mirrors)).layers == 2
