"""Modules built from source for tests, each only once."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from sockd_initscripts.authoring import toolchain


@functools.cache
def build(source: Path) -> bytes:
    """The module of a source file; the test is skipped, saying why, where no toolchain for its language is found."""
    try:
        toolchain.find(toolchain.language_of(source))
    except toolchain.NoToolchain as error:
        pytest.skip(f"{error.message}; {error.fix}")
    with tempfile.TemporaryDirectory() as directory:
        return toolchain.build(source, Path(directory, "made.wasm")).path.read_bytes()


def build_text(text: str, language: str = "c") -> bytes:
    """The module of a source text."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, {"c": "script.c", "zig": "script.zig", "rust": "script.rs"}[language])
        source.write_text(text)
        return build(source)


def example(name: str, suffix: str = ".c") -> bytes:
    """The module of one of the examples."""
    return build(toolchain.EXAMPLES / name / f"{name}{suffix}")
