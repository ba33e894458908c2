"""What a module may import besides WASI: the messages of the function's initscript (`sockd_app_v1`).

    recv_msg    (id: i64, timeout_ms: i32) -> i64    wait for a message; its length, or -errno; a negative timeout: for ever
    msg_status  (id: i64) -> i32                     the status of the RPC that it is the reply to, or -errno
    msg_read    (id: i64, offset: i64, to: i32, length: i32) -> i32    copy a part of it; how much, or -errno
    send_msg    (id: i64, from: i32, length: i32) -> i32               to the script; 0, or -errno

Owns nothing: the link and its messages are those of the library (`storage_lib`), which is imported if there is a link. As in
other languages there is one until the first answer of a sandbox. Afterwards each of these returns -ENOTCONN, and the function
does its work itself.
"""

from __future__ import annotations

import errno
import sys

import wasmtime

from sockd_zygote.handlers import initscript_link, storage_finder

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

MODULE = "sockd_app_v1"
LIBRARY = "sockd_initscript"
I32, I64 = wasmtime.ValType.i32(), wasmtime.ValType.i64()


def define(linker: wasmtime.Linker) -> None:
    """Give a linker all of them."""
    functions: tuple[tuple[Any, list[wasmtime.ValType], wasmtime.ValType], ...] = (
        (recv_msg, [I64, I32], I64),
        (msg_status, [I64], I32),
        (msg_read, [I64, I64, I32, I32], I32),
        (send_msg, [I64, I32, I32], I32),
    )
    for function, parameters, result in functions:
        kind = wasmtime.FuncType(parameters, [result])
        linker.define_func(MODULE, function.__name__, kind, function, access_caller=True)


def recv_msg(caller: wasmtime.Caller, number: int, timeout_ms: int) -> int:
    found = message(number, None if timeout_ms < 0 else timeout_ms / 1000)
    return found if isinstance(found, int) else len(found.view)


def msg_status(caller: wasmtime.Caller, number: int) -> int:
    found = message(number, 0.0)
    return found if isinstance(found, int) else int(found.status)


def msg_read(caller: wasmtime.Caller, number: int, offset: int, to: int, length: int) -> int:
    found, memory = message(number, 0.0), memory_of(caller)
    if isinstance(found, int):
        return found
    if memory is None or min(offset, to, length) < 0 or to + length > memory.data_len(caller):
        return -errno.EFAULT
    part = found.view[offset : offset + length]
    memory.write(caller, bytearray(part), to)
    return len(part)


def send_msg(caller: wasmtime.Caller, number: int, source: int, length: int) -> int:
    linked, memory = link(), memory_of(caller)
    if linked is None:
        return -errno.ENOTCONN
    if memory is None or min(source, length) < 0 or source + length > memory.data_len(caller):
        return -errno.EFAULT
    try:
        linked.send_msg(number, bytes(memory.read(caller, source, source + length)))
    except OSError as error:
        return -(error.errno or errno.EIO)
    except Exception:  # WireError: it is too long
        return -errno.EMSGSIZE
    return 0


def message(number: int, timeout_s: float | None) -> Any:
    """Return a message of the script, the same one each time; or -errno: there is no link, or none will come in time."""
    linked = link()
    if linked is None:
        return -errno.ENOTCONN
    try:
        return linked.recv_msg(number & (1 << 64) - 1, timeout_s)
    except sys.modules[LIBRARY].NoMessage:
        return -errno.ENOMSG


def memory_of(caller: wasmtime.Caller) -> wasmtime.Memory | None:
    found = caller.get("memory")
    return found if isinstance(found, wasmtime.Memory) else None


def link() -> Any:
    """Return the link to the script; None: there is none, or not any more."""
    if initscript_link.offered is None:
        return None
    if LIBRARY not in sys.modules:
        storage_finder.StorageFinder(storage_finder.DIRECTORY, has_modules=False).install()
        __import__(LIBRARY)
    return sys.modules[LIBRARY].link()
