"""Stand-ins have the size and the form of what they stand for, and are the same each time."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

import demo
from benchmarks.sebs_runner.made_inputs import onnx_file, stand_ins, torch_file
from benchmarks.sebs_runner.made_inputs.jpeg import jpeg, jpeg_size
from benchmarks.sebs_runner.made_inputs.resnet import resnet

PICTURE = Path(demo.__file__).with_name("picture.jpg")


@pytest.mark.parametrize(("width", "height", "size"), [(64, 48, 5000), (512, 384, 61_000), (512, 384, 300_000)])
def test_a_jpeg_has_exactly_the_size_that_was_asked_for(width: int, height: int, size: int) -> None:
    picture = jpeg(width, height, size, seed=1)
    assert len(picture) == size
    assert jpeg_size(picture) == (width, height)
    assert picture == jpeg(width, height, size, seed=1) != jpeg(width, height, size, seed=2)


def test_the_size_of_a_jpeg_is_read_from_its_header() -> None:
    assert jpeg_size(PICTURE.read_bytes()) == (960, 640)


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"\xff\xd8", b"\xff\xd8" + bytes(100)])
def test_what_is_not_a_jpeg_has_no_size(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a JPEG"):
        jpeg_size(data)


def test_a_jpeg_is_mostly_picture_and_not_filling() -> None:
    picture = jpeg(512, 384, 61_000, seed=1)
    assert len(picture[picture.index(b"\xff\xda") :]) > 50_000


def test_the_compression_data_is_39_files_of_10_mb(tmp_path: Path) -> None:
    stand_ins.compression(tmp_path, tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 39
    assert abs(sum(path.stat().st_size for path in files) - 10_063_841) < 50_000


def test_the_dna_is_as_long_as_the_bacterium_s(tmp_path: Path) -> None:
    stand_ins.dna(tmp_path, tmp_path)
    data = (tmp_path / "bacillus_subtilis.fasta").read_bytes()
    header, _, bases = data.partition(b"\n")
    assert header.startswith(b">")
    assert set(bases) == set(b"ACGT\n") and len(bases.replace(b"\n", b"")) == 4_146_839


def test_resnet_50_has_the_shape_that_torchvision_gives_it() -> None:
    tensors = {name: (shape, len(data)) for name, shape, data in torch_file.tensors(resnet(8))}
    assert len(tensors) == 267  # 53 convolutions with five tensors each, and the last layer's two
    assert tensors["layer4.2.conv2.weight"] == ((64, 64, 3, 3), 64 * 64 * 9 * 4)
    assert "layer1.0.downsample.1.running_var" in tensors
    full = resnet()
    count = sum(c.outputs * c.inputs * c.kernel**2 + 2 * c.outputs for c in full.convolutions())
    assert count + full.features * 1000 + 1000 == 25_557_032


def test_the_weights_unpickle_to_what_torch_would_be_given(tmp_path: Path) -> None:
    torch_file.write_state_dict(resnet(8), tmp_path / "model.pth")
    with zipfile.ZipFile(tmp_path / "model.pth") as archive:
        state = Unpickler(io.BytesIO(archive.read("archive/data.pkl"))).load()
        shape, strides, storage = state["layer1.0.conv2.weight"]
        assert (shape, strides) == ((8, 8, 3, 3), (72, 9, 3, 1))
        kind, _, number, device, count = storage
        assert (kind, device, count) == ("storage", "cpu", 8 * 8 * 9)
        assert archive.getinfo(f"archive/data/{number}").file_size == count * 4
    assert list(state)[:2] == ["conv1.weight", "bn1.weight"] and list(state)[-1] == "fc.bias"


class Unpickler(pickle.Unpickler):
    """With stand-ins for torch."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils":
            return lambda storage, offset, shape, strides, grad, hooks: (shape, strides, storage)
        return float if module == "torch" else super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        return pid


def test_a_model_can_be_filled_up_to_a_size(tmp_path: Path) -> None:
    onnx_file.write_model(resnet(8), tmp_path / "small.onnx")
    size = (tmp_path / "small.onnx").stat().st_size
    onnx_file.write_model(resnet(8), tmp_path / "filled.onnx", size_bytes=size + 100_000)
    assert abs((tmp_path / "filled.onnx").stat().st_size - size - 100_000) < 100
