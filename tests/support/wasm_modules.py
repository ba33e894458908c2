"""WebAssembly functions for tests, written as text: they need no toolchain. Each acts as the second byte of its event says."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import wasmtime

from tests.support.servers.package_index import wheel

COMMAND = wasmtime.wat2wasm("""
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 32) "a line of the log\\n")
  (global $calls (mut i32) (i32.const 48))
  (func $write (param $fd i32) (param $from i32) (param $length i32)
    (i32.store (i32.const 0) (local.get $from))
    (i32.store (i32.const 4) (local.get $length))
    (drop (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8))))
  (func $spin (loop $again (br $again)))
  (func (export "_start") (local $length i32) (local $what i32)
    (loop $more
      (i32.store (i32.const 0) (i32.add (i32.const 1024) (local.get $length)))
      (i32.store (i32.const 4) (i32.const 32768))
      (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
      (local.set $length (i32.add (local.get $length) (i32.load (i32.const 8))))
      (br_if $more (i32.load (i32.const 8))))
    (local.set $what (i32.load8_u (i32.const 1025)))
    (if (i32.eq (local.get $what) (i32.const 76)) (then (call $spin)))  ;; L: loops
    (if (i32.eq (local.get $what) (i32.const 84)) (then (unreachable)))  ;; T: traps
    (if (i32.eq (local.get $what) (i32.const 88)) (then (call $proc_exit (i32.const 3))))               ;; X: exits
    (if (i32.eq (local.get $what) (i32.const 69))
      (then (call $write (i32.const 2) (i32.const 32) (i32.const 18))))  ;; E: logs
    (if (i32.eq (local.get $what) (i32.const 67)) (then  ;; C: counts
      (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
      (i32.store8 (i32.const 1024) (global.get $calls))
      (local.set $length (i32.const 1))))
    (if (i32.eq (local.get $what) (i32.const 77)) (then  ;; M: takes memory, MB by MB
      (local.set $length (i32.const 0))
      (loop $grow
        (local.set $length (i32.add (local.get $length) (i32.const 1)))
        (local.set $what (memory.grow (i32.const 16)))
        (if (i32.ne (local.get $what) (i32.const -1)) (then
          (memory.fill (i32.shl (local.get $what) (i32.const 16)) (i32.const 1) (i32.const 1048576))
          (br $grow))))
      (i32.store8 (i32.const 1024) (i32.add (i32.const 48) (i32.div_u (local.get $length) (i32.const 10))))
      (i32.store8 (i32.const 1025) (i32.add (i32.const 48) (i32.rem_u (local.get $length) (i32.const 10))))
      (local.set $length (i32.const 2))))
    (call $write (i32.const 1) (i32.const 1024) (local.get $length))
    (if (i32.eq (local.get $what) (i32.const 66))  ;; B: answers without end
      (then (loop $on (call $write (i32.const 1) (i32.const 0) (i32.const 65536)) (br $on))))))
""")
"""A WASI p1 command, which otherwise answers with its event."""

READS_MESSAGE = wasmtime.wat2wasm("""
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "sockd_app_v1" "recv_msg" (func $recv_msg (param i64 i32) (result i64)))
  (import "sockd_app_v1" "msg_status" (func $msg_status (param i64) (result i32)))
  (import "sockd_app_v1" "msg_read" (func $msg_read (param i64 i64 i32 i32) (result i32)))
  (import "sockd_app_v1" "send_msg" (func $send_msg (param i64 i32 i32) (result i32)))
  (memory (export "memory") 4)
  (func (export "_start") (local $length i32)
    (i32.store16 (i32.const 16) (i32.const 0x2d22))  ;; "-
    (local.set $length (i32.wrap_i64 (call $recv_msg (i64.const 0) (i32.const 5000))))
    (if (i32.gt_s (local.get $length) (i32.const 0)) (then
      (if (i32.ne (call $msg_status (i64.const 0)) (i32.const 200)) (then (unreachable)))
      (if (i32.ge_s (call $msg_read (i64.const 0) (i64.const 0) (i32.const 262140) (i32.const 8)) (i32.const 0))
        (then (unreachable)))  ;; it would end behind the memory
      (if (i32.ge_s (call $send_msg (i64.const 1) (i32.const 0) (i32.const 65536)) (i32.const 0))
        (then (unreachable)))  ;; it is too long
      (drop (call $msg_read (i64.const 0) (i64.const 0) (i32.const 17) (i32.const 5))))
      (else (i32.store (i32.const 18) (i32.const 0x2d2d2d2d))))
    (i32.store8 (i32.const 22) (i32.const 34))
    (i32.store (i32.const 0) (i32.const 16))
    (i32.store (i32.const 4) (i32.const 7))
    (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))
""")
"""A WASI p1 command that answers with the first five bytes of its initscript's message 0, or with dashes."""

COMMAND_COMPONENT = wasmtime.wat2wasm("""
(component
  (import "wasi:io/error@0.2.0" (instance $error (export "error" (type (sub resource)))))
  (alias export $error "error" (type $error-type))
  (import "wasi:io/streams@0.2.0" (instance $streams
    (export "input-stream" (type $in (sub resource)))
    (export "output-stream" (type $out (sub resource)))
    (alias outer 1 $error-type (type $outer-error))
    (export "error" (type $e (eq $outer-error)))
    (type $failure (variant (case "last-operation-failed" (own $e)) (case "closed")))
    (export "stream-error" (type $stream-error (eq $failure)))
    (export "[method]input-stream.blocking-read" (func
      (param "self" (borrow $in)) (param "len" u64) (result (result (list u8) (error $stream-error)))))
    (export "[method]output-stream.blocking-write-and-flush" (func
      (param "self" (borrow $out)) (param "contents" (list u8)) (result (result (error $stream-error)))))))
  (alias export $streams "input-stream" (type $in))
  (alias export $streams "output-stream" (type $out))
  (import "wasi:cli/stdin@0.2.0" (instance $stdin
    (alias outer 1 $in (type $outer-in))
    (export "input-stream" (type $i (eq $outer-in)))
    (export "get-stdin" (func (result (own $i))))))
  (import "wasi:cli/stdout@0.2.0" (instance $stdout
    (alias outer 1 $out (type $outer-out))
    (export "output-stream" (type $o (eq $outer-out)))
    (export "get-stdout" (func (result (own $o))))))
  (core module $memory
    (memory (export "memory") 2)
    (global $free (mut i32) (i32.const 1024))
    (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
      (global.get $free)
      (global.set $free (i32.add (global.get $free) (local.get 3)))))
  (core instance $libc (instantiate $memory))
  (core func $get-stdin (canon lower (func $stdin "get-stdin")))
  (core func $get-stdout (canon lower (func $stdout "get-stdout")))
  (core func $read (canon lower (func $streams "[method]input-stream.blocking-read")
    (memory (core memory $libc "memory")) (realloc (core func $libc "cabi_realloc"))))
  (core func $write (canon lower (func $streams "[method]output-stream.blocking-write-and-flush")
    (memory (core memory $libc "memory"))))
  (core module $main
    (import "host" "get-stdin" (func $get-stdin (result i32)))
    (import "host" "get-stdout" (func $get-stdout (result i32)))
    (import "host" "read" (func $read (param i32 i64 i32)))
    (import "host" "write" (func $write (param i32 i32 i32 i32)))
    (import "libc" "memory" (memory 2))
    (func (export "run") (result i32)
      (call $read (call $get-stdin) (i64.const 4096) (i32.const 0))
      (if (i32.eq (i32.load8_u (i32.add (i32.load (i32.const 4)) (i32.const 1))) (i32.const 88))
        (then (return (i32.const 1))))  ;; X: fails
      (call $write (call $get-stdout) (i32.load (i32.const 4)) (i32.load (i32.const 8)) (i32.const 32))
      (i32.const 0)))
  (core instance $main (instantiate $main
    (with "host" (instance
      (export "get-stdin" (func $get-stdin)) (export "get-stdout" (func $get-stdout))
      (export "read" (func $read)) (export "write" (func $write))))
    (with "libc" (instance $libc))))
  (func $run (result (result)) (canon lift (core func $main "run")))
  (instance $cli (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $cli)))
""")
"""A WASI p2 command, which answers with its event."""


def handler_component(result: str = "(result string (error string))") -> bytes:
    """Return a component that exports `handle` and answers with its event. Args: result: its type."""
    return bytes(
        wasmtime.wat2wasm(f"""
(component
  (core module $main
    (memory (export "memory") 1)
    (global $free (mut i32) (i32.const 1024))
    (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
      (global.get $free)
      (global.set $free (i32.add (global.get $free) (local.get 3))))
    (func $inner (unreachable))
    (func (export "handle") (param $event i32) (param $length i32) (result i32) (local $what i32)
      (local.set $what (i32.load8_u (i32.add (local.get $event) (i32.const 1))))
      (if (i32.eq (local.get $what) (i32.const 76)) (then (loop $again (br $again))))                   ;; L: loops
      (if (i32.eq (local.get $what) (i32.const 84)) (then (call $inner)))  ;; T: traps
      (i32.store8 (i32.const 16) (i32.eq (local.get $what) (i32.const 88)))  ;; X: an error
      (i32.store (i32.const 20) (local.get $event))
      (i32.store (i32.const 24) (local.get $length))
      (i32.const 16)))
  (core instance $main (instantiate $main))
  (func $handle (param "event" string) (result {result})
    (canon lift (core func $main "handle") (memory (core memory $main "memory")) (realloc (core func $main "cabi_realloc"))))
  (export "handle" (func $handle)))
""")
    )


HANDLER_COMPONENT = handler_component()


def runtime_wheel() -> tuple[str, bytes]:
    """Return the wheel of the installed wasmtime, for the index of a test's worker."""
    found = importlib.util.find_spec("wasmtime")
    assert found is not None and found.origin is not None
    root = Path(found.origin).parent
    files = {
        str(Path("wasmtime") / path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    return wheel("wasmtime", importlib.metadata.version("wasmtime"), files, level=0)
