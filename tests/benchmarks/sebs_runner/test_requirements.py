"""What a bench asks of the package index."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from benchmarks.sebs_runner import torch_source
from benchmarks.sebs_runner.benches import find
from benchmarks.sebs_runner.errors import NotPossible
from benchmarks.sebs_runner.requirements import BOTO3, by_name, requirements
from benchmarks.sebs_runner.suite import Suite
from benchmarks.sebs_runner.torch_source import TorchSource


@pytest.mark.parametrize(
    ("python", "wanted"),
    [
        ((3, 9), "pillow==9.0.0"),
        ((3, 11), "pillow>=9.0.0"),  # the file is for an older one, and its wheel may not be for this one
        ((3, 12), "pillow==10.3.0"),
        ((3, 13), "pillow>=10.3.0"),
    ],
)
def test_the_python_in_use_decides(suite: Suite, python: tuple[int, int], wanted: str) -> None:
    assert requirements(find("210"), suite, python) == [wanted, BOTO3]


def test_a_bench_without_files_and_storage_asks_for_nothing(suite: Suite) -> None:
    assert requirements(find("010"), suite, (3, 12)) == []


def test_our_own_bench_needs_no_suite() -> None:
    lines = requirements(find("imgrec"), None, (3, 13))
    assert any(line.startswith("onnxruntime>=") for line in lines)


def test_the_url_of_a_wheel_becomes_its_name_and_version() -> None:
    url = "https://download.pytorch.org/whl/cpu/torch-2.0.0%2Bcpu-cp311-cp311-linux_x86_64.whl"
    assert by_name(url) == "torch==2.0.0+cpu"
    assert by_name("numpy==1.24.0") == "numpy==1.24.0"


def test_torch_is_taken_from_where_it_is_asked_for(suite: Suite) -> None:
    pinned = ["torch==2.0.0+cpu", "torchvision==0.15.1"]
    assert TorchSource.INDEX.requirements(pinned) == pinned
    assert TorchSource.PYPI.requirements(pinned) == ["torch==2.0.0", "torchvision==0.15.1"]
    assert requirements(find("210"), suite, (3, 12), TorchSource.SYSTEM) == [BOTO3]


def test_what_debian_does_not_have_for_this_python_is_reported_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_source, "SYSTEM_PACKAGES", tmp_path)
    assert TorchSource.of("auto") is TorchSource.INDEX
    with pytest.raises(NotPossible, match=re.escape(str(tmp_path))) as raised:
        TorchSource.of("system")
    assert "apt install python3-torch" in raised.value.fix
    (tmp_path / "torch").mkdir()
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    (tmp_path / "torch" / f"_C.cpython-{version}-x86_64-linux-gnu.so").touch()
    assert TorchSource.of("auto") is TorchSource.of("system") is TorchSource.SYSTEM
