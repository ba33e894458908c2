"""Files that most programs of an image read while they start: parts of Python's standard library.

An interpreter reads about seventy small files of some thousand before it runs its program. By path they are in as many chunks;
side by side they are in a few. The names are the same for each image and worker, as the layout has to be.
"""

from __future__ import annotations

import re

PACKAGES = "collections concurrent email http importlib json logging re urllib"
MODULES = """
__future__ _strptime _weakrefset argparse base64 bisect calendar contextlib contextvars copy copyreg dataclasses datetime dis
enum fnmatch functools hashlib heapq hmac inspect ipaddress keyword linecache locale numbers opcode operator pathlib platform
queue quopri random reprlib selectors shutil signal socket ssl string struct subprocess tempfile textwrap threading token
tokenize traceback types typing uuid warnings weakref
"""
CODECS = "__init__ aliases ascii idna latin_1 utf_8"
EXTENSIONS = """
_bisect _contextvars _datetime _hashlib _heapq _json _opcode _posixsubprocess _queue _random _sha1 _sha2 _sha256 _sha512
_socket _ssl _struct _typing _uuid array binascii fcntl grp math select zlib
"""


def _either(names: str) -> str:
    return f"(?:{'|'.join(names.split())})"


_EARLY = re.compile(
    rf"(?:.*/)?lib(?:64)?/python3\.\d+/(?:"
    rf"__pycache__/{_either(MODULES)}\.[^/]*"
    rf"|{_either(PACKAGES)}/(?:[a-z_]+/)?__pycache__/[^/]*"
    rf"|encodings/__pycache__/{_either(CODECS)}\.[^/]*"
    rf"|lib-dynload/{_either(EXTENSIONS)}\.[^/]*)".encode()
)


def is_early(path: bytes) -> bool:
    """POLICY: whether a file is one of those, by its path in the image."""
    return _EARLY.fullmatch(path) is not None
