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


CHUNKS = """
import ctypes, json, mmap, struct, sys
sys.path.insert(0, ".")
from sockd_zygote import _native
MB = 1 << 20
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def mapping(size):  # between pages that nothing else is joined to
    begin = libc.mmap(None, ctypes.c_size_t(size + 8192), 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
    assert libc.mprotect(ctypes.c_void_p(begin + 4096), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE) == 0
    return begin + 4096
moved = []
for header in json.loads(sys.argv[1]):
    ctypes.memmove(mapping(40 * MB), struct.pack("=QQ", *header), 16)
    moved.append(_native.part_large(False) >> 20)
print(json.dumps(moved))
"""


def test_the_chunks_of_each_glibc_are_large_blocks_and_other_mappings_are_none() -> None:
    """From 2.43 on a chunk's size is without its header, and its first word says how much of the mapping is in front of it."""
    size = 40 << 20
    older, newer, other, in_front, on_huge_pages = (
        [0, size + 2],
        [0, size - 16 + 2],
        [0, size - 32 + 2],
        [16, size + 2],
        [1, size - 14],
    )
    headers = [older, newer, other, in_front, on_huge_pages]
    run = subprocess.run(
        [sys.executable, "-S", "-c", CHUNKS, json.dumps(headers)], capture_output=True, text=True, check=True
    )
    assert json.loads(run.stdout) == [40, 40, 0, 0, 0]
