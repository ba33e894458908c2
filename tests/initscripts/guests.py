"""Guests for tests: modules in WebAssembly's text form around a body of calls, and what they noted.

    module('(call $note (call $connect @address))', address="http://…")

`@name` is a text's pointer and length, two operands. `$note` keeps an i32 result, and `$send_notes` sends all of them to
the app as the message NOTES; `module` ends the body with it. Locals: $a, $b i32, $x i64. Replies can go to OUT.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

import wasmtime

from sockd_initscripts.engine import abi
from sockd_initscripts.limits import Budget

NOTES = 99
OUT = 1024
_TEXTS = 4096
_NOTES_AT = 32 * 1024
_KINDS = {"i": "i32", "I": "i64"}


def module(body: str, *, memory: str = "1", extra: str = "", notes: bool = True, **texts: str | bytes) -> bytes:
    """A module whose `boot` is this."""
    data, offset = "", _TEXTS
    for name, text in texts.items():
        content = text.encode() if isinstance(text, str) else text
        data += f'(data (i32.const {offset}) "{"".join(f"{chr(92)}{byte:02x}" for byte in content)}")\n'
        body = re.sub(rf"@{name}\b", f"(i32.const {offset}) (i32.const {len(content)})", body)
        offset += len(content)
    assert offset < _NOTES_AT
    return wasm(f"""(module
        {imports(abi.FUNCTIONS)}
        (memory (export "memory") {memory})
        (global $noted (mut i32) (i32.const 0))
        {data}
        (func $note (param i32)
            (i32.store (i32.add (i32.const {_NOTES_AT}) (global.get $noted)) (local.get 0))
            (global.set $noted (i32.add (global.get $noted) (i32.const 4))))
        (func $send_notes
            (drop (call $send_bytes (i64.const {NOTES}) (i32.const {_NOTES_AT}) (global.get $noted))))
        {extra}
        (func (export "boot") (local $a i32) (local $b i32) (local $x i64)
            {body}
            {"(call $send_notes)" if notes else ""}))""")


def module_of(names: Iterable[str], body: str = "") -> bytes:
    """A module that imports these functions and no more."""
    return wasm(f"""(module {imports(names)} (memory (export "memory") 1) (func (export "boot") {body}))""")


def imports(names: Iterable[str]) -> str:
    """Functions of the ABI, by their names."""
    lines = []
    for name in names:
        parameters, results = abi.FUNCTIONS[name]
        kinds = " ".join(f"(param {_KINDS[kind]})" for kind in parameters)
        result = "".join(f"(result {_KINDS[kind]})" for kind in results)
        lines.append(f'(import "{abi.IMPORT_MODULE}" "{name}" (func ${name} {kinds} {result}))')
    return "\n".join(lines)


def wasm(text: str) -> bytes:
    """The binary form."""
    return bytes(wasmtime.wat2wasm(text))


def notes_in(content: bytes) -> list[int]:
    """What a guest noted."""
    return [value for (value,) in struct.iter_unpack("<i", content)]


LOOP = "(loop $again (br $again))"
"""Never ends."""
TIRELESS = Budget(cpu_ms=3_600_000)
"""Does not end one that never ends."""
GET = """
    (local.set $a (call $connect @address))
    (call $note (call $send_rpc (local.get $a) (i64.const 7) @method (i32.const 0) (i32.const 0)))
    (call $note (call $recv_rpc_reply (local.get $a) (i64.const 7) (i32.const 1024)))
    (call $note (i32.load (i32.const 1028)))
    (call $note (call $send_msg (i64.const 7) (i32.load (i32.const 1024)) (i64.const 0) (i64.load (i32.const 1032))))
"""
"""One RPC, whose reply goes to the app as it is; needs @address and @method."""
