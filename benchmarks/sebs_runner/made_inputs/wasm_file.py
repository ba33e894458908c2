"""A network as a WebAssembly module with its weights in it: the model that `imgrec-wasm` runs. Needs the package ziglang."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path

from benchmarks.sebs_runner.errors import NotPossible
from benchmarks.sebs_runner.made_inputs.onnx_file import SIDE
from benchmarks.sebs_runner.made_inputs.resnet import CLASSES, Convolution, ResNet, weights

SOURCE = Path(__file__).with_name("network.c")
OPTIONS = ("-target", "wasm32-freestanding", "-O3", "-ffast-math", "-msimd128", "-nostdlib", "-Wl,--no-entry")
THIRD = 0.2
"""By which the weights of a block's third convolution are smaller, as in `onnx_file`."""


def write_module(network: ResNet, path: Path, *, side: int = SIDE, size_bytes: int = 0) -> None:
    """Write a network with the weights of `onnx_file.write_model`. Exports: `image` and `scores`, which answer addresses, of
    (side, side, 3) and (1000,) floats in `memory`; `classify`, which answers the number of the largest score.

    Args: size_bytes: a smaller file is filled up to this, with a custom section. Raises: NotPossible."""
    with tempfile.TemporaryDirectory() as scratch:
        blob = Path(scratch) / "weights"
        with blob.open("wb") as file:
            file.writelines(_weights(network))
        words = {"WEIGHTS": f'"{blob}"', "SIZE": f'"{blob.stat().st_size}"'}
        numbers = {"WIDTH": network.stem.outputs, "SIDE": side}
        defined = [f"-D{name}={value}" for name, value in {**words, **numbers}.items()]
        command = [sys.executable, "-m", "ziglang", "cc", *OPTIONS, *defined, "-o", str(path), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPossible(f"the network cannot be compiled: {done.stderr.strip()}", fix="pip install ziglang")
    with path.open("ab") as file:
        file.write(_filling(size_bytes - path.stat().st_size))


def _weights(network: ResNet) -> Iterator[bytes]:
    thirds = {block.path[2].name for block in network.blocks}
    for convolution in network.convolutions():
        yield from _turned(convolution, THIRD if convolution.name in thirds else 1.0)
    yield weights(CLASSES * network.features, network.features**-0.5)


def _turned(convolution: Convolution, scale: float) -> Iterator[bytes]:
    """Outputs last, where a network's file has them first."""
    places = convolution.kernel**2
    values = array("f", weights(convolution.outputs * convolution.inputs * places, convolution.scale * scale))
    for place in range(places):
        for number in range(convolution.inputs):
            yield values[number * places + place :: convolution.inputs * places].tobytes()


def _filling(size: int) -> bytes:
    """A custom section without a name, of at least 7 bytes; nothing for less."""
    length = size - 6
    if length < 1:
        return b""
    head = bytes(length >> shift & 0x7F | (0x80 if shift < 28 else 0) for shift in range(0, 35, 7))
    return b"\0" + head + bytes(length)
