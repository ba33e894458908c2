"""The compiler of functions: which modules and components it takes, and in which words it refuses others."""

from __future__ import annotations

import subprocess
import sys

import pytest
import wasmtime

from sockd_initscripts.engine.compile_function import compile_function
from sockd_initscripts.errors import BadModule
from tests.initscripts.guests import module
from tests.support.wasm_modules import COMMAND, COMMAND_COMPONENT, HANDLER_COMPONENT, READS_MESSAGE, handler_component

LIMIT = 1 << 20
HTTP_COMPONENT = """(component
  (component $inner) (instance $http (instantiate $inner)) (export "wasi:http/incoming-handler@0.2.0" (instance $http)))"""


@pytest.mark.parametrize("wasm", [COMMAND, READS_MESSAGE, COMMAND_COMPONENT, HANDLER_COMPONENT])
def test_guests_of_each_kind_are_compiled(wasm: bytes) -> None:
    assert compile_function(bytes(wasm), limit_bytes=LIMIT).startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("wasm", "words"),
    [
        (b"(module)", "not a WebAssembly binary"),
        (b"\0asm\1\0\0\0rubbish", "malformed"),
        (b"\0asm\x0d\0\1\0rubbish", "malformed"),
        (bytes(LIMIT + 1), "it has more than 1048576 bytes"),
        (module(""), "an initscript, which goes with a function"),
        (wasmtime.wat2wasm("(module)"), "no function () -> () is exported as '_start'"),
        (wasmtime.wat2wasm('(module (func (export "_start") (param i32)))'), "no function () -> () is exported"),
        (
            wasmtime.wat2wasm('(module (import "env" "puts" (func)) (func (export "_start")))'),
            "unknown import: `env::puts`",
        ),
        (
            wasmtime.wat2wasm('(module (import "wasi_snapshot_preview1" "fd_read" (func)) (func (export "_start")))'),
            "incompatible import type for `wasi_snapshot_preview1::fd_read`",
        ),
        (wasmtime.wat2wasm("(component)"), "the component exports neither 'handle: func(event: string)"),
        (wasmtime.wat2wasm('(component (import "my:own/thing" (instance)))'), "unknown import my:own/thing"),
        (wasmtime.wat2wasm(HTTP_COMPONENT), "a component for wasi:http"),
        (handler_component("string"), "'handle' is exported, but is not 'handle: func(event: string)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_serve_no_request_is_refused(wasm: bytes, words: str) -> None:
    with pytest.raises(BadModule) as refused:
        compile_function(bytes(wasm), limit_bytes=LIMIT)
    assert words in refused.value.reason


def test_the_compiler_is_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "sockd_initscripts.engine.compile_function"]
    made = subprocess.run(command, input=COMMAND, capture_output=True, timeout=30)
    assert (made.returncode, made.stderr) == (0, b"") and made.stdout
    refused = subprocess.run([*command, "100"], input=COMMAND, capture_output=True, timeout=30)
    assert (refused.returncode, refused.stdout, refused.stderr) == (3, b"", b"it has more than 100 bytes\n")
