"""A compiled module as a file: machine code, and behind it what is to be known without loading it.

The loader of ELF files does not look at the end. Pure, and without the runtime: the daemon reads the end of such files, too.
"""

from __future__ import annotations

import hashlib
import os
import struct

import msgspec

from initscripts.errors import BadModule

FORMAT = 2
"""Raised when this layout or our settings for the compiler change: files made with others are not loaded."""
_MAGIC = b"sockd-cwasm-%04d" % FORMAT
_FACTS = struct.Struct("<16sI?")
"""What it is, and `Facts`."""
_DIGEST_BYTES = 32
_END_BYTES = _FACTS.size + _DIGEST_BYTES


class Facts(msgspec.Struct, frozen=True):
    """What the compiler has seen of a module."""

    memory_pages: int
    """Its linear memory at the start, in pages of 64 KiB."""
    reaches_out: bool
    """Whether it imports anything that others notice: see abi.INWARD."""


def seal(code: bytes, facts: Facts) -> bytes:
    """The file's content."""
    told = _FACTS.pack(_MAGIC, facts.memory_pages, facts.reaches_out)
    return code + told + _digest(code, told)


def open_seal(content: bytes) -> Facts:
    """What is known of it; raises BadModule unless all of this is what `seal` made."""
    end = len(content) - _END_BYTES
    if end > 0:
        told = content[end : end + _FACTS.size]
        if content[end + _FACTS.size :] == _digest(memoryview(content)[:end], told):
            return _facts(told)
    raise _damaged()


def read_facts(fd: int) -> Facts:
    """The same of an open file that nobody else writes, without a look at the code. Raises BadModule, OSError."""
    end = os.fstat(fd).st_size - _END_BYTES
    return _facts(os.pread(fd, _FACTS.size, end) if end > 0 else b"")


def _facts(told: bytes) -> Facts:
    if len(told) == _FACTS.size:
        magic, memory_pages, reaches_out = _FACTS.unpack(told)
        if magic == _MAGIC:
            return Facts(memory_pages, reaches_out)
    raise _damaged()


def _damaged() -> BadModule:
    return BadModule("the compiled file is damaged, or not of this version's own compile")


def _digest(code: bytes | memoryview, told: bytes) -> bytes:
    digest = hashlib.sha256(told)
    digest.update(code)
    return digest.digest()
