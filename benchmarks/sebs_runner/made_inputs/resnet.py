"""The shape of a ResNet of bottlenecks (He et al. 2015), as torchvision names its parts, and random weights for it.

Pure. Weights are right in number, type and scale and mean nothing: a network of them runs at full cost and is always wrong.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

BLOCKS = (3, 4, 6, 3)
EXPANSION = 4
CLASSES = 1000
PERIOD = 65521
"""How many random numbers there are; they repeat. A prime, so that no two channels of a layer are alike."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution without bias and the batch normalization behind it."""

    name: str
    norm: str
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        return self.outputs, self.inputs, self.kernel, self.kernel

    @property
    def scale(self) -> float:
        """He's initialization: keeps the size of what passes."""
        return math.sqrt(2 / (self.inputs * self.kernel**2))


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Three convolutions with a way around them."""

    path: tuple[Convolution, Convolution, Convolution]
    shortcut: Convolution | None


@dataclass(frozen=True, slots=True)
class ResNet:
    """The whole network."""

    stem: Convolution
    blocks: tuple[Bottleneck, ...]
    features: int
    """Into the last, fully connected layer `fc`."""

    def convolutions(self) -> Iterator[Convolution]:
        """All, in the order of torchvision's state dict."""
        yield self.stem
        for block in self.blocks:
            yield from block.path
            if block.shortcut:
                yield block.shortcut


def resnet(width: int = 64) -> ResNet:
    """ResNet-50 at the width 64; narrower ones have the same layers with fewer channels."""
    inputs, blocks = width, []
    for layer, count in enumerate(BLOCKS):
        planes = width << layer
        for number in range(count):
            name, stride = f"layer{layer + 1}.{number}", 2 if layer and not number else 1
            outputs = planes * EXPANSION
            path = (
                Convolution(f"{name}.conv1", f"{name}.bn1", inputs, planes, 1),
                Convolution(f"{name}.conv2", f"{name}.bn2", planes, planes, 3, stride),
                Convolution(f"{name}.conv3", f"{name}.bn3", planes, outputs, 1),
            )
            down = f"{name}.downsample"
            shortcut = None if number else Convolution(f"{down}.0", f"{down}.1", inputs, outputs, 1, stride)
            blocks.append(Bottleneck(path, shortcut))
            inputs = outputs
    return ResNet(Convolution("conv1", "bn1", 3, width, 7, 2), tuple(blocks), inputs)


def weights(count: int, scale: float) -> bytes:
    """`count` float32 of this standard deviation, little endian."""
    scaled = array("f", [value * scale for value in _normal()]).tobytes()
    whole, rest = divmod(count, PERIOD)
    return scaled * whole + scaled[: rest * 4]


def constant(count: int, value: float) -> bytes:
    """`count` times the same float32."""
    return array("f", [value]).tobytes() * count


@cache
def _normal() -> tuple[float, ...]:
    random = Random(50)
    return tuple(random.gauss(0.0, 1.0) for _ in range(PERIOD))
