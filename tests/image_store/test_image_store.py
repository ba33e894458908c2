"""How many images are mounted for their first start at once, and how long a start waits for its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sockd.image_store import image_store
from sockd.image_store.image_record import ImageRecord
from sockd.image_store.image_store import ImageStore
from sockd.images.image_base import ImageBase
from sockd.oci.image import ImageConfig
from sockd.plain.errors import ImageNotReady, SockdError, StoreUnavailable, TooManyRequests

pytestmark = pytest.mark.anyio


class SlowStore(ImageStore):
    """Whose images are mounted when the test says so."""

    def __init__(self, path: Path, most_cold: int) -> None:
        nothing: Any = None
        super().__init__(path / "images", path / "tmp", nothing, nothing, most_cold=most_cold)
        self.begun: list[str] = []
        self.go_on = asyncio.Event()
        self.failure: SockdError | None = None

    async def _mount(self, record: ImageRecord) -> ImageBase:
        self.begun.append(record.digest)
        await self.go_on.wait()
        mounted = self._mounts[record.digest] = ImageBase(-1, -1)
        return mounted

    def _unmount(self, record: ImageRecord) -> None:
        del self._mounts[record.digest]

    def failure_since(self, record: ImageRecord, begun_ns: int) -> SockdError | None:
        return self.failure


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


@pytest.mark.parametrize("failure", [None, StoreUnavailable("of images", "no chunk has come")], ids=["slow", "stalled"])
async def test_a_mount_that_takes_too_long_is_waited_for_no_longer_than_its_start(
    tmp_path: Path, failure: SockdError | None
) -> None:
    store = SlowStore(tmp_path, 1)
    store.failure = failure
    with pytest.raises(ImageNotReady if failure is None else StoreUnavailable) as told:
        await store.mounted(image(1), 0.01)
    assert told.value.status == 503
    store.go_on.set()
    while store.is_in_use(image(1).digest) or store._mounting:
        await asyncio.sleep(0)
    assert (await store.mounted(image(1), 60)).holders == 0 and len(store.begun) == 2


async def test_a_mount_goes_on_for_others_when_one_start_is_given_up(tmp_path: Path) -> None:
    store = SlowStore(tmp_path, 1)
    first, second = (asyncio.create_task(store.mounted(image(1), 60)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    store.go_on.set()
    mounted = await second
    assert store.is_current(mounted) and first.cancelled() and len(store.begun) == 1


async def test_a_mount_that_its_start_does_not_take_is_given_up(tmp_path: Path) -> None:
    store = SlowStore(tmp_path, 1)
    start = asyncio.create_task(store.mounted(image(1), 60))
    while not store.begun:
        await asyncio.sleep(0)
    store.go_on.set()
    while not store.is_mounted(image(1).digest):
        await asyncio.sleep(0)
    start.cancel()  # it is there, and the start has not been woken yet
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not store.is_in_use(image(1).digest)
