"""What is kept of the Pythons of images."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from sockd.base.errors import (
    Draining,
    HostFailed,
    ImagePythonFailed,
    ImageUnavailable,
    InitFailed,
    OutOfMemory,
    SandboxDied,
    SandboxFailed,
    SockdError,
    StorageFull,
    TimedOut,
)
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.in_images.image_pythons import ImagePythons, Known, python_command, wanted_python
from sockd.images.registry.image import ImageConfig
from sockd.images.store.image_directories import RECORD
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.image_store import ImageStore
from sockd.images.store.importer import Importer
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.farm.zygote import NeverServed
from sockd.isolation.roots.base import Base
from sockd.isolation.roots.image_python import Facts, ImagePython
from sockd.isolation.sandbox.foreign_farms import NoInterpreter

FACTS = Facts("/usr/bin/python3", (3, 12, 1), "cpython-312", "cpython", True, True, [], ["/usr/lib/python3.12"], [], [])
CONFIG = FunctionConfig(image="i", runtime="python", handler="app:handler")


class NoFiles:
    """An importer of images without a file."""

    async def remove(self, record: ImageRecord) -> None:
        return


def record_of(digits: str) -> ImageRecord:
    return ImageRecord(
        digest=f"sha256:{digits * 64}",
        reference="i",
        config=ImageConfig(cmd=("app.handler",)),
        size_bytes=0,
        layers=1,
        imported_at=0,
    )


def test_what_an_images_python_said_goes_with_its_image(tmp_path: Path) -> None:
    """A farm of it is refused then, whatever the functions of other images know."""
    images = tmp_path / "images"
    records = [record_of("1"), record_of("2")]
    nothing = cast(Any, None)
    for record in records:
        directory = images / record.hex
        directory.mkdir(parents=True)
        (directory / RECORD).write_bytes(msgspec.json.encode(record))
    store = ImageStore(images, tmp_path, cast(Base, None), cast(Importer, NoFiles()))
    store.recover()
    pythons = ImagePythons(store, nothing, nothing, nothing, nothing, tmp_path / "pythons")
    ids = []
    for record in records:
        python = msgspec.structs.replace(wanted_python(record, CONFIG)[0], facts=FACTS)
        number = python.id.rpartition(".")[2]
        (store.directories.of(record) / f"python-{number}.json").write_bytes(msgspec.json.encode(Known(python)))
        assert pythons.known(record, CONFIG).id == python.id
        ids.append(python.id)

    async def why_not(id_: str) -> str:
        try:
            await pythons.open(id_)
        except NoInterpreter as error:
            return error.message
        except AttributeError:  # the importer opens no file
            return "it is mounted"
        pytest.fail("there is nothing to mount")

    assert asyncio.run(why_not(ids[0])) == "it is mounted"
    asyncio.run(store.remove(records[0].digest))
    assert asyncio.run(why_not(ids[0])) == "no function of this worker uses the image's Python"
    assert asyncio.run(why_not(ids[1])) == "it is mounted"


OUT_OF_MEMORY = OutOfMemory(limit_bytes=1, peak_bytes=1)
UNKNOWN = "its Python was not asked; deploy it again"


def died(words: str, *, has_exited: bool) -> SandboxDied:
    error = SandboxDied(words)
    error.has_exited = has_exited
    return error


def never_served(said: str) -> NeverServed:
    return NeverServed(f"Python 3.12 did not become a Zygote: {said}", said)


def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception) -> ImagePythons:
    """The Pythons of a worker with the image "1", of which one step fails."""

    async def probe(*_: object) -> Any:
        if where == "probe":
            raise error
        return SimpleNamespace(facts=FACTS, compiled={})

    async def why_no_root(*_: object) -> Any:
        return error if where == "root" else None

    record, nothing = record_of("1"), cast(Any, None)
    directory = tmp_path / "images" / record.hex
    directory.mkdir(parents=True)
    (directory / RECORD).write_bytes(msgspec.json.encode(record))
    store = ImageStore(tmp_path / "images", tmp_path, cast(Base, None), cast(Importer, NoFiles()))
    store.recover()
    tree = cast(Any, SimpleNamespace(lineages=SimpleNamespace(why_no_root=why_no_root)))
    pythons = ImagePythons(store, nothing, tree, nothing, nothing, tmp_path / "pythons")
    monkeypatch.setattr(pythons, "_probe", probe)
    return pythons


def find(pythons: ImagePythons, **settings: Any) -> ImagePython:
    config = msgspec.structs.replace(CONFIG, **settings)
    return asyncio.run(pythons.find(record_of("1"), config, lambda text: None))


@pytest.mark.parametrize("where", ["probe", "root"])
@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (ImageUnavailable("the agent is gone"), ImageUnavailable),
        (Draining("the worker ends"), Draining),
        (OSError(errno.ENOMEM, "no"), HostFailed),
        (OSError(errno.ENOSPC, "no"), StorageFull),
        (TimeoutError(), ImagePythonFailed),
        (TimedOut("Init timed out"), ImagePythonFailed),
        (OUT_OF_MEMORY, ImagePythonFailed),
        (died("Runtime exited with error: signal: killed", has_exited=False), ImagePythonFailed),
        (died("Runtime exited with error: exit status 1 (MemoryError)", has_exited=True), ImagePythonFailed),
        (InitFailed("Runtime.InvalidEntrypoint", "[Errno 11] Resource temporarily unavailable"), ImagePythonFailed),
        (SandboxFailed("the farm did not start"), ImagePythonFailed),
        (ZygoteGone("the Zygote died"), ImagePythonFailed),
        (never_served("a warning of something"), ImagePythonFailed),
        (never_served("[Errno 12] Cannot allocate memory"), ImagePythonFailed),
        (never_served("ImportError: a.so: failed to map: Cannot allocate memory"), ImagePythonFailed),
    ],
)
def test_a_failure_of_the_worker_at_a_deploy_makes_no_program_of_a_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception, reported: type[SockdError]
) -> None:
    pythons = failing(tmp_path, monkeypatch, where, error)
    with pytest.raises(reported) as raised:
        find(pythons)
    assert raised.type is reported and raised.value.status in (503, 507)
    assert pythons.known(record_of("1"), CONFIG).reason == (UNKNOWN if where == "probe" else "")


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("probe", died("Runtime exited with error: exit status 1", has_exited=True)),
        ("probe", InitFailed("Runtime.InvalidEntrypoint", "the entry point does not exist")),
        ("root", never_served("Traceback (most recent call last):\nModuleNotFoundError: No module named 'ctypes'")),
        ("root", never_served("[Errno 2] No such file or directory: '/usr/bin/python3'")),
        ("root", never_served("/python: error while loading shared libraries: libpython3.so: cannot open it")),
    ],
)
def test_what_is_a_property_of_the_image_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: SockdError
) -> None:
    pythons = failing(tmp_path, monkeypatch, where, error)
    assert error.message in find(pythons).reason
    assert error.message in pythons.known(record_of("1"), CONFIG).reason


def test_a_handler_that_zygotes_are_not_to_serve_needs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = find(failing(tmp_path, monkeypatch, "probe", OUT_OF_MEMORY), zygote="none")
    assert python.reason == 'zygote = "none"' and python.facts is None


def test_an_answer_that_cannot_be_read_for_want_of_descriptors_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pythons = failing(tmp_path, monkeypatch, "nowhere", OUT_OF_MEMORY)
    find(pythons)

    def refused(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(HostFailed, match="Too many open files"):
        pythons.known(record_of("1"), CONFIG)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"app_port": 80}, "it is a program (app_port)"),
        ({"writable_root": True}, "it is a program (writable_root)"),
        ({"runtime": "provided"}, 'it is a program (runtime = "provided")'),
        ({"handler": "app"}, "handler = 'app' is not module.attr"),
    ],
)
def test_a_program_learns_why_it_is_one(settings: dict[str, Any], words: str) -> None:
    image = ImageConfig(entrypoint=("/server",))
    record = ImageRecord(
        digest="sha256:" + "0" * 64, reference="i", config=image, size_bytes=0, layers=1, imported_at=0
    )
    assert python_command(msgspec.structs.replace(CONFIG, **settings), record) == ([], words)
