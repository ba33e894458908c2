"""What imports leave, looked for while a thread of a C library goes on opening and closing files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAM = f"""
import os, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from sockd_zygote.forks import kept
left = kept.Kept()
reader, writer = os.pipe()
listed = kept.open_numbers
kept.keep_tmp = lambda *_, **__: []  # where other tests write meanwhile
kept.open_numbers = lambda: (listed(), os.close(reader))[0]
print(left.find())
"""


def test_a_descriptor_that_is_closed_after_it_was_listed_is_not_left() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.count("a pipe") == 1, "its other end is"
