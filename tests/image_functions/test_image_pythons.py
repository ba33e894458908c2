"""What is kept of the Pythons of images."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from sockd.code.function_config import FunctionConfig
from sockd.image_functions.image_pythons import ImagePythons, Known, python_command, wanted_python
from sockd.image_store.image_record import ImageRecord
from sockd.image_store.image_store import RECORD, ImageStore, Importer
from sockd.images.base import Base
from sockd.images.image_python import Facts
from sockd.oci.image import ImageConfig
from sockd.plain.errors import ImageUnavailable
from sockd.sandbox.foreign_farms import NoInterpreter

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
        (store.directory(record) / f"python-{number}.json").write_bytes(msgspec.json.encode(Known(python)))
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


@pytest.mark.parametrize("where", ["probe", "root"])
def test_a_deploy_while_an_image_cannot_be_read_makes_no_program_of_its_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async def fails(*_: object) -> Any:
        raise ImageUnavailable("the agent is gone")

    async def answers(*_: object) -> Any:
        return SimpleNamespace(facts=FACTS, compiled={})

    record, tree, nothing = record_of("1"), SimpleNamespace(why_no_root=fails), cast(Any, None)
    directory = tmp_path / "images" / record.hex
    directory.mkdir(parents=True)
    (directory / RECORD).write_bytes(msgspec.json.encode(record))
    store = ImageStore(tmp_path / "images", tmp_path, cast(Base, None), cast(Importer, NoFiles()))
    store.recover()
    pythons = ImagePythons(store, nothing, cast(Any, tree), nothing, nothing, tmp_path / "pythons")
    monkeypatch.setattr(pythons, "_probe", fails if where == "probe" else answers)
    with pytest.raises(ImageUnavailable):
        asyncio.run(pythons.find(record, CONFIG, lambda text: None))
    assert pythons.known(record, CONFIG).reason == (
        "its Python was not asked; deploy it again" if where == "probe" else ""
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"app_port": 80}, "it is a program (app_port)"),
        ({"writable_root": True}, "it is a program (writable_root)"),
        ({"runtime": "provided"}, 'it is a program (runtime = "provided")'),
        ({"handler": "app"}, "handler = 'app' is not module.attr"),
    ],
)
def test_a_program_is_told_why_it_is_one(settings: dict[str, Any], words: str) -> None:
    image = ImageConfig(entrypoint=("/server",))
    record = ImageRecord(
        digest="sha256:" + "0" * 64, reference="i", config=image, size_bytes=0, layers=1, imported_at=0
    )
    assert python_command(msgspec.structs.replace(CONFIG, **settings), record) == ([], words)
