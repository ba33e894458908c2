"""The state of a server in a benchmark: what its initscript has fetched, or else what it fetches itself, by as little code as
that takes: over one connection, or in ranges over as many as STATE_CONNECTIONS says, as the engine does.
"""

import mmap
import os
import socket
import sys
from collections.abc import Callable

sys.path.append("/opt/sockd/storage_lib")
import sockd_initscript

HOST = "169.254.1.1"
"""The host's loopback, as a sandbox with a private network reaches it."""
FILE = "/tmp/state"
FIRST_BYTES = 2 << 20
"""What is asked for first, of several ranges."""
WAIT_S = 30.0


def views(count: int) -> list[memoryview] | None:
    """The messages 0 to `count` - 1 of the script; None: there is none, or it has failed."""
    link = sockd_initscript.link()
    try:
        return [link.recv_msg(number, WAIT_S).view for number in range(count)] if link is not None else None
    except sockd_initscript.NoMessage as error:
        print("no message:", error, flush=True)
        return None


def view() -> memoryview:
    """The state as memory."""
    found = views(1)
    return found[0] if found else download(lambda length: memoryview(bytearray(length)))


def file() -> int:
    """The state as a file to write to; the result is a descriptor that programs inherit."""
    link, fd = sockd_initscript.link(), -1
    if link is not None:
        try:
            fd = link.recv_file(0, WAIT_S)
        except sockd_initscript.NoMessage as error:
            print("no file:", error, flush=True)
    if fd < 0:
        fd = os.open(FILE, os.O_CREAT | os.O_RDWR)

        def mapped(length: int) -> memoryview:
            os.ftruncate(fd, length)
            return memoryview(mmap.mmap(fd, length))

        download(mapped)
    os.set_inheritable(fd, True)
    return fd


def download(room: Callable[[int], memoryview]) -> memoryview:
    """Receive the object that the presigned STATE_URL names. Args: room: gives the memory for so many bytes."""
    connections = int(os.environ.get("STATE_CONNECTIONS", "1"))
    if connections == 1:
        sock, begun, length = asked("")
        view = room(length)
        receive(sock, begun, view)
        return view
    import threading

    sock, begun, length = asked(f"range: bytes=0-{FIRST_BYTES - 1}\r\n")
    view, size = room(length), -(-(length - FIRST_BYTES) // (connections - 1))

    def part(start: int) -> None:
        end = min(start + size, length)
        sock, begun, _ = asked(f"range: bytes={start}-{end - 1}\r\n")
        receive(sock, begun, view[start:end])

    threads = [threading.Thread(target=part, args=(start,)) for start in range(FIRST_BYTES, length, size)]
    for thread in threads:
        thread.start()
    receive(sock, begun, view[:FIRST_BYTES])
    for thread in threads:
        thread.join()
    return view


def asked(headers: str) -> tuple[socket.socket, bytes, int]:
    """Ask for the object, or a range of it. Returns: the connection, the first bytes that came, and the length of the object."""
    host, _, target = os.environ["STATE_URL"].removeprefix("http://").partition("/")
    sock = socket.create_connection((HOST, int(host.partition(":")[2])))
    sock.sendall(f"GET /{target} HTTP/1.1\r\nhost: {host}\r\n{headers}connection: close\r\n\r\n".encode())
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(1 << 16)
    head, _, begun = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().lower().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines)
    if status.split()[1] not in ("200", "206"):
        raise SystemExit(f"the state cannot be had: {status}")
    return sock, begun, int(fields.get("content-range", "").partition("/")[2] or fields["content-length"])


def receive(sock: socket.socket, begun: bytes, view: memoryview) -> None:
    """Receive as many bytes as there is room for."""
    view[: len(begun)] = begun
    at = len(begun)
    while at < len(view):
        at += sock.recv_into(view[at:])
    sock.close()
