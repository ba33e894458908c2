"""The host functions: what each import of `sockd_v1` does for the guest that calls it.

One `Calls` per run, used by its guest's thread only. A method takes what the ABI's table says, as signed ints, and returns
the result; a CallFailed becomes a negative errno, a GuestStopped unwinds the guest (see `guest.py`).
"""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Protocol

from sockd_initscripts.engine import abi
from sockd_initscripts.engine.connections import Connections
from sockd_initscripts.engine.guest_memory import U32, GuestMemory
from sockd_initscripts.engine.handles import Handles, Held
from sockd_initscripts.engine.messages import Inbox, Outbox
from sockd_initscripts.engine.rpcs import BODIES_LIMIT_BYTES, Rpcs
from sockd_initscripts.errors import CallFailed, GuestStopped, RegionFull
from sockd_initscripts.region import Buffer, Region

LOG_LIMIT_BYTES = 16 * 1024
LEVELS = ("error", "warning", "info", "debug")


class Input:
    """What a guest reads its input from: bytes, or an fd that is ours to close (of a memfd; never mapped)."""

    def __init__(self, source: bytes | int) -> None:
        self._source = source
        self.length = len(source) if isinstance(source, bytes) else os.fstat(source).st_size

    def read(self, offset: int, length: int) -> bytes:
        """As many of these bytes as there are."""
        if isinstance(self._source, bytes):
            return self._source[offset : offset + length]
        return os.pread(self._source, length, offset)

    def close(self) -> None:
        """Again is nothing."""
        if isinstance(self._source, int):
            os.close(self._source)
            self._source = b""


class Ending(Protocol):
    """Gets the calls by which a guest ends itself."""

    def guest_exits(self, status: int) -> None:
        """The guest called `exit`."""

    def guest_aborts(self, status: int, message: str) -> None:
        """The guest called `abort_launch`."""


class Calls:
    """What one guest may call, and on what."""

    def __init__(
        self,
        given: Input,
        region: Region,
        connections: Connections,
        rpcs: Rpcs,
        outbox: Outbox,
        inbox: Inbox,
        ending: Ending,
    ) -> None:
        self._input = given
        self._region = region
        self._connections = connections
        self._rpcs = rpcs
        self._outbox = outbox
        self._inbox = inbox
        self._ending = ending
        self._handles = Handles()
        self._log: list[str] = []
        self._log_room = LOG_LIMIT_BYTES
        self._memory: GuestMemory | None = None

    def use_memory(self, memory: GuestMemory | None) -> None:
        """The guest's memory is there, or gone again."""
        self._memory = memory

    @property
    def memory(self) -> GuestMemory:
        """Raises CallFailed(EFAULT) when there is none."""
        if self._memory is None:
            raise CallFailed(errno.EFAULT)
        return self._memory

    @property
    def log_text(self) -> str:
        """All that the guest logged, as far as it is kept."""
        return "".join(self._log)

    # -- RPCs

    def connect(self, address_ptr: int, address_len: int) -> int:
        return self._connections.connect(self._address(address_ptr, address_len))

    def send_rpc(
        self, connection: int, rpc_id: int, method_ptr: int, method_len: int, body_ptr: int, body_len: int
    ) -> int:
        method = self._method(method_ptr, method_len)
        body = self.memory.read(body_ptr, body_len, limit=BODIES_LIMIT_BYTES)
        self._rpcs.send(connection, rpc_id, method, body)
        return 0

    def send_rpc_buf(
        self, connection: int, rpc_id: int, method_ptr: int, method_len: int, handle: int, offset: int, length: int
    ) -> int:
        method = self._method(method_ptr, method_len)
        self._rpcs.send(connection, rpc_id, method, self._handles.get(handle).slice(offset, length))
        return 0

    def recv_rpc_reply(self, connection: int, rpc_id: int, out_ptr: int) -> int:
        self.memory.check(out_ptr, abi.REPLY.size)
        rpc = self._rpcs.receive(connection, rpc_id)
        assert rpc.reply is not None
        return self._give(
            out_ptr, Held(rpc.reply.buffer, rpc.descriptor, rpc.reply.status, rpc.reply.etag, rpc.reply.headers)
        )

    # -- buffers

    def buf_read(self, handle: int, offset: int, dst_ptr: int, count: int) -> int:
        held = self._handles.get(handle)
        count &= U32
        self.memory.check(dst_ptr, count)
        data = held.slice(offset, min(count, max(held.length - offset, 0)))
        self.memory.write(dst_ptr, data)
        return len(data)

    # -- messages

    def send_msg(self, msg_id: int, handle: int, offset: int, length: int) -> int:
        held = self._handles.get(handle)
        held.slice(offset, length)
        # A part of a reply must not be taken for the object: only the whole is called by its RPC's name.
        descriptor = held.descriptor if (offset, length) == (0, held.length) else None
        self._outbox.send(msg_id, held.buffer, offset, length, descriptor, held.status, held.etag, held.headers)
        return 0

    def send_bytes(self, msg_id: int, ptr: int, length: int) -> int:
        data = self.memory.view(ptr, length)
        buffer = self._allocate(len(data))
        if buffer is not None:
            buffer.view[:] = data
        self._outbox.send(msg_id, buffer, 0, len(data), None, 0)
        return 0

    def send_file(self, msg_id: int, handle: int) -> int:
        held = self._handles.get(handle)
        self._outbox.send_file(msg_id, lambda: file_of(held, self._region), held.length, held.status, held.headers)
        return 0

    def recv_msg(self, msg_id: int, out_ptr: int) -> int:
        self.memory.check(out_ptr, abi.REPLY.size)
        payload = self._inbox.take_message(msg_id)
        buffer = self._allocate(len(payload))
        if buffer is not None:
            buffer.view[:] = payload
        return self._give(out_ptr, Held(buffer))

    # -- connections

    def transfer_conn(self, conn_id: int, address_ptr: int, address_len: int, connection: int) -> int:
        address = self._address(address_ptr, address_len)
        if self._rpcs.is_under_way_on(connection):
            raise CallFailed(errno.EBUSY)
        self._connections.transfer(conn_id, address, connection)
        return 0

    def get_conn(self, conn_id: int, address_ptr: int, address_len: int) -> int:
        address = self._address(address_ptr, address_len)
        sock, said = self._inbox.take_connection(conn_id)
        return self._connections.adopt(sock, address or said)

    # -- the rest

    def input_len(self) -> int:
        return self._input.length

    def input_read(self, offset: int, dst_ptr: int, count: int) -> int:
        count = min(count & U32, max(self._input.length - (offset & U32), 0))
        self.memory.check(dst_ptr, count)
        data = self._input.read(offset & U32, count)
        self.memory.write(dst_ptr, data)
        return len(data)

    def log(self, level: int, ptr: int, length: int) -> None:
        if self._log_room <= 0:
            return
        try:
            text = self.memory.read(ptr, min(length & U32, abi.TEXT_LIMIT_BYTES)).decode(errors="replace")
        except CallFailed:
            text = "(log: bad pointer)"
        name = LEVELS[level] if 0 <= level < len(LEVELS) else str(level)
        line = f"{name}: {text}\n"[: self._log_room]
        self._log_room -= len(line)
        self._log.append(line)

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def exit(self, status: int) -> None:
        self._ending.guest_exits(status)
        raise GuestStopped

    def abort_launch(self, status: int, ptr: int, length: int) -> None:
        try:
            text = self.memory.read(ptr, min(length & U32, abi.TEXT_LIMIT_BYTES)).decode(errors="replace")
        except CallFailed:
            text = ""
        self._ending.guest_aborts(status, text)
        raise GuestStopped

    # --

    def _address(self, ptr: int, length: int) -> str:
        return self.memory.read_text(ptr, length, limit=abi.ADDRESS_LIMIT_BYTES)

    def _method(self, ptr: int, length: int) -> str:
        return self.memory.read_text(ptr, length, limit=abi.METHOD_LIMIT_BYTES)

    def _allocate(self, size: int) -> Buffer | None:
        try:
            return self._region.allocate(size) if size else None
        except RegionFull:
            raise CallFailed(errno.ENOSPC) from None

    def _give(self, out_ptr: int, held: Held) -> int:
        self.memory.write(out_ptr, abi.REPLY.pack(self._handles.add(held), held.status & U32, held.length))
        return 0


def file_of(held: Held, region: Region) -> int:
    """The bytes of a buffer as a file of the app's; the fd is the caller's. Raises: CallFailed: EINVAL, ENOSPC."""
    if held.buffer is None:
        raise CallFailed(errno.EINVAL)
    try:
        return region.take_file(held.buffer)
    except RegionFull:
        raise CallFailed(errno.ENOSPC) from None


def socket_of(fd: int) -> socket.socket | None:
    """A stream socket that the app sent, as ours; None, and the fd closed, when it is something else."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        return None
    if sock.type != socket.SOCK_STREAM:
        sock.close()
        return None
    return sock
