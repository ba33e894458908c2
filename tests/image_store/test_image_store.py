"""How many images are mounted for their first start at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from sockd.image_store import image_store
from sockd.image_store.image_record import ImageRecord
from sockd.image_store.image_store import ImageStore
from sockd.images.image_base import ImageBase
from sockd.oci.image import ImageConfig
from sockd.plain.errors import TooManyRequests

pytestmark = pytest.mark.anyio


class SlowStore(ImageStore):
    """Whose images are mounted when the test says so."""

    def __init__(self, path: Path, most_cold: int) -> None:
        nothing: Any = None
        super().__init__(path / "images", path / "tmp", nothing, nothing, most_cold=most_cold)
        self.begun: list[str] = []
        self.go_on = asyncio.Event()

    async def _mount(self, record: ImageRecord) -> ImageBase:
        self.begun.append(record.digest)
        await self.go_on.wait()
        mounted = cast(ImageBase, object())
        self._mounts[record.digest] = mounted
        return mounted


def image(number: int) -> ImageRecord:
    return ImageRecord(
        digest=f"sha256:{number:064}", reference="i", config=ImageConfig(), size_bytes=0, layers=1, imported_at=0
    )


async def test_a_start_beyond_the_limit_waits_for_another_to_end(tmp_path: Path) -> None:
    store = SlowStore(tmp_path, 2)
    starts = [asyncio.create_task(store.mounted(image(number % 5))) for number in range(10)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(store.begun) == 2
    store.go_on.set()
    assert len(set(await asyncio.gather(*starts))) == 5 == len(store.begun)


async def test_a_start_that_has_waited_in_vain_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_store, "COLD_WAIT_S", 0.05)
    store = SlowStore(tmp_path, 1)
    first = asyncio.create_task(store.mounted(image(1)))
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match="1 images are being started"):
        await store.mounted(image(2))
    store.go_on.set()
    await first


def test_an_image_is_kept_for_an_hour_after_the_import_of_the_next_build(tmp_path: Path) -> None:
    store = SlowStore(tmp_path, 1)
    hour = image_store.GRACE_S
    imports = (("app:1", 0.0), ("app:2", 0.5), ("other:1", 0.6), ("app:3", 9.0), ("app:4", 9.1))
    images = [
        msgspec.structs.replace(image(number), reference=reference, imported_at=at * hour)
        for number, (reference, at) in enumerate(imports)
    ]
    store._records = {each.digest: each for each in images}

    def unused(at: float, keep: ImageRecord | None = None) -> list[str]:
        kept = {keep.digest} if keep else set()
        return sorted(each.reference for each in store.unused(kept, at * hour))

    assert unused(1.4) == []
    assert unused(1.55) == ["app:1"]
    assert unused(9.9) == ["app:1", "other:1"]
    assert unused(10.05) == ["app:1", "app:2", "other:1"], "the first build is not kept for the last"
    assert unused(10.2, images[-1]) == ["app:1", "app:2", "app:3", "other:1"]
