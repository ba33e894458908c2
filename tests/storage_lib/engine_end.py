"""The engine's end of an app link, as a test plays it: real datagrams, real shared memory, no initscript."""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
from typing import Any

from sockd_initscripts.region import READ_ONLY
from sockd_storage_lib.sockd_initscript import wire

SHARED_BYTES = 1 << 20


class EngineEnd:
    """Pushes messages as the engine does: small ones into segment 0, those that say so into a segment of their own."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(10)
        self._segments = 0
        self._shared: tuple[int, mmap.mmap] | None = None
        self._used = 0

    def sent(self, number: int, *rpc: str) -> None:
        self.push({"op": "sent", "id": number, "rpc": rpc})

    def failed(self, number: int, *rpc: str) -> None:
        self.push({"op": "failed", "id": number, "rpc": rpc, "reason": "refused"})

    def checked(self, number: int, *, same: bool) -> None:
        self.push({"op": "checked", "id": number, "same": same})

    def end(self, outcome: str = "exit", status: int = 0) -> None:
        self.push({"op": "end", "outcome": outcome, "status": status})

    def message(
        self,
        number: int,
        data: bytes,
        *rpc: str,
        status: int = 200,
        own: bool = False,
        headers: dict[str, str] | None = None,
    ) -> None:
        """A reply that has come in; without `rpc`, something that the script made itself."""
        head: dict[str, Any] = {"op": "message", "id": number, "rpc": rpc or None, "status": status}
        if headers is not None:
            head["headers"] = headers
        head["length"] = len(data)
        fds = []
        if not data:
            head |= {"segment": -1, "offset": 0}
        elif own:
            index, memory, fd = self._segment(len(data))
            memory[:] = data
            memory.close()
            fds.append(fd)
            head |= {"segment": index, "offset": 0, "size": len(data)}
        else:
            if self._shared is None:
                index, memory, fd = self._segment(SHARED_BYTES)
                self._shared = index, memory
                fds.append(fd)
                head["size"] = SHARED_BYTES
            index, memory = self._shared
            memory[self._used : self._used + len(data)] = data
            head |= {"segment": index, "offset": self._used}
            self._used += -(-len(data) // 64) * 64
        self.push(head, *fds)

    def file(self, number: int, data: bytes) -> None:
        """A file that is the app's."""
        fd = os.memfd_create("sockd-test", os.MFD_CLOEXEC)
        os.write(fd, data)
        self.push({"op": "file", "id": number, "status": 200, "length": len(data)}, fd)

    def push(self, message: dict[str, Any], *fds: int) -> None:
        """One datagram; the descriptors are closed here, whether it could be sent or not."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.sock.sendmsg([wire.encode(message)], rights)
        finally:
            for fd in fds:
                os.close(fd)

    def receive(self) -> tuple[dict[str, Any], bytes, list[int]] | None:
        """What the app sent; None when it has closed its end."""
        data, ancillary, _, _ = self.sock.recvmsg(wire.MAX_DATAGRAM, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        if not data:
            return None
        fds = array.array("i")
        for _, _, payload in ancillary:
            fds.frombytes(payload)
        return *wire.decode(data), list(fds)

    def reads(self) -> list[tuple[list[str], str]]:
        """What the app says that it has read, and from where, so far; what it asked in between is passed over."""
        self.sock.setblocking(False)
        found = []
        try:
            while (received := self.receive()) is not None:
                message = received[0]
                if message["op"] == "check":
                    continue
                assert message["op"] == "read" and 0 < message["start_ns"] <= message["end_ns"]
                found.append((message["rpc"], message["served"]))
        except BlockingIOError:
            self.sock.settimeout(10)
        return found

    def close(self) -> None:
        self.sock.close()
        if self._shared is not None:
            self._shared[1].close()

    def _segment(self, size: int) -> tuple[int, mmap.mmap, int]:
        """(index, writable mapping, read-only descriptor) of a new segment."""
        fd = os.memfd_create("sockd-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(fd, 0o404)
        os.ftruncate(fd, size)
        mapping = mmap.mmap(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, READ_ONLY)
        self._segments += 1
        return self._segments - 1, mapping, fd
