"""Which functions are forked from the Zygote of the standard library, and what that one may import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sockd.caches.zygotes.standard_library import CHEAP, KEY, MAX_SOURCE_BYTES, MODULES, is_needed_by


@pytest.mark.parametrize(
    ("source", "is_used"),
    [
        ("import asyncio", True),
        ("def f(event):\n    from urllib.request import urlopen", True),
        ("import xml.etree.ElementTree as E, json", True),
        ("from datetime import datetime", True),
        ("async def f(event): pass", True),
        ("def app(environ, start_response): return []", True),
        ("import mine\n@mine.checked\ndef f(event): pass", True),
        ("class C:\n    @property\n    def p(self): pass", False),
        ("def f(event): yield 1", False),
        ("import json, re\nfrom collections import deque", False),
        ("from . import logging", False),
        ("import multiprocessing, numpy", False),
        ("def f(event: return", False),
        ("x = 0\0", False),
        ("import ssl\n" + "#" * MAX_SOURCE_BYTES, False),
        ("-" * 200_000 + "1", False),
    ],
)
def test_a_function_that_imports_a_costly_module_is_found(tmp_path: Path, source: str, is_used: bool) -> None:
    (tmp_path / "f.py").write_text(source)
    assert is_needed_by(tmp_path / "f.py") is is_used


def test_a_file_that_is_not_there_imports_nothing(tmp_path: Path) -> None:
    assert not is_needed_by(tmp_path / "f.py")


def test_the_modules_exist_and_leave_neither_threads_nor_descriptors() -> None:
    code = (
        "import importlib, os, sys, threading\nbefore = os.listdir('/proc/self/fd')\n"
        f"for name in {MODULES!r}: importlib.import_module(name)\n"
        "assert threading.active_count() == 1 and os.listdir('/proc/self/fd') == before"
    )
    assert subprocess.run([sys.executable, "-S", "-c", code]).returncode == 0
    assert len(set(MODULES)) == len(MODULES) and set(MODULES) >= CHEAP
    assert KEY.rpartition("-")[0].count("-") == 0  # a distribution's key has two
