"""The entry module is run from its bytecode, as an import would leave it, or left to the import system."""

from __future__ import annotations

import importlib.util
import json
import marshal
import sys
from pathlib import Path

import pytest

from sockd_zygote.handlers import entry_module


def compile_unchecked(path: Path) -> None:
    """Write bytecode beside a source as a deploy does."""
    code = compile(path.read_text(), str(path), "exec", dont_inherit=True)
    compiled = Path(importlib.util.cache_from_source(str(path)))
    compiled.parent.mkdir(exist_ok=True)
    compiled.write_bytes(importlib.util.MAGIC_NUMBER + b"\1\0\0\0" + bytes(8) + marshal.dumps(code))


def test_a_module_loaded_from_its_bytecode_is_as_an_import_leaves_it(directory: Path) -> None:
    source = "import sys\nme = sys.modules[__name__]\ndef handler(event): return __name__\n"
    described = []
    for name, direct in (("by_import", False), ("by_file", True)):
        (directory / f"{name}.py").write_text(source)
        compile_unchecked(directory / f"{name}.py")
        if direct:
            entry_module.load_file(name, str(directory), f"{name}.py")
            assert name in sys.modules
        __import__(name)
        module = sys.modules[name]
        assert module.me is module
        spec = module.__spec__
        assert spec is not None
        facts = {key: str(value) for key, value in vars(module).items() if key not in ("__builtins__", "me", "handler")}
        facts |= {"spec": f"{spec.origin} {spec.cached} {spec.has_location} {type(spec.loader)} {spec.parent!r}"}
        described.append({key: value.replace(name, "NAME") for key, value in facts.items() if "object at" not in value})
    assert described[0] == described[1]


def test_odd_bytecode_is_left_to_the_import_system(directory: Path) -> None:
    for number, data in enumerate([b"", b"short", b"\0" * 16, importlib.util.MAGIC_NUMBER + bytes(12) + b"junk"]):
        path = directory / f"odd{number}.py"
        path.write_text("x = 1\n")
        compiled = Path(importlib.util.cache_from_source(str(path)))
        compiled.parent.mkdir(exist_ok=True)
        compiled.write_bytes(data)
        entry_module.load_file(path.stem, str(directory), path.name)
        assert path.stem not in sys.modules


def test_a_name_that_is_taken_is_left_alone(directory: Path) -> None:
    (directory / "json.py").write_text("raise AssertionError\n")
    compile_unchecked(directory / "json.py")
    entry_module.load_file("json", str(directory), "json.py")
    assert sys.modules["json"] is json


def test_a_module_whose_code_raises_is_forgotten(directory: Path) -> None:
    (directory / "raising.py").write_text("1/0\n")
    compile_unchecked(directory / "raising.py")
    with pytest.raises(ZeroDivisionError):
        entry_module.load_file("raising", str(directory), "raising.py")
    assert "raising" not in sys.modules
