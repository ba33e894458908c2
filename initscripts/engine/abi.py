"""The guest's interface: import module `sockd_v1`, its functions and their types, and what a guest exports.

Plain data; a guest SDK documents the same table. `i` is an i32, `I` an i64. Pointers and lengths are u32 in i32, errors
negative errno values.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType

IMPORT_MODULE = "sockd_v1"
EXPORTED_MEMORY = "memory"
EXPORTED_ENTRY = "boot"

FUNCTIONS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "connect": ("ii", "i"),  # addr_ptr, addr_len -> conn
    "send_rpc": ("iIiiii", "i"),  # conn, rpc_id, method_ptr, method_len, body_ptr, body_len
    "send_rpc_buf": ("iIiiiII", "i"),  # conn, rpc_id, method_ptr, method_len, handle, off, len
    "recv_rpc_reply": ("iIi", "i"),  # conn, rpc_id, out_ptr
    "buf_read": ("iIii", "i"),  # handle, off, dst_ptr, n -> bytes copied
    "send_msg": ("IiII", "i"),  # msg_id, handle, off, len
    "send_bytes": ("Iii", "i"),  # msg_id, ptr, len
    "send_file": ("Ii", "i"),  # msg_id, handle
    "recv_msg": ("Ii", "i"),  # msg_id, out_ptr
    "transfer_conn": ("Iiii", "i"),  # conn_id, addr_ptr, addr_len, conn
    "get_conn": ("Iii", "i"),  # conn_id, addr_ptr, addr_len -> conn
    "input_len": ("", "i"),
    "input_read": ("iii", "i"),  # off, dst_ptr, n -> bytes copied
    "log": ("iii", ""),  # level, ptr, len
    "now_ns": ("", "I"),
    "exit": ("i", ""),  # status; never returns
    "abort_launch": ("iii", ""),  # status, ptr, len; never returns
})  # fmt: skip

REPLY = struct.Struct("<IIQ")
"""struct reply { u32 handle; u32 status; u64 len }"""

ADDRESS_LIMIT_BYTES = 4096
METHOD_LIMIT_BYTES = 32 * 1024
"""A method may carry a request's header lines."""
TEXT_LIMIT_BYTES = 4096
"""The most bytes of one log entry, and of the message that goes with abort_launch."""
