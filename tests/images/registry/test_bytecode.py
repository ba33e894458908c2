"""Times of sources in images, and the bytecode that is of use with them."""

from __future__ import annotations

import stat

import pytest

from sockd.base.file_tree import FileTree, Inode
from sockd.images.registry.bytecode import HEADER, mend_times, source_of

TIME_S = 1_700_000_000


class Layer:
    """One layer's data."""

    def __init__(self) -> None:
        self.data = b""

    def file(self, content: bytes, mtime_s: int = TIME_S) -> Inode:
        self.data += content
        offset = len(self.data) - len(content)
        return Inode(stat.S_IFREG | 0o644, mtime_s=mtime_s, mtime_ns=5, size=len(content), layer=0, offset=offset)

    def read(self, layer: int, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]


def tree(layer: Layer, *, flags: int = 0, time_s: int = TIME_S, size: int = 5) -> FileTree:
    pyc = HEADER.pack(b"mag\n", flags, time_s, size) + b"code"
    return {"lib/m.py": layer.file(b"x = 1"), "lib/__pycache__/m.cpython-312.pyc": layer.file(pyc)}


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_time_that_was_rounded_is_what_the_bytecode_says(difference: int) -> None:
    layer = Layer()
    files = tree(layer, time_s=TIME_S + difference)
    assert mend_times(files, layer) == 1
    assert (files["lib/m.py"].mtime_s, files["lib/m.py"].mtime_ns) == (TIME_S + difference, 0)
    assert mend_times(files, layer) == 0, "the same layers give the same files"


@pytest.mark.parametrize(
    "changes", [{}, {"time_s": TIME_S + 2}, {"time_s": TIME_S + 1, "size": 6}, {"time_s": TIME_S + 1, "flags": 1}]
)
def test_other_times_stay(changes: dict[str, int]) -> None:
    layer = Layer()
    files = tree(layer, **changes)
    assert mend_times(files, layer) == 0
    assert (files["lib/m.py"].mtime_s, files["lib/m.py"].mtime_ns) == (TIME_S, 5)


def test_bytecode_without_a_source_or_a_header_is_left_alone() -> None:
    layer = Layer()
    files = tree(layer, time_s=TIME_S + 1)
    del files["lib/m.py"]
    files["lib/n.py"] = layer.file(b"y")
    files["lib/__pycache__/n.cpython-312.pyc"] = layer.file(b"short")
    files["lib/__pycache__/o.cpython-312.pyc"] = Inode(stat.S_IFLNK | 0o777, target="/etc/passwd")
    assert mend_times(files, layer) == 0


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("a/__pycache__/m.cpython-312.pyc", "a/m.py"),
        ("a/__pycache__/m.cpython-312.opt-1.pyc", "a/m.py"),
        ("__pycache__/m.cpython-312.pyc", "m.py"),
        ("a/m.pyc", ""),
    ],
)
def test_the_source_is_next_to_the_cache(path: str, source: str) -> None:
    assert source_of(path) == source
