"""Small projects of functions that are WebAssembly, for `sockd init`: each has a Makefile that makes fn.wasm."""

from __future__ import annotations

C = """/* A WASI command: the event on standard input, the answer on standard output, standard error is the log. */
#include <stdio.h>

int main(void) {
    static char event[1 << 20];
    size_t length = fread(event, 1, sizeof event, stdin);
    fprintf(stderr, "%zu bytes came\\n", length);
    printf("{\\"event\\": %.*s}", (int)length, event);
    return 0;
}
"""
C_MAKEFILE = """# pip install ziglang
fn.wasm: main.c
\tpython3 -m ziglang cc -target wasm32-wasi -Os -s -o $@ $<
"""
RUST = """//! A WASI command: the event on standard input, the answer on standard output, standard error is the log.
use std::io::Read;

fn main() -> std::io::Result<()> {
    let mut event = String::new();
    std::io::stdin().read_to_string(&mut event)?;
    eprintln!("{} bytes came", event.len());
    print!("{{\\"event\\": {event}}}");
    Ok(())
}
"""
RUST_MANIFEST = """[package]
name = "function"
version = "0.1.0"
edition = "2021"

[[bin]]
name = "fn"
path = "main.rs"

[profile.release]
opt-level = "s"
lto = true
strip = true
"""
RUST_MAKEFILE = """# rustup target add wasm32-wasip1
fn.wasm: main.rs Cargo.toml
\tcargo build --release --target wasm32-wasip1
\tcp target/wasm32-wasip1/release/fn.wasm $@
"""
WIT = """package sockd:function@1.0.0;

/// A function: the event is JSON, and so is the answer.
world function {
  export handle: func(event: string) -> result<string, string>;
}
"""
JS = """// A component: what `handle` returns is the answer, what it throws the error.
export function handle(event) {
  return JSON.stringify({ event: JSON.parse(event) });
}
"""
JS_MAKEFILE = """# npm install componentize-qjs
fn.wasm: handler.js function.wit
\tnpx componentize-qjs --wit function.wit --js handler.js --world function --sync --minify --output $@
"""
PYTHON = '''"""A component: what `handle` returns is the answer."""

import json

from componentize_py_types import Err


class WitWorld:
    def handle(self, event: str) -> str:
        try:
            return json.dumps({"event": json.loads(event)})
        except ValueError as error:
            raise Err(str(error)) from None
'''
PYTHON_MAKEFILE = """# pip install componentize-py
fn.wasm: app.py function.wit
\tcomponentize-py -d function.wit -w function componentize app -o $@
"""


def settings(memory_mb: int) -> str:
    """Return a sockd.toml."""
    return f'runtime = "wasm"\nhandler = "fn.wasm"\nmemory_mb = {memory_mb}\ntimeout_s = 3\n'


TEMPLATES: dict[str, dict[str, str]] = {
    "wasm-c": {"main.c": C, "Makefile": C_MAKEFILE, "sockd.toml": settings(64)},
    "wasm-rust": {
        "main.rs": RUST,
        "Cargo.toml": RUST_MANIFEST,
        "Makefile": RUST_MAKEFILE,
        "sockd.toml": settings(64),
        ".sockdignore": "target/\n",
    },
    "wasm-js": {
        "handler.js": JS,
        "function.wit": WIT,
        "Makefile": JS_MAKEFILE,
        "sockd.toml": settings(256),
        ".sockdignore": "node_modules/\n",
    },
    "wasm-python": {"app.py": PYTHON, "function.wit": WIT, "Makefile": PYTHON_MAKEFILE, "sockd.toml": settings(256)},
}
"""Files by name."""
