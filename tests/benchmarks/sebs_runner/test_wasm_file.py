"""The network of `imgrec-wasm`, compiled, against the same network in plain Python."""

from __future__ import annotations

import importlib.util
from array import array
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.sebs_runner.made_inputs.resnet import CLASSES, Bottleneck, Convolution, ResNet, resnet, weights
from benchmarks.sebs_runner.made_inputs.wasm_file import THIRD, write_module

SIDE, WIDTH = 32, 2
FILLED_BYTES = 400_000
Values = list[list[list[float]]]
"""By channel, row and column."""


def convolved(values: Values, convolution: Convolution, scale: float = 1.0) -> Values:
    side, kernel, inputs = len(values[0]), convolution.kernel, convolution.inputs
    count = convolution.outputs * inputs * kernel**2
    matrix = array("f", weights(count, convolution.scale * scale))
    places = range(0, side, convolution.stride)

    def at(output: int, row: int, column: int) -> float:
        total = 0.0
        for number in range(count // convolution.outputs):
            source, place = divmod(number, kernel**2)
            y, x = row + place // kernel - kernel // 2, column + place % kernel - kernel // 2
            if 0 <= y < side and 0 <= x < side:
                total += values[source][y][x] * matrix[output * inputs * kernel**2 + number]
        return total

    return [[[at(output, y, x) for x in places] for y in places] for output in range(convolution.outputs)]


def rectified(values: Values, others: Values | None = None) -> Values:
    others = others or [[[0.0] * len(row) for row in channel] for channel in values]
    pairs = [[zip(*rows, strict=True) for rows in zip(*both, strict=True)] for both in zip(values, others, strict=True)]
    return [[[max(0.0, here + there) for here, there in row] for row in channel] for channel in pairs]


def pooled(values: Values) -> Values:
    side = range(len(values[0]))

    def most(channel: list[list[float]], row: int, column: int) -> float:
        rows, columns = ([at for at in range(place - 1, place + 2) if at in side] for place in (row, column))
        return max(channel[y][x] for y in rows for x in columns)

    return [[[most(channel, y, x) for x in side[::2]] for y in side[::2]] for channel in values]


def passed(values: Values, block: Bottleneck) -> Values:
    first, second, third = block.path
    inner = rectified(convolved(rectified(convolved(values, first)), second))
    around = convolved(values, block.shortcut) if block.shortcut else values
    return rectified(convolved(inner, third, THIRD), around)


def scores(network: ResNet, values: Values) -> list[float]:
    values = pooled(rectified(convolved(values, network.stem)))
    for block in network.blocks:
        values = passed(values, block)
    means = [sum(map(sum, channel)) / len(channel) ** 2 for channel in values]
    matrix = array("f", weights(CLASSES * network.features, network.features**-0.5))
    rows = [matrix[start : start + network.features] for start in range(0, len(matrix), network.features)]
    return [sum(mean * weight for mean, weight in zip(means, row, strict=True)) for row in rows]


def test_a_compiled_network_has_the_scores_of_the_same_network_in_python(tmp_path: Path) -> None:
    if importlib.util.find_spec("wasmtime") is None or importlib.util.find_spec("ziglang") is None:
        pytest.skip("the extra `initscripts` is not installed")
    import wasmtime

    path, random = tmp_path / "network.wasm", Random(411)
    write_module(resnet(WIDTH), path, side=SIDE, size_bytes=FILLED_BYTES)
    assert path.stat().st_size == FILLED_BYTES
    picture: Values = [[[random.gauss(0.0, 1.0) for _ in range(SIDE)] for _ in range(SIDE)] for _ in range(3)]
    store = wasmtime.Store(wasmtime.Engine())
    exports: Any = wasmtime.Instance(store, wasmtime.Module(store.engine, path.read_bytes()), []).exports(store)
    pixels = array("f", [picture[colour][y][x] for y in range(SIDE) for x in range(SIDE) for colour in range(3)])
    exports["memory"].write(store, pixels.tobytes(), exports["image"](store))
    index = exports["classify"](store)
    start = exports["scores"](store)
    found = array("f", bytes(exports["memory"].read(store, start, start + 4 * CLASSES)))
    expected = scores(resnet(WIDTH), picture)
    assert found.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert index == max(range(CLASSES), key=expected.__getitem__)
