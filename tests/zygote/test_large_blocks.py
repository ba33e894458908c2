"""Large blocks of a template: the same bytes, in a memory file that a fork does not copy the page tables of."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

PROGRAM = """
import json, os, sys
sys.path.insert(0, ".")
from sockd_zygote import _native
MB = 1 << 20
def pages():  # of page tables, in kB
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmPTE")).split()[1])
def in_file():
    with open("/proc/self/maps") as maps:
        return sum("memfd:sockd-template" in line for line in maps)
block = bytearray(bytes(range(256)) * (64 * MB // 256))
zeros = bytearray(64 * MB)
small = bytearray(b"x" * MB)
if sys.argv[1:]:  # as on a host with transparent_hugepage = never
    import ctypes
    assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0  # PR_SET_THP_DISABLE
moved = _native.part_large(bool(sys.argv[1:]))
reported = {"moved": moved >> 20, "in_file": in_file(), "zeros": not any(zeros)}
reported["same"] = block == bytes(range(256)) * (64 * MB // 256)
reader, writer = os.pipe()
child = os.fork()
if not child:
    block[:4] = b"mine"
    grown = block + b""
    block += b"y" * (80 * MB)
    zeros += b"z" * (80 * MB)
    os.write(writer, json.dumps([bytes(block[:4]).decode(), bytes(block[-2:]).decode(), zeros[0], pages()]).encode())
    os._exit(0)
os.waitpid(child, 0)
reported["child"] = json.loads(os.read(reader, 1000))
reported["block"] = list(block[:4])
print(json.dumps(reported))
"""


def play(*arguments: str) -> Any:
    done = subprocess.run([sys.executable, "-S", "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_large_block_keeps_its_bytes_and_each_fork_writes_and_grows_its_own() -> None:
    reported = play()
    assert reported["moved"] >= 128 and reported["in_file"] >= 1
    assert reported["same"] and reported["zeros"]
    first, last, zero, _ = reported["child"]
    assert (first, last, zero) == ("mine", "yy", 0)
    assert reported["block"] == [0, 1, 2, 3]


def test_where_there_are_no_huge_pages_large_blocks_are_moved() -> None:
    reported = play("never")
    assert reported["moved"] >= 128 and reported["same"] and reported["zeros"]
    assert reported["child"][:3] == ["mine", "yy", 0]
