//! The host of components for `wasi:http`: a web server of which each request is a fresh instance's.
//!
//!     sockd-wasm-host compile               a component at standard input, its compiled file at standard output
//!     sockd-wasm-host serve FILE [OPTIONS]  serve a compiled file at 127.0.0.1:$PORT, until SIGTERM
//!
//! It runs in the sandbox of a service, which is the wall between functions; instances are that between requests. One thread
//! serves them all: the epoch gives each its turn. Compiled files are of this program alone, and name its version.

mod answer_body;
mod clock;
mod compile;
mod pool;
mod serve;

use std::process::ExitCode;
use wasmtime::{Config, Result};

/// The exit status for a component that can never serve.
const BAD_MODULE: u8 = 3;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["compile"] => match compile::compile() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::from(BAD_MODULE)
            }
        },
        ["serve", file, options @ ..] => match serve::serve(file, options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:?}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("usage: sockd-wasm-host compile | serve FILE [--memory-mb N] [--timeout-s N]");
            ExitCode::from(2)
        }
    }
}

/// As that of the functions (`sockd_zygote.handlers.wasm.runtime`).
const STACK_BYTES: usize = 1 << 20;

/// What compiles and what runs: the same, or a compiled file is refused. The target is the architecture's baseline: a backup may
/// move to another machine.
fn config() -> Result<Config> {
    let mut config = Config::new();
    config.target(&format!("{}-unknown-linux-gnu", std::env::consts::ARCH))?;
    config.max_wasm_stack(STACK_BYTES);
    config.wasm_component_model(true);
    config.epoch_interruption(true);
    Ok(config)
}
