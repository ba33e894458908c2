//! What an initscript may ask of the engine, version 1: the imports of module `sockd_v1`, as they are.
//!
//! Everything that can fail answers a negative errno. Calls that wait end with -ECANCELED (125) when the run is cancelled
//! or over its deadline. A pointer outside of the memory is -EFAULT, a handle or connection that was never given out is
//! -EBADF; neither ends the run. `../c/sockd_init.h` documents the same functions for C.

/// The version of this interface.
pub const API_VERSION: u32 = 1;

/// A reply or message. Its bytes stay in the shared region until they are asked for.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Reply {
    /// Names the buffer; valid until the run ends.
    pub handle: u32,
    /// The protocol's: an HTTP status, gRPC status; 0 for raw TCP and for messages.
    pub status: u32,
    /// Bytes.
    pub len: u64,
}

/// Declares each function twice: as the import, and for other targets, where the helpers' tests run, as one that fails.
macro_rules! imports {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $kind:ty),*) $(-> $result:ty = $failure:expr)?;)*) => {
        #[cfg(target_arch = "wasm32")]
        #[link(wasm_import_module = "sockd_v1")]
        extern "C" {
            $($(#[$doc])* pub fn $name($($arg: $kind),*) $(-> $result)?;)*
        }
        $(
            $(#[$doc])*
            /// # Safety
            /// Pointers and lengths must be of memory that the caller may read, or write where it is the result's.
            #[cfg(not(target_arch = "wasm32"))]
            pub unsafe fn $name($(_: $kind),*) $(-> $result)? { $($failure)? }
        )*
    };
}

imports! {
    /// Open a connection; dials in the background. Answers its number. The address chooses the protocol, which says what
    /// method and body are:
    /// - `s3:` the function's S3, with credentials that the script never sees. `GetObject`, `HeadObject`
    ///   `{"bucket","key"}` and optionally `"range": "bytes=0-99"`; `ListObjectsV2` `{"bucket","prefix"}` and optionally
    ///   `"continuation"`, `"delimiter"`, `"max_keys": "10"` and `"start_after"`. The body is JSON; a LIST's reply is XML.
    /// - `sqs:`, `dynamodb:` likewise; the method is the service's action, body and reply are its JSON.
    /// - `http://host:port`, `https://host:port`: `GET /path`, then optionally `\nname: value` for each header.
    /// - `grpc://host:port`: `/package.Service/Method`; body and reply are raw messages.
    /// - `tcp://host:port`: where the reply ends: `bytes:N`, `line`, `u32be` (a length before it, taken off), `eof`.
    ///
    /// -EACCES: not allowed for this function. -EINVAL: not an address. -EMFILE: too many.
    fn connect(addr: *const u8, addr_len: u32) -> i32 = -95;

    /// Send a request; waits neither for the connection nor for the reply. The body is copied before it returns.
    /// -EEXIST: the id is in use. -EDQUOT: over the budget. -EINVAL: no such method, or a malformed body.
    fn send_rpc(conn: i32, rpc_id: i64, method: *const u8, method_len: u32, body: *const u8, body_len: u32) -> i32 = -95;

    /// The same with a part of a buffer as the body: a reply goes on as a request without passing through the script.
    fn send_rpc_buf(conn: i32, rpc_id: i64, method: *const u8, method_len: u32, handle: u32, off: i64, len: i64)
        -> i32 = -95;

    /// Wait until the whole reply is in the region; may be called again for the same id. The function learns of a
    /// failure. -ENOENT: never sent. -ECONNREFUSED, -ETIMEDOUT, -ECONNRESET, -EPROTO, -ENOSPC: as the RPC ended. A status
    /// that says that something is wrong (404) is a reply like any other, and no failure.
    fn recv_rpc_reply(conn: i32, rpc_id: i64, out: *mut Reply) -> i32 = -95;

    /// Copy up to n bytes of a buffer, from offset off. Answers how many: fewer at its end, 0 beyond it.
    fn buf_read(handle: u32, off: i64, dst: *mut u8, n: u32) -> i32 = -95;

    /// Give the function a part of a buffer as message msg_id; nothing is copied. With a reply's buffer go its status,
    /// method, bucket and key: the engine says what was fetched, not the script.
    /// -EEXIST: the id is in use. -EDQUOT: too many messages. -EFAULT: not within the buffer.
    fn send_msg(msg_id: i64, handle: u32, off: i64, len: i64) -> i32 = -95;

    /// The same with bytes of the script's own, which are copied into the region. -ENOSPC: the region is full.
    fn send_bytes(msg_id: i64, ptr: *const u8, len: u32) -> i32 = -95;

    /// Give the function a whole buffer as a file msg_id that is its own, to write to and to make longer. Not copied if the
    /// buffer is a reply of 256 KiB or more that was not passed on; the buffer is empty then. Errors as send_bytes.
    fn send_file(msg_id: i64, handle: u32) -> i32 = -95;

    /// Wait for a message from the function. -EPIPE: it is gone.
    fn recv_msg(msg_id: i64, out: *mut Reply) -> i32 = -95;

    /// Give an idle connection to the function, which finds it by id and address. The script has it no more.
    /// -EBUSY: an RPC is under way on it. -EOPNOTSUPP: this protocol's connections cannot be given away.
    fn transfer_conn(conn_id: i64, addr: *const u8, addr_len: u32, conn: i32) -> i32 = -95;

    /// Wait for a connection that the function gives to the script. Answers its number. -EPIPE: the function is gone.
    fn get_conn(conn_id: i64, addr: *const u8, addr_len: u32) -> i32 = -95;

    /// The length of the input: the invocation's event as it was posted, or the function's fixed `args`.
    fn input_len() -> i32 = 0;

    /// Copy up to n bytes of the input, from offset off. Answers how many.
    fn input_read(off: i32, dst: *mut u8, n: u32) -> i32 = -95;

    /// A line for the trace, of 16 KiB together. level: 0 error, 1 warning, 2 info, 3 debug.
    fn log(level: i32, text: *const u8, len: u32);

    /// Nanoseconds of a clock that only goes forward; the clock of the trace.
    fn now_ns() -> i64 = 0;

    /// End the run. Replies that were not passed on are dropped; messages stay.
    fn exit(status: i32) -> ! = panic!("only the engine ends a run");

    /// End the run and the start of the function with it: the caller gets an error with this status and text.
    fn abort_launch(status: i32, text: *const u8, len: u32) -> ! = panic!("only the engine ends a run");
}
