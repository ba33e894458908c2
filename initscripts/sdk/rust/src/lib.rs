//! Initscripts for sockd: what a function's start can do ahead of the function, while its sandbox is being made.
//!
//! An initscript can only make a start faster: what it did not send, sent wrongly or too late, the function fetches from
//! the network. The storage library numbers the function's storage reads 0, 1, 2, ... in the order of its calls and looks
//! for a message with that number; use it as the `index` here. A directory is one LIST (one for each page, if there are
//! more), and then one read for each of its keys, in the order of the list.
//!
//! `sys` declares the engine's functions; everything else is a small helper on top. See the README for a whole script.

#![cfg_attr(not(any(test, feature = "std")), no_std)]

extern crate alloc;

pub mod json;
#[cfg(all(target_arch = "wasm32", not(feature = "std")))]
mod runtime;
pub mod s3;
pub mod sys;
mod text;

use alloc::vec::Vec;
use core::ops::Range;

pub use json::Json;
pub use sys::Reply;
pub use text::{concat, join, put_json, quoted, text, unquote_plus, Text};

/// Over the budget of RPCs or messages.
pub const EDQUOT: i32 = 122;
const EINVAL: i32 = 22;

/// Export the function that the engine calls: `boot!(run);` with `fn run() { ... }`.
#[macro_export]
macro_rules! boot {
    ($run:path) => {
        #[no_mangle]
        pub extern "C" fn boot() {
            $run()
        }
    };
}

/// The invocation's event, or the function's fixed args; empty when they cannot be read.
pub fn input() -> Input {
    // SAFETY: no pointers.
    let len = unsafe { sys::input_len() };
    let mut bytes = Vec::new();
    bytes.resize(usize::try_from(len).unwrap_or(0), 0);
    // SAFETY: as many bytes as the vector has.
    unsafe { sys::input_read(0, bytes.as_mut_ptr(), bytes.len() as u32) };
    Input(bytes)
}

/// The bytes of the input.
pub struct Input(pub Vec<u8>);

impl Input {
    /// It as JSON.
    pub fn json(&self) -> Json<'_> {
        Json(Some(&self.0))
    }

    /// The string at a path, decoded; of a number its digits.
    pub fn string(&self, path: &str) -> Text {
        self.json().string(path)
    }

    /// The value at a path, as it is written.
    pub fn find(&self, path: &str) -> Json<'_> {
        self.json().find(path)
    }
}

/// The bytes of a reply or message, copied into the script's memory: for what the script itself has to read.
pub fn read(reply: Reply) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(reply.len).ok()?).ok()?;
    bytes.resize(reply.len as usize, 0);
    // SAFETY: as many bytes as the vector has.
    let copied = unsafe { sys::buf_read(reply.handle, 0, bytes.as_mut_ptr(), bytes.len() as u32) };
    (copied as usize == bytes.len()).then_some(bytes)
}

/// An open connection; one that could not be opened refuses all that is sent on it.
#[derive(Clone, Copy)]
pub struct Connection(pub i32);

impl Connection {
    /// Open one; `sys::connect` says what addresses there are.
    pub fn open(address: &Text) -> Connection {
        match &address.0 {
            // SAFETY: pointer and length are the vector's.
            Some(address) => Connection(unsafe { sys::connect(address.as_ptr(), address.len() as u32) }),
            None => Connection(-EINVAL),
        }
    }

    /// Send a request, without waiting. Answers 0 or -errno.
    pub fn send(self, index: i64, method: &str, body: &Text) -> i32 {
        match &body.0 {
            // SAFETY: pointers and lengths are the slices'.
            Some(body) => unsafe {
                sys::send_rpc(self.0, index, method.as_ptr(), method.len() as u32, body.as_ptr(), body.len() as u32)
            },
            None => -EINVAL,
        }
    }

    /// Send a GET of HTTP, without waiting: "GET /path", and a line for each header. Answers 0 or -errno.
    pub fn get(self, index: i64, request: &Text) -> i32 {
        match &request.0 {
            // SAFETY: pointers and lengths are the slices'.
            Some(request) => unsafe {
                sys::send_rpc(self.0, index, request.as_ptr(), request.len() as u32, request.as_ptr(), 0)
            },
            None => -EINVAL,
        }
    }

    /// Wait for a reply. Fails with -errno.
    pub fn receive(self, index: i64) -> Result<Reply, i32> {
        let mut reply = Reply::default();
        // SAFETY: the pointer is to a Reply.
        match unsafe { sys::recv_rpc_reply(self.0, index, &mut reply) } {
            0 => Ok(reply),
            failure => Err(failure),
        }
    }

    /// Wait for a reply and pass it on to the function. Fails with -errno.
    pub fn pass(self, index: i64) -> Result<Reply, i32> {
        self.pass_as(index, index)
    }

    /// The same for an RPC that has another number than the read.
    pub fn pass_as(self, rpc_id: i64, index: i64) -> Result<Reply, i32> {
        let reply = self.receive(rpc_id)?;
        // SAFETY: no pointers.
        match unsafe { sys::send_msg(index, reply.handle, 0, reply.len as i64) } {
            0 => Ok(reply),
            failure => Err(failure),
        }
    }

    /// Pass on the replies of these indexes; one that failed stops none of the others.
    pub fn pass_all(self, indexes: Range<i64>) {
        for index in indexes {
            let _ = self.pass(index);
        }
    }
}

/// A line for the trace. level: 0 error, 1 warning, 2 info, 3 debug.
pub fn log(level: i32, line: &str) {
    // SAFETY: pointer and length are the string's.
    unsafe { sys::log(level, line.as_ptr(), line.len() as u32) }
}

/// End the run and the start of the function with it: the caller gets an error with this status and text.
pub fn abort_launch(status: i32, why: &str) -> ! {
    // SAFETY: pointer and length are the string's.
    unsafe { sys::abort_launch(status, why.as_ptr(), why.len() as u32) }
}

#[cfg(test)]
mod tests;
