"""A network as an ONNX file, without the package onnx: the model that `imgrec` runs.

Batch normalization is folded into the convolutions, as exporters do for inference. The file is protobuf (onnx.proto, IR
version 8, opset 13); field numbers are those of its messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.sebs_runner.made_inputs.resnet import CLASSES, Bottleneck, Convolution, ResNet, constant, weights

FLOAT = 1
INTS, INT = 7, 2
"""onnx.AttributeProto.AttributeType."""
IR_VERSION, OPSET = 8, 13
SIDE = 224


def write_model(network: ResNet, path: Path, *, size_bytes: int = 0) -> None:
    """Write a network with random weights: (1, 3, 224, 224) floats in as `image`, (1, 1000) out as `scores`.

    Args: size_bytes: a smaller file is filled up to about this, with a comment."""
    graph = _Graph()
    value = graph.convolution(network.stem, "image", relu=True)
    value = graph.node("MaxPool", [value], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for block in network.blocks:
        value = graph.bottleneck(block, value)
    value = graph.node("Flatten", [graph.node("GlobalAveragePool", [value])], axis=1)
    matrix = graph.weights("fc.weight", (CLASSES, network.features), network.features**-0.5)
    graph.node("Gemm", [value, matrix, graph.zeros("fc.bias", CLASSES)], output="scores", transB=1)
    body = graph.encode([("image", (1, 3, SIDE, SIDE))], [("scores", (1, CLASSES))])
    length = sum(map(len, body))
    filling = _field(6, b" " * max(0, size_bytes - length - 64))
    start = _number(1, IR_VERSION) + _field(2, b"sockd") + filling + _head(7, length)
    with path.open("wb") as file:
        file.writelines((start, *body, _field(8, _number(2, OPSET))))


class _Graph:
    """A GraphProto that grows."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._initializers: list[bytes] = []

    def bottleneck(self, block: Bottleneck, value: str) -> str:
        around = self.convolution(block.shortcut, value, relu=False) if block.shortcut else value
        first, second, third = block.path
        inner = self.convolution(second, self.convolution(first, value, relu=True), relu=True)
        # Small, so that what passes sixteen blocks neither grows nor drowns the way around.
        return self.node("Relu", [self.node("Add", [self.convolution(third, inner, relu=False, scale=0.2), around])])

    def convolution(self, convolution: Convolution, value: str, *, relu: bool, scale: float = 1.0) -> str:
        inputs = [
            value,
            self.weights(f"{convolution.name}.weight", convolution.shape, convolution.scale * scale),
            self.zeros(f"{convolution.name}.bias", convolution.outputs),
        ]
        kernel, pad = convolution.kernel, convolution.kernel // 2
        output = self.node(
            "Conv", inputs, kernel_shape=[kernel, kernel], strides=[convolution.stride] * 2, pads=[pad] * 4
        )
        return self.node("Relu", [output]) if relu else output

    def weights(self, name: str, shape: Sequence[int], scale: float) -> str:
        count = 1
        for extent in shape:
            count *= extent
        return self._initializer(name, shape, weights(count, scale))

    def zeros(self, name: str, count: int) -> str:
        return self._initializer(name, (count,), constant(count, 0.0))

    def _initializer(self, name: str, shape: Sequence[int], data: bytes) -> str:
        extents = b"".join(_number(1, extent) for extent in shape)
        self._initializers.append(extents + _number(2, FLOAT) + _field(8, name.encode()) + _field(9, data))
        return name

    def node(self, kind: str, inputs: Iterable[str], *, output: str = "", **attributes: int | list[int]) -> str:
        """Add a NodeProto; the name of its output."""
        output = output or f"{kind}{len(self._nodes)}"
        parts = [_field(1, name.encode()) for name in inputs]
        parts += [_field(2, output.encode()), _field(4, kind.encode())]
        parts += [_field(5, _attribute(name, value)) for name, value in attributes.items()]
        self._nodes.append(b"".join(parts))
        return output

    def encode(
        self, inputs: Iterable[tuple[str, Sequence[int]]], outputs: Iterable[tuple[str, Sequence[int]]]
    ) -> list[bytes]:
        """Return the message in parts: joined, the 102 MB of ResNet-50 would be in memory twice."""
        parts = [_field(1, node) for node in self._nodes]
        parts.append(_field(2, b"resnet"))
        for tensor in self._initializers:
            parts += (_head(5, len(tensor)), tensor)
        parts += [_field(11, _value_info(name, shape)) for name, shape in inputs]
        parts += [_field(12, _value_info(name, shape)) for name, shape in outputs]
        return parts


def _attribute(name: str, value: int | list[int]) -> bytes:
    if isinstance(value, int):
        return _field(1, name.encode()) + _number(3, value) + _number(20, INT)
    return _field(1, name.encode()) + b"".join(_number(8, item) for item in value) + _number(20, INTS)


def _value_info(name: str, shape: Sequence[int]) -> bytes:
    extents = b"".join(_field(1, _number(1, extent)) for extent in shape)
    tensor = _number(1, FLOAT) + _field(2, extents)
    return _field(1, name.encode()) + _field(2, _field(1, tensor))


def _field(number: int, data: bytes) -> bytes:
    return _head(number, len(data)) + data


def _head(number: int, length: int) -> bytes:
    return _varint(number << 3 | 2) + _varint(length)


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
