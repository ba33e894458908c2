"""`wasm`: warm requests of WebAssembly functions, each to a fresh instance, in turns with those of a Python no-op.

The command reads its event and answers with it, over WASI; the component does the same by `handle`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness.client import Client, request
from benchmarks.harness.functions import Function
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, in_turns, main
from benchmarks.harness.worker import Worker, running_worker

NOOP, COMMAND, COMPONENT = "Python no-op", "command", "component"
SETTINGS = 'runtime = "wasm"\n'
SOURCES = {
    COMMAND: """
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 64))
    (i32.store (i32.const 4) (i32.const 4096))
    (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (i32.store (i32.const 4) (i32.load (i32.const 8)))
    (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))
""",
    COMPONENT: """
(component
  (core module $main
    (memory (export "memory") 1)
    (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
    (func (export "handle") (param $event i32) (param $length i32) (result i32)
      (i32.store (i32.const 20) (local.get $event))
      (i32.store (i32.const 24) (local.get $length))
      (i32.const 16)))
  (core instance $main (instantiate $main))
  (func $handle (param "event" string) (result (result string (error string)))
    (canon lift (core func $main "handle") (memory (core memory $main "memory"))
      (realloc (core func $main "cabi_realloc"))))
  (export "handle" (func $handle)))
""",
}
"""In the text form."""


def measure(run: Run) -> Result:
    result = Result("wasm")
    with running_worker() as ours, tempfile.TemporaryDirectory() as scratch:
        ours.deploy(Function("noop").write(Path(scratch)), "noop")
        for name, source in SOURCES.items():
            ours.deploy(written(Path(scratch), name, source), name)
        cases = {NOOP: "noop", COMMAND: COMMAND, COMPONENT: COMPONENT}
        measure_warm(run, ours, cases, result)
    return result


def written(parent: Path, name: str, source: str) -> Path:
    """Write a function's directory; return it."""
    import wasmtime

    directory = parent / name
    directory.mkdir()
    (directory / "fn.wasm").write_bytes(wasmtime.wat2wasm(source))
    (directory / "sockd.toml").write_text(SETTINGS)
    return directory


def measure_warm(run: Run, ours: Worker, functions: dict[str, str], result: Result) -> None:
    with Client(ours.host, ours.port) as client:

        def call(function: str) -> Callable[[], float]:
            data = request(function)
            return lambda: client.exchange(data).ms

        cases = {name: call(function) for name, function in functions.items()}
        in_turns(cases, 50)
        samples = in_turns(cases, run.pick(3000, 600))
    for name, times in samples.items():
        result.add(name, "warm", "ms", times)
    p50 = {name: result.row(name, "warm").p50 for name in cases}
    result.aim("warm command, ms more than a Python no-op", p50[COMMAND] - p50[NOOP], "<= 0.3")
    result.aim("warm component, ms more than a Python no-op", p50[COMPONENT] - p50[NOOP], "<= 0.3")


if __name__ == "__main__":
    sys.exit(main("wasm", measure, "Warm WebAssembly functions, in turns with a Python no-op."))
