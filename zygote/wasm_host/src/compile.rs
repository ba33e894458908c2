//! Compiling, and refusing what can never serve, as a deploy says it.

use std::io::{Read, Write};
use wasmtime::component::Component;
use wasmtime::{bail, Engine, Result};

use crate::serve::prepared;

/// From standard input to standard output.
pub fn compile() -> Result<()> {
    let mut wasm = Vec::new();
    std::io::stdin().read_to_end(&mut wasm)?;
    if !wasm.starts_with(b"\0asm") {
        bail!("not a WebAssembly binary");
    }
    let engine = Engine::new(&crate::config()?)?;
    let component = Component::from_binary(&engine, &wasm)?;
    prepared(&engine, &component)?;
    std::io::stdout().write_all(&component.serialize()?)?;
    Ok(())
}
