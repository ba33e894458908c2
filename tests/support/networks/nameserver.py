"""A nameserver in a thread: UDP and TCP on one address, records that a test sets, and a note of what was asked."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address
from types import TracebackType
from typing import Self

from sockd.isolation.networks import dns

TTL_S = 30
PORT = 53
WAIT_S = 30.0
TRUNCATED = 0x0200
"""The flag TC (RFC 1035, 4.1.1)."""


class Nameserver:
    """Serves from `__enter__` to `__exit__`. What does not fit into a datagram of EDNS0 is truncated there."""

    def __init__(self, address: str, records: Mapping[str, list[str]]) -> None:
        self.records = dict(records)
        self.texts: dict[str, list[bytes]] = {}
        """Records of TXT."""
        self.failing: set[str] = set()
        """Names that are answered SERVFAIL."""
        self.held: set[str] = set()
        """Names that are not answered, until `release`."""
        self.asked: list[str] = []
        self.asked_over_tcp: list[str] = []
        self._waiting: list[tuple[bytes, tuple[str, int]]] = []
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._tcp = socket.socket()
        self._ours, self._theirs = socket.socketpair()
        self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for sock in (self._udp, self._tcp):
            sock.bind((address, PORT))
        self._tcp.listen(64)
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ours.close()
        self._thread.join()
        for sock in (self._udp, self._tcp, self._theirs):
            sock.close()

    def refuse_tcp(self) -> None:
        """Connections are refused from now on."""
        self._tcp.shutdown(socket.SHUT_RDWR)

    def release(self, name: str) -> None:
        """Answer the queries for a name that are held."""
        self.held.discard(name)
        waiting, self._waiting = self._waiting, []
        for query, peer in waiting:
            self._udp.sendto(self._answer(query), peer)

    def _serve(self) -> None:
        steps: dict[socket.socket, Callable[[], None]] = {self._udp: self._datagram, self._tcp: self._connection}
        with selectors.DefaultSelector() as selector:
            for sock in (*steps, self._theirs):
                selector.register(sock, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._theirs in ready:
                    return
                for sock, step in steps.items():
                    if sock in ready:
                        step()

    def _datagram(self) -> None:
        query, peer = self._udp.recvfrom(4096)
        name = dns.question(query).name
        self.asked.append(name)
        if name in self.held:
            self._waiting.append((query, peer))
            return
        answer = self._answer(query)
        if len(answer) > dns.MOST_MESSAGE_BYTES:
            number, flags = struct.unpack_from("!HH", answer)
            answer = struct.pack("!6H", number, flags | TRUNCATED, 1, 0, 0, 0) + dns.question(query).raw
        self._udp.sendto(answer, peer)

    def _connection(self) -> None:
        with contextlib.suppress(OSError), self._tcp.accept()[0] as sock:
            sock.settimeout(WAIT_S)
            query = sock.recv(4096)[2:]
            self.asked_over_tcp.append(dns.question(query).name)
            answer = self._answer(query)
            sock.sendall(len(answer).to_bytes(2) + answer)

    def _answer(self, query: bytes) -> bytes:
        asked = dns.question(query)
        if asked.name in self.failing:
            return dns.answer(asked, dns.Addresses([], 0, dns.SERVER_FAILURE))
        if asked.name in self.texts and asked.kind != dns.A:
            return _texts(asked, self.texts[asked.name])
        found = [IPv4Address(each) for each in self.records.get(asked.name, [])]
        known = asked.name in self.records or asked.name in self.texts
        return dns.answer(asked, dns.Addresses(found, TTL_S, dns.NO_ERROR if known else dns.NO_SUCH_NAME))


def _texts(asked: dns.Question, texts: list[bytes]) -> bytes:
    head = struct.pack("!6H", asked.number, 0x8180, 1, len(texts), 0, 0) + asked.raw
    record = struct.pack("!HHHI", 0xC00C, asked.kind, 1, TTL_S)
    return head + b"".join(record + struct.pack("!HB", len(each) + 1, len(each)) + each for each in texts)
