//! What an initscript in Zig may ask of the engine, and a few lines around it. `../c/sockd_init.h` says what each function does.

const std = @import("std");

/// A reply or message; its bytes stay in the region until they are asked for.
pub const Reply = extern struct { handle: u32, status: u32, len: u64 };

pub extern "sockd_v1" fn connect(addr: [*]const u8, addr_len: u32) i32;
pub extern "sockd_v1" fn send_rpc(conn: i32, rpc_id: i64, method: [*]const u8, method_len: u32, body: [*]const u8, body_len: u32) i32;
pub extern "sockd_v1" fn send_rpc_buf(conn: i32, rpc_id: i64, method: [*]const u8, method_len: u32, handle: u32, off: i64, len: i64) i32;
pub extern "sockd_v1" fn recv_rpc_reply(conn: i32, rpc_id: i64, out: *Reply) i32;
pub extern "sockd_v1" fn buf_read(handle: u32, off: i64, dst: [*]u8, n: u32) i32;
pub extern "sockd_v1" fn send_msg(msg_id: i64, handle: u32, off: i64, len: i64) i32;
pub extern "sockd_v1" fn send_bytes(msg_id: i64, ptr: [*]const u8, len: u32) i32;
pub extern "sockd_v1" fn send_file(msg_id: i64, handle: u32) i32;
pub extern "sockd_v1" fn recv_msg(msg_id: i64, out: *Reply) i32;
pub extern "sockd_v1" fn transfer_conn(conn_id: i64, addr: [*]const u8, addr_len: u32, conn: i32) i32;
pub extern "sockd_v1" fn get_conn(conn_id: i64, addr: [*]const u8, addr_len: u32) i32;
pub extern "sockd_v1" fn input_len() i32;
pub extern "sockd_v1" fn input_read(off: i32, dst: [*]u8, n: u32) i32;
pub extern "sockd_v1" fn log(level: i32, text: [*]const u8, len: u32) void;
pub extern "sockd_v1" fn now_ns() i64;
pub extern "sockd_v1" fn exit(status: i32) noreturn;
pub extern "sockd_v1" fn abort_launch(status: i32, text: [*]const u8, len: u32) noreturn;

/// Memory of a run, which is short: nothing is given back.
pub const allocator = std.heap.wasm_allocator;

/// The invocation's event, or the function's fixed `args`.
pub fn input() ![]u8 {
    const text = try allocator.alloc(u8, @intCast(input_len()));
    _ = input_read(0, text.ptr, @intCast(text.len));
    return text;
}

/// The event as a value of this type; members that the type lacks are passed over.
pub fn event(comptime T: type) !T {
    return std.json.parseFromSliceLeaky(T, allocator, try input(), .{ .ignore_unknown_fields = true });
}

/// Open a connection: "s3:", "http://host:port" and so on.
pub fn open(address: []const u8) i32 {
    return connect(address.ptr, @intCast(address.len));
}

/// Send a GetObject as the storage read of this number; does not wait.
pub fn get(s3: i32, index: i64, bucket: []const u8, key: []const u8) !void {
    const body = try std.json.Stringify.valueAlloc(allocator, .{ .bucket = bucket, .key = key }, .{});
    const method = "GetObject";
    _ = send_rpc(s3, index, method, method.len, body.ptr, @intCast(body.len));
}

/// Wait for a reply and pass it on as the storage read of this number. Answers 0 or a negative errno.
pub fn pass(conn: i32, index: i64) i32 {
    var reply: Reply = undefined;
    const failed = recv_rpc_reply(conn, index, &reply);
    return if (failed != 0) failed else send_msg(index, reply.handle, 0, @intCast(reply.len));
}
