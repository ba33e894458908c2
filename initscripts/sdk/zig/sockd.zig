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
    _ = try send(s3, index, "GetObject", .{ .bucket = bucket, .key = key });
}

/// What is asked of a page of a list besides its prefix; an empty text stands for what is not asked for.
pub const Page = struct {
    continuation: []const u8 = "",
    delimiter: []const u8 = "",
    max_keys: []const u8 = "",
    start_after: []const u8 = "",
};

/// Send a ListObjectsV2, which is one page of a list, as the storage read of this number. Answers 0 or a negative errno.
pub fn list(s3: i32, index: i64, bucket: []const u8, prefix: []const u8, page: Page) !i32 {
    return send(s3, index, "ListObjectsV2", .{
        .bucket = bucket,
        .prefix = prefix,
        .continuation = page.continuation,
        .delimiter = page.delimiter,
        .max_keys = page.max_keys,
        .start_after = page.start_after,
    });
}

fn send(conn: i32, index: i64, method: []const u8, asked: anytype) !i32 {
    const body = try std.json.Stringify.valueAlloc(allocator, asked, .{});
    return send_rpc(conn, index, method.ptr, @intCast(method.len), body.ptr, @intCast(body.len));
}

/// Wait for a reply and pass it on as the storage read of this number. Answers 0 or a negative errno.
pub fn pass(conn: i32, index: i64) i32 {
    var reply: Reply = undefined;
    const failed = recv_rpc_reply(conn, index, &reply);
    return if (failed != 0) failed else send_msg(index, reply.handle, 0, @intCast(reply.len));
}

/// The bytes of a reply or message, copied into the script's memory: for what the script itself has to read.
pub fn read(reply: Reply) ![]u8 {
    const text = try allocator.alloc(u8, std.math.cast(usize, reply.len) orelse return error.OutOfMemory);
    if (buf_read(reply.handle, 0, text.ptr, @intCast(text.len)) != text.len) return error.Unreadable;
    return text;
}

/// The numbers of reads, from `first` up to but without `end`.
pub const Listed = struct { first: i64, end: i64 };

/// The rest of a directory, whose first page was sent as `index`: wait for it, pass it on, and likewise all further pages, as
/// index + 1, ...; then send a GET of each listed key under the numbers behind those, whose replies are for the caller to pass on.
pub fn getListed(s3: i32, index: i64, bucket: []const u8, prefix: []const u8) !Listed {
    var pages: std.ArrayList([]const u8) = .empty;
    var next = index;
    while (true) {
        var reply: Reply = undefined;
        if (recv_rpc_reply(s3, next, &reply) != 0) break;
        _ = send_msg(next, reply.handle, 0, @intCast(reply.len));
        next += 1;
        if (reply.status != 200) break;
        const page = try read(reply);
        try pages.append(allocator, page);
        var rest: []const u8 = page;
        const continuation = try xmlNext(&rest, "NextContinuationToken") orelse break;
        if (try list(s3, next, bucket, prefix, .{ .continuation = continuation }) != 0) break;
    }
    var listed = Listed{ .first = next, .end = next };
    for (pages.items) |page| {
        var rest = page;
        while (try xmlNext(&rest, "Key")) |key| : (listed.end += 1) try get(s3, listed.end, bucket, key);
    }
    return listed;
}

/// Take the text of the next element of this name off an XML text, entities decoded; null when there is none left.
pub fn xmlNext(rest: *[]const u8, name: []const u8) !?[]u8 {
    var at: usize = 0;
    while (std.mem.indexOfScalarPos(u8, rest.*, at, '<')) |open_at| {
        at = open_at + 1;
        const tail = rest.*[at..];
        if (!std.mem.startsWith(u8, tail, name) or tail.len == name.len or tail[name.len] != '>') continue;
        const inner = tail[name.len + 1 ..];
        const end = std.mem.indexOfScalar(u8, inner, '<') orelse return null;
        rest.* = inner[end..];
        return try decoded(inner[0..end]);
    }
    return null;
}

fn decoded(text: []const u8) ![]u8 {
    var plain: std.ArrayList(u8) = .empty;
    var at: usize = 0;
    while (at < text.len) : (at += 1) {
        const semicolon = if (text[at] == '&') std.mem.indexOfScalarPos(u8, text, at, ';') else null;
        if (semicolon) |end| {
            var bytes: [4]u8 = undefined;
            const count = try std.unicode.utf8Encode(try entity(text[at + 1 .. end]), &bytes);
            try plain.appendSlice(allocator, bytes[0..count]);
            at = end;
        } else try plain.append(allocator, text[at]);
    }
    return plain.items;
}

fn entity(name: []const u8) !u21 {
    const known = [_]struct { []const u8, u21 }{
        .{ "amp", '&' }, .{ "lt", '<' }, .{ "gt", '>' }, .{ "quot", '"' }, .{ "apos", '\'' },
    };
    for (known) |each| if (std.mem.eql(u8, name, each[0])) return each[1];
    if (std.mem.startsWith(u8, name, "#x")) return std.fmt.parseInt(u21, name[2..], 16);
    if (std.mem.startsWith(u8, name, "#")) return std.fmt.parseInt(u21, name[1..], 10);
    return error.UnknownEntity;
}
