//! Compiling, and refusing what can never serve, as a deploy says it.

use std::io::{Read, Write};
use wasmtime::component::Component;
use wasmtime::{bail, Engine, Result};

use crate::serve::prepared;

/// What a service exports, of any version of WASI 0.2.
const HANDLER: &str = "wasi:http/incoming-handler@0.2.";
/// What the host has, of WASI 0.2.
const PACKAGES: [&str; 7] = ["wasi:cli", "wasi:clocks", "wasi:filesystem", "wasi:http", "wasi:io", "wasi:random", "wasi:sockets"];
/// The names in a component for WASI 0.3, whose binary format is another one.
const NEWER: &[u8] = b"wasi:http/handler@0.3.";
/// The version of the binary format that core modules have.
const CORE: &[u8] = b"\0asm\x01\0\0\0";

/// From standard input to standard output.
pub fn compile() -> Result<()> {
    let mut wasm = Vec::new();
    std::io::stdin().read_to_end(&mut wasm)?;
    if !wasm.starts_with(b"\0asm") {
        bail!("not a WebAssembly binary");
    }
    if wasm.starts_with(CORE) {
        bail!(
            "it is a core module, and a service is a component that exports wasi:http/incoming-handler. Make a component of it, \
             or leave out kind = \"service\" if it is a command"
        );
    }
    if wasm.windows(NEWER.len()).any(|words| words == NEWER) {
        bail!(
            "it is for WASI 0.3 (it exports wasi:http/handler), and the host has WASI 0.2: build it for \
             wasi:http/incoming-handler@0.2, with an older release of its SDK, if need be"
        );
    }
    let engine = Engine::new(&crate::config()?)?;
    let component = Component::from_binary(&engine, &wasm)?;
    check(&engine, &component)?;
    prepared(&engine, &component)?;
    std::io::stdout().write_all(&component.serialize()?)?;
    Ok(())
}

/// Refuse a component of another world, by the names of its imports and exports.
fn check(engine: &Engine, component: &Component) -> Result<()> {
    let world = component.component_type();
    let lacking: Vec<&str> = world.imports(engine).map(|(name, _)| name).filter(|name| !has(name)).collect();
    if !lacking.is_empty() {
        bail!(
            "it imports {}, which the host does not have: it has wasi:http, files, clocks, random numbers and variables, of WASI \
             0.2. Build it without them; reach databases and other services by outgoing HTTP",
            lacking.join(", ")
        );
    }
    let exports: Vec<&str> = world.exports(engine).map(|(name, _)| name).collect();
    if !exports.iter().any(|name| name.starts_with(HANDLER)) {
        let found = if exports.is_empty() { "nothing".to_string() } else { exports.join(", ") };
        bail!(
            "it exports {found}, and a service exports wasi:http/incoming-handler. Leave out kind = \"service\" if it is a command \
             (wasi:cli/run) or has a function `handle`"
        );
    }
    Ok(())
}

fn has(import: &str) -> bool {
    PACKAGES.iter().any(|package| import.strip_prefix(package).is_some_and(|rest| rest.starts_with('/') && rest.contains("@0.2.")))
}
