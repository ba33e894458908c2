"""What a directory offers to imports, by file names and metadata alone: compared with what the import system finds there."""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from sockd.starts.packages import provided_names
from sockd.starts.packages.provided_names import Provided, module_name, provided_by


def write(directory: Path, *files: str, **contents: str) -> Provided:
    for name in files:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(contents.get(name, ""))
    return provided_by(directory)


FILES = (
    "single.py",
    "only_bytecode.pyc",
    "fast.cpython-311-x86_64-linux-gnu.so",
    "stable.abi3.so",
    "package/__init__.py",
    "package/inner.py",
    "space/part.py",
    "space/deeper/part.py",
    "space/regular/__init__.py",
    "space/regular/hidden.py",
    "data/table.csv",
    "bin/tool",
    "not-a-name/x.py",
    "__pycache__/single.cpython-311.pyc",
    "read.me.py",
)


def test_names_are_those_that_the_import_system_finds(tmp_path: Path) -> None:
    offer = write(tmp_path, *FILES)
    modules = {"single", "only_bytecode", "fast", "stable", "package"}
    assert offer.modules == modules | {"space.part", "space.regular", "space.deeper.part"}
    assert offer.namespaces == {"space", "space.deeper", "data", "bin"}
    for name in ("single", "only_bytecode", "stable", "package", "space", "data", "bin", "absent", "part", "read"):
        assert (PathFinder.find_spec(name, [str(tmp_path)]) is not None) == offer.offers(name), name
    for name in ("part", "regular", "absent"):
        found = PathFinder.find_spec(f"space.{name}", [str(tmp_path / "space")])
        assert (found is not None) == offer.offers(f"space.{name}"), name
    assert offer.has_bin and not offer.has_pth


METADATA = """Metadata-Version: 2.1
Name: My.Package
Version: 1.0
Requires-Dist: numpy (>=1.20)
Requires-Dist: Some_Thing[extra1]>=2 ; python_version < "4"
Requires-Dist: optional ; extra == "all"
Requires-Dist: ???

Requires-Dist: of-the-description
"""


def test_metadata_entry_points_requirements_and_pth_files(tmp_path: Path) -> None:
    info = tmp_path / "My.Package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text("[console_scripts]\nx = m:f\n[my.plugins]\nPlug = a.b:c [all]\n")
    (tmp_path / "vendored.egg-info").mkdir()
    (tmp_path / "x.pth").write_text("")
    offer = provided_by(tmp_path)
    assert offer.metadata == {"my-package", "vendored"}
    assert offer.groups == {"console_scripts", "my.plugins"}
    assert offer.requires == {"numpy", "some-thing"}
    assert offer.has_pth


@pytest.mark.parametrize("text", ["", "no section", "[a\n", "[a]\n[a]\n", "\0\xff"])
def test_entry_points_that_are_none_do_no_harm(tmp_path: Path, text: str) -> None:
    file = tmp_path / "entry_points.txt"
    file.write_text(text)
    provided_names.entry_point_groups(file)


def test_a_directory_with_too_many_entries_offers_every_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provided_names, "MAX_ENTRIES", 5)
    assert not write(tmp_path, *(f"m{n}.py" for n in range(5))).is_partial
    offer = write(tmp_path, "m6.py")
    assert offer.is_partial and offer.offers("anything")


def test_module_names() -> None:
    assert module_name("a.py") == module_name("a.abi3.so") == module_name("a.so") == "a"
    assert module_name("a.b.py") is None and module_name("a.txt") is None and module_name("1.py") is None
