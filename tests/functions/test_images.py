"""The images of a worker as its doors show them."""

from __future__ import annotations

from typing import Any

import pytest

from sockd.functions.images import Images
from sockd.image_store.image_record import ImageRecord
from sockd.image_store.image_store import ImageStore
from sockd.oci.image import ImageConfig
from sockd.plain.errors import StoreUnavailable

pytestmark = pytest.mark.anyio


class Registry:
    """Without functions."""

    def images(self) -> set[str]:
        return set()


class SilentStore:
    """Of garbage: the chunk store has stopped answering."""

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


async def test_a_failure_before_any_removal_is_told_as_it_is() -> None:
    with pytest.raises(StoreUnavailable, match=r"answers 503$"):
        await Images(Store(2, 0), Registry(), SilentStore()).collect()  # type: ignore[arg-type]
