"""The program with which an image's Python compiles sources of its image: `python -c SOURCE`, in a sandbox, as a program of the
Runtime API.

Each event names sources; the answer is as `CompiledBatch` says. It runs in any Python from 3.8 on, and imports nothing of ours.
A child compiles each batch, so that a source that ends the interpreter costs no other source its bytecode.
"""

import sys

if __name__ == "__main__" and sys.path[:1] == [""]:
    del sys.path[0]

import importlib.util
import json
import marshal
import os
import struct
import tempfile
import warnings
from http.client import HTTPConnection

API = "/2018-06-01/runtime/invocation"
MOST_ANSWER_BYTES = 5 << 20


def code_of(path: str) -> bytes:
    """As Python writes it to a .pyc; empty if the source cannot be compiled."""
    try:
        with open(path, "rb") as file:
            source = file.read()
        return marshal.dumps(compile(source, path, "exec", dont_inherit=True, optimize=0))
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError, OverflowError):
        return b""


def answer_of(codes: "list[bytes]") -> bytes:
    """The answer for one batch."""
    size = 0
    for number, code in enumerate(codes):
        size += len(code)
        if size > MOST_ANSWER_BYTES:
            size -= len(code)
            codes[number] = b""
    sizes = struct.pack("<%dI" % len(codes), *map(len, codes))  # noqa: UP031  as old as 3.8
    return importlib.util.MAGIC_NUMBER + sizes + b"".join(codes)


def in_child(paths: "list[str]") -> "list[bytes] | None":
    """The code of sources; None: compiling them has ended the child."""
    with tempfile.TemporaryFile() as file:
        pid = os.fork()  # noqa: TID251  SAFETY: a program of its own, with one thread; the child compiles and exits
        if not pid:
            status = 1
            try:
                for path in paths:
                    code = code_of(path)
                    file.write(struct.pack("<I", len(code)) + code)
                file.flush()
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        if status:
            return None
        file.seek(0)
        return [file.read(struct.unpack("<I", file.read(4))[0]) for _ in paths]


def compiled(paths: "list[str]") -> "list[bytes]":
    """Return the code of each source, empty for those that cannot be compiled."""
    codes = in_child(paths)
    if codes is None:
        codes = [(in_child([path]) or [b""])[0] for path in paths]
    return codes


def main() -> None:
    """Answer events until the sandbox ends."""
    warnings.simplefilter("ignore")
    api = os.environ["AWS_LAMBDA_RUNTIME_API"]
    while True:
        connection = HTTPConnection(api)
        connection.request("GET", f"{API}/next")
        response = connection.getresponse()
        event = json.loads(response.read())
        number = response.getheader("Lambda-Runtime-Aws-Request-Id")
        is_meant = sys.implementation.cache_tag == event["cache_tag"]
        answer = answer_of(compiled(event["paths"])) if is_meant else b""
        connection.request("POST", f"{API}/{number}/response", answer)
        connection.getresponse().read()
        connection.close()


if __name__ == "__main__":
    main()
