"""The images of a worker as its APIs show them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sockd.base.errors import StoreUnavailable, UnknownImage
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.deploys.images import Images
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.registry.image import ImageConfig
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.image_store import ImageStore

pytestmark = pytest.mark.anyio


class Registry:
    """Without functions."""

    def images(self) -> set[str]:
        return set()

    def list(self) -> list[Any]:
        return []


class SilentStore:
    """The garbage of images whose chunk store has stopped answering."""

    async def collect(self, **wanted: Any) -> dict[str, Any]:
        raise StoreUnavailable("s3://images/", "it does not answer")


class Store(ImageStore):
    """With images, of which the chunk store lets the first `most` go."""

    def __init__(self, count: int, most: int) -> None:
        self._unused = [
            ImageRecord(
                digest=f"sha256:{64 * str(n)}",
                reference="",
                config=ImageConfig(),
                size_bytes=1,
                layers=1,
                imported_at=0.0,
            )
            for n in range(count)
        ]
        self._most = most

    def unused(self, keep: set[str], now_s: float) -> list[ImageRecord]:
        return self._unused

    async def remove(self, digest: str) -> None:
        if not self._most:
            raise StoreUnavailable("s3://images/", "it answers 503")
        self._most -= 1


@pytest.mark.parametrize(("most", "why"), [(1, "it answers 503"), (2, "it does not answer")])
async def test_images_that_were_removed_before_a_failure_are_named(most: int, why: str) -> None:
    images = Images(Store(2, most), Registry(), SilentStore())  # type: ignore[arg-type]
    names = ", ".join(f"sha256:{12 * str(number)}" for number in range(most))
    with pytest.raises(StoreUnavailable, match=rf"{why}; these images were removed before: {names}$") as caught:
        await images.collect()
    assert caught.value.retry_after_s == 1


async def test_a_failure_before_any_removal_is_reported_as_it_is() -> None:
    with pytest.raises(StoreUnavailable, match=r"answers 503$"):
        await Images(Store(2, 0), Registry(), SilentStore()).collect()  # type: ignore[arg-type]


class Known(ImageStore):
    """With these images, the latest import first."""

    def __init__(self, *references: str) -> None:
        nothing: Any = None
        super().__init__(Path("images"), Path("tmp"), nothing, nothing)
        self.directories.records = {
            record.digest: record
            for number, reference in enumerate(references, 1)
            for record in [
                ImageRecord(
                    digest=f"sha256:{64 * str(number)}",
                    reference=reference,
                    config=ImageConfig(),
                    size_bytes=1,
                    layers=1,
                    imported_at=float(-number),
                )
            ]
        }


class Deploys(Registry):
    """A function in the first image, by a short name of it."""

    def deploys_in_images(self) -> list[Any]:
        settings = FunctionConfig(image="python:3.12")
        return [SimpleNamespace(image=f"sha256:{64 * '1'}", name="f", readable=settings)]


HUB = "docker.io/library/python:3.12"


def test_a_reference_is_listed_once_with_the_image_that_it_names_now() -> None:
    images = Images(Known(HUB, HUB, "registry.example.com/a:1"), Deploys(), SilentStore())  # type: ignore[arg-type]
    assert [row["references"] for row in images.all()] == [
        [HUB],
        [f"docker.io/library/python@sha256:{64 * '2'}"],
        ["registry.example.com/a:1"],
    ]


@pytest.mark.parametrize("text", ["python:3.12", "library/python:3.12", HUB, "1111"])
def test_an_image_is_found_by_its_short_name(text: str) -> None:
    images = Images(Known(HUB, "registry.example.com/a:1"), Deploys(), SilentStore())  # type: ignore[arg-type]
    assert images.show(text)["digest"] == f"sha256:{64 * '1'}"
    with pytest.raises(UnknownImage):
        images.show("python:3.13")


class Chunks(SilentStore):
    """Three chunks of the first image, one of which the second has, too."""

    async def chunk_names(self, record: ImageRecord) -> frozenset[bytes]:
        return frozenset((b"a", b"b", b"c") if record.hex.startswith("1") else (b"c",))


async def test_what_images_share_is_counted_once() -> None:
    images = Images(Known(HUB, "registry.example.com/a:1"), Deploys(), Chunks())  # type: ignore[arg-type]
    found = await images.disk_use()
    assert [(row["stored_bytes"], row["own_bytes"]) for row in found["images"]] == [
        (3 * CHUNK_BYTES, 2 * CHUNK_BYTES),
        (CHUNK_BYTES, 0),
    ]
    assert found["stored_bytes"] == 3 * CHUNK_BYTES
