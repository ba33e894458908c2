"""Mounts of images: how many are made at once, how long a start waits for its own, and what becomes of one that is lost."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sockd.base.errors import BadImage, ImageNotReady, ImageUnavailable, SockdError, StoreUnavailable, TooManyRequests
from sockd.images.registry.image import ImageConfig
from sockd.images.store import image_mounts, image_store
from sockd.images.store.image_directories import ImageDirectories
from sockd.images.store.image_mounts import ImageMounts
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.image_store import ImageStore
from sockd.isolation.roots.image_base import ImageBase

pytestmark = pytest.mark.anyio


class SlowMounts(ImageMounts):
    """Mounts that are made when the test says so."""

    def __init__(self, path: Path, most_cold: int) -> None:
        nothing: Any = None
        directories = ImageDirectories(path / "images", path / "tmp")
        super().__init__(
            directories, nothing, nothing, nothing, most_cold=most_cold, on_unmount=lambda: self.unmounts.append(1)
        )
        self.unmounts: list[int] = []
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
    mounts = SlowMounts(tmp_path, 2)
    starts = [asyncio.create_task(mounts.mounted(image(number % 5))) for number in range(10)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(mounts.begun) == 2
    mounts.go_on.set()
    assert len(set(await asyncio.gather(*starts))) == 5 == len(mounts.begun)


async def test_a_start_that_has_waited_in_vain_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_mounts, "COLD_WAIT_S", 0.05)
    mounts = SlowMounts(tmp_path, 1)
    first = asyncio.create_task(mounts.mounted(image(1)))
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match="1 images are being started"):
        await mounts.mounted(image(2))
    mounts.go_on.set()
    await first


LOST = ImageUnavailable("the agent is gone", retry_after_s=7)


class OpenImages:
    """An importer whose images are read by an agent that is `gone` or serves."""

    def __init__(self) -> None:
        self.opened = self.closed = 0

    async def open(self, record: ImageRecord, directory: Path) -> str:
        self.opened += 1
        return "/no/such/file"

    async def close(self, record: ImageRecord) -> None:
        self.closed += 1

    async def settled(self) -> None:
        return None

    def used(self) -> None:
        return None

    def failure_since(self, record: ImageRecord, begun_ns: int) -> None:
        return None


@pytest.fixture
def opened() -> OpenImages:
    return OpenImages()


@pytest.fixture
def store(tmp_path: Path, opened: OpenImages) -> ImageStore:
    nothing: Any = None
    importer: Any = opened
    store = ImageStore(tmp_path / "images", tmp_path / "tmp", nothing, importer)
    store.directories.records = {image(1).digest: image(1)}
    return store


def mount_with(monkeypatch: pytest.MonkeyPatch, step: Callable[[], None]) -> list[ImageBase]:
    """The mounts that are made, after a step in the thread."""
    made: list[ImageBase] = []

    def mount(source: str, base: object, owner: object, attaching: object, *, by_loop: bool) -> ImageBase:
        step()
        made.append(ImageBase(os.open("/", os.O_PATH | os.O_CLOEXEC), os.open("/", os.O_PATH | os.O_CLOEXEC)))
        return made[-1]

    monkeypatch.setattr(ImageBase, "mount", mount)
    return made


async def test_a_lost_mount_learns_its_watchers_and_closed_behind_its_last_user(
    store: ImageStore, opened: OpenImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = mount_with(monkeypatch, lambda: None)
    use, reported = store.use(image(1).digest), []
    base = await use.mounted(60)
    base.hold()
    base.watchers.add(lambda: reported.append(base.lost))
    store.lose_mount(image(1).digest, LOST)
    assert reported == [LOST] and not store.mounts.is_mounted(image(1).digest)
    assert await use.mounted(60) is not base, "the next start mounts it anew"
    assert base.at[0] >= 0, "a sandbox has it still"
    base.let_go()
    await asyncio.gather(*store.mounts._closing)
    assert base.at[0] < 0 and opened.closed == 0, "the agent has forgotten it"
    use.close()
    await asyncio.gather(*store.mounts._closing)
    assert made[1].at[0] < 0 and opened.closed == 1


async def test_an_image_that_is_lost_while_it_is_unmounted_is_not_closed_for_its_next_user(
    store: ImageStore, opened: OpenImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount_with(monkeypatch, lambda: None)
    is_read, close = threading.Event(), ImageBase.close

    def close_late(self: ImageBase) -> None:
        is_read.wait(10)
        close(self)

    monkeypatch.setattr(ImageBase, "close", close_late)
    first = store.use(image(1).digest)
    await first.mounted(60)
    first.close()
    store.lose_mount(image(1).digest, LOST)
    second = store.use(image(1).digest)
    await second.mounted(60)
    is_read.set()
    await asyncio.gather(*store.mounts._closing)
    assert (opened.opened, opened.closed) == (2, 0)
    second.close()
    await asyncio.gather(*store.mounts._closing)
    assert opened.closed == 1


async def test_a_watcher_that_fails_hinders_no_other(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mount_with(monkeypatch, lambda: None)
    use, reported = store.use(image(1).digest), []
    base = await use.mounted(60)

    def fails() -> None:
        raise OSError(5, "no cgroup")

    base.watchers |= {fails, lambda: reported.append(1)}
    store.lose_mount(image(1).digest, LOST)
    assert reported == [1] and "were not ended" in caplog.text
    use.close()
    await asyncio.gather(*store.mounts._closing)


@pytest.mark.parametrize("fails", [False, True])
async def test_an_image_that_is_lost_while_it_is_mounted_is_not_used(
    store: ImageStore, opened: OpenImages, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    loop = asyncio.get_running_loop()

    def lose() -> None:
        asyncio.run_coroutine_threadsafe(in_loop(), loop).result()
        if fails:
            raise OSError(5, "mount")

    async def in_loop() -> None:
        store.lose_mount(image(1).digest, LOST)

    made = mount_with(monkeypatch, lose)
    with pytest.raises(ImageUnavailable, match="the agent is gone") as reported:
        await store.use(image(1).digest).mounted(60)
    assert reported.value.retry_after_s == 7
    assert all(each.at[0] < 0 for each in made) and opened.closed == 1


def test_the_beginning_of_several_digests_is_answered_with_those_of_each(store: ImageStore) -> None:
    images = [
        msgspec.structs.replace(image(1), digest=f"sha256:{hex:0<64}") for hex in ("abcd1", "abcd22", "abcd23", "f")
    ]
    store.directories.records = {each.digest: each for each in images}
    with pytest.raises(BadImage, match=r"^abcd is the beginning of 3 digests; write abcd1 or abcd22 or abcd23$"):
        store.find("abcd")
    assert store.find("sha256:abcd22") is images[1]


def test_an_image_is_kept_for_an_hour_after_the_import_of_the_next_build(store: ImageStore) -> None:
    hour = image_store.GRACE_S
    imports = (("app:1", 0.0), ("app:2", 0.5), ("other:1", 0.6), ("app:3", 9.0), ("app:4", 9.1))
    images = [
        msgspec.structs.replace(image(number), reference=reference, imported_at=at * hour)
        for number, (reference, at) in enumerate(imports)
    ]
    store.directories.records = {each.digest: each for each in images}

    def unused(at: float, keep: ImageRecord | None = None) -> list[str]:
        kept = {keep.digest} if keep else set()
        return sorted(each.reference for each in store.unused(kept, at * hour))

    assert unused(1.4) == []
    assert unused(1.55) == ["app:1"]
    assert unused(9.9) == ["app:1", "other:1"]
    assert unused(10.05) == ["app:1", "app:2", "other:1"], "the first build is not kept for the last"
    assert unused(10.2, images[-1]) == ["app:1", "app:2", "app:3", "other:1"]


@pytest.mark.parametrize("failure", [None, StoreUnavailable("of images", "no chunk has come")], ids=["slow", "stalled"])
async def test_a_mount_that_takes_too_long_is_waited_for_no_longer_than_its_start(
    tmp_path: Path, failure: SockdError | None
) -> None:
    mounts = SlowMounts(tmp_path, 1)
    mounts.failure = failure
    with pytest.raises(ImageNotReady if failure is None else StoreUnavailable) as reported:
        await mounts.mounted(image(1), 0.01)
    assert reported.value.status == 503
    mounts.go_on.set()
    while mounts.is_mounted(image(1).digest) or mounts._mounting:
        await asyncio.sleep(0)
    assert (await mounts.mounted(image(1), 60)).holders == 0 and len(mounts.begun) == 2


async def test_a_mount_goes_on_for_others_when_one_start_is_given_up(tmp_path: Path) -> None:
    mounts = SlowMounts(tmp_path, 1)
    first, second = (asyncio.create_task(mounts.mounted(image(1), 60)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    mounts.go_on.set()
    mounted = await second
    assert mounts.is_current(mounted) and first.cancelled() and len(mounts.begun) == 1


async def test_a_mount_that_its_start_does_not_take_is_given_up(tmp_path: Path) -> None:
    mounts = SlowMounts(tmp_path, 1)
    start = asyncio.create_task(mounts.mounted(image(1), 60))
    while not mounts.begun:
        await asyncio.sleep(0)
    mounts.go_on.set()
    while not mounts.is_mounted(image(1).digest):
        await asyncio.sleep(0)
    start.cancel()  # it is there, and the start has not been woken yet
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not mounts.is_mounted(image(1).digest)
