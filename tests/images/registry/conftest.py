"""Layers of tests as the tree that `apply_layers` makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from sockd.images.registry.limits import Limits
from sockd.images.registry.merge import Merged, apply_layers
from sockd.images.registry.reference import Reference
from sockd.images.registry.sources import open_source
from sockd.images.registry.unpacked import UnpackedLayers
from tests.support.images import oci_images

Merge = Callable[..., Merged]


class Images:
    """Images on disk, unpacked and merged; everything is closed at the end of the test."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self._stack = stack
        self._number = 0

    def unpacked(self, reference: str, limits: Limits | None = None) -> UnpackedLayers:
        limits = limits or Limits()
        source = open_source(Reference.parse(reference), str(self.path), limits=limits)
        self._stack.callback(source.close)
        return self._stack.enter_context(UnpackedLayers.fetch(source, source.resolve().layers, str(self.path), limits))

    def merged(self, layers: Sequence[bytes], limits: Limits | None = None) -> tuple[Merged, UnpackedLayers]:
        """Merge layers that are given as tar files."""
        self._number += 1
        layout = oci_images.layout(self.path / f"layout-{self._number}", layers)
        unpacked = self.unpacked(f"oci:{layout}", limits)
        return apply_layers(unpacked, limits or Limits()), unpacked


@pytest.fixture
def images(tmp_path: Path) -> Iterator[Images]:
    with ExitStack() as stack:
        yield Images(tmp_path, stack)
