"""A state dict as torch.save writes it (zip format), without torch: the weights that 411 loads.

The pickle in it is written opcode by opcode: it names functions of torch, which need not exist here.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.sebs_runner.made_inputs.resnet import CLASSES, ResNet, constant, weights

ARCHIVE = "archive"
SAVED_TIME = (1980, 1, 1, 0, 0, 0)
Tensor = tuple[str, tuple[int, ...], bytes]
"""Name, shape, float32 data."""


def write_state_dict(network: ResNet, path: Path) -> None:
    """Write random weights of a network, with torchvision's names."""
    pickle = [b"\x80\x02", _call(b"collections", b"OrderedDict", b")"), b"("]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for number, (name, shape, data) in enumerate(tensors(network)):
            archive.writestr(_entry(f"data/{number}"), data)
            pickle += [_text(name), _tensor(number, shape, len(data) // 4)]
        pickle.append(b"u.")
        archive.writestr(_entry("data.pkl"), b"".join(pickle))
        archive.writestr(_entry("version"), b"3\n")


def tensors(network: ResNet) -> Iterator[Tensor]:
    """Every parameter and running statistic, in the order of torchvision's state dict."""
    for convolution in network.convolutions():
        count = convolution.outputs * convolution.inputs * convolution.kernel**2
        yield f"{convolution.name}.weight", convolution.shape, weights(count, convolution.scale)
        channels = (convolution.outputs,)
        for part, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            yield f"{convolution.norm}.{part}", channels, constant(convolution.outputs, value)
    yield "fc.weight", (CLASSES, network.features), weights(CLASSES * network.features, network.features**-0.5)
    yield "fc.bias", (CLASSES,), constant(CLASSES, 0.0)


def _tensor(number: int, shape: tuple[int, ...], count: int) -> bytes:
    """A call of torch._utils._rebuild_tensor_v2 on a storage that is a file of the archive."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    storage = (
        b"(" + _text("storage") + b"ctorch\nFloatStorage\n" + _text(str(number)) + _text("cpu") + _number(count) + b"tQ"
    )
    hooks = _call(b"collections", b"OrderedDict", b")")
    arguments = storage + _number(0) + _numbers(shape) + _numbers(strides) + b"\x89" + hooks
    return _call(b"torch._utils", b"_rebuild_tensor_v2", b"(" + arguments + b"t")


def _call(module: bytes, name: bytes, arguments: bytes) -> bytes:
    return b"c" + module + b"\n" + name + b"\n" + arguments + b"R"


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _number(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)


def _numbers(numbers: tuple[int, ...] | list[int]) -> bytes:
    return b"(" + b"".join(map(_number, numbers)) + b"t"


def _entry(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(f"{ARCHIVE}/{name}", SAVED_TIME)
