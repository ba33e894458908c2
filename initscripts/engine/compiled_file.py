"""A compiled module as a file: machine code, and behind it what is to be known without loading it.

The loader of ELF files does not look at the end. Pure, and without the runtime.
"""

from __future__ import annotations

import hashlib
import struct

from sockd_initscripts.errors import BadModule

FORMAT = 3
"""Raised when this layout or our settings for the compiler change: files made with others are not loaded."""
_MAGIC = b"sockd-cwasm-%04d" % FORMAT
_FACTS = struct.Struct("<16sI")
"""What it is, and the module's linear memory at the start, in pages of 64 KiB."""
_DIGEST_BYTES = 32
_END_BYTES = _FACTS.size + _DIGEST_BYTES


def seal(code: bytes, memory_pages: int) -> bytes:
    """The file's content."""
    facts = _FACTS.pack(_MAGIC, memory_pages)
    return code + facts + _digest(code, facts)


def open_seal(content: bytes) -> int:
    """The module's memory at the start, in pages; raises BadModule unless all of this is what `seal` made."""
    end = len(content) - _END_BYTES
    if end > 0:
        facts = content[end : end + _FACTS.size]
        if content[end + _FACTS.size :] == _digest(memoryview(content)[:end], facts):
            magic, memory_pages = _FACTS.unpack(facts)
            if magic == _MAGIC:
                return int(memory_pages)
    raise BadModule("the compiled file is damaged, or not of this version's own compile")


def _digest(code: bytes | memoryview, facts: bytes) -> bytes:
    digest = hashlib.sha256(facts)
    digest.update(code)
    return digest.digest()
