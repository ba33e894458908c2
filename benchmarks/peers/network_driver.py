"""Makes network namespaces that are connected to a host, in the ways that `network` compares, and measures each.

A standalone program (`python -I -S network_driver.py`), importing nothing of ours. Its host is a network namespace of its own. It
reads one JSON list a line and answers one JSON line:

    ["make", WAY, COUNT] -> {"ms": [...], "call_ms": ms, "gone_ms": ms}   COUNT requests at once: when each had its endpoint; then
                                                                         how long removing all took us, and the kernel
    ["memory", WAY, COUNT] -> {"kb": KB of the kernel's memory for each of COUNT}

WAY is "ip commands", "raw netlink" or "pool" (of COUNT, made before the clock starts); for "memory" also "bare namespace".
Needs root, ip(8) and nft(8). Owns: its namespaces; all are gone when stdin closes.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from time import perf_counter

libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWNET = 0x20000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
NETLINK_ROUTE, NETLINK_NETFILTER = 0, 12
LINK, ADDRESS, ROUTE, NEIGHBOUR, DELLINK, GETLINK = 16, 20, 24, 28, 17, 18
REQUEST, ACK, DUMP, EXCLUSIVE, CREATE = 1, 4, 0x300, 0x200, 0x400
NESTED, UP, PERMANENT, LOOPBACK, INSIDE = 0x8000, 1, 0x80, 1, 2
RTMGRP_LINK = 1
FIRST = 100
"""The first number of a link on the host."""
GATEWAY = "169.254.1.1"
RULES = """table ip bench {
    map policies { type ipv4_addr : verdict; }
    chain function { accept; }
    chain forward { type filter hook forward priority filter; policy drop; ip saddr vmap @policies; }
}"""
_numbers = iter(range(FIRST, 1 << 20))


def check(result: int, what: str) -> None:
    """Raises OSError, naming the call, if it returned -1."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


# -- messages of netlink(7)


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def message(kind: int, flags: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, REQUEST | flags, 1, 0) + body


def link_header(index: int, up: int = 0) -> bytes:
    return struct.pack("=BBHiII", 0, 0, 0, index, up, up)


def link_up(index: int) -> bytes:
    return message(LINK, ACK, link_header(index, UP))


def veth(index: int, namespace: int) -> bytes:
    """A pair whose other end is born where it belongs, with addresses that are known."""
    names = attribute(3, b"eth0\0") + attribute(1, mac(index, 1)) + attribute(28, struct.pack("=I", namespace))
    peer = attribute(1, link_header(INSIDE) + names)
    kind = attribute(1, b"veth\0") + attribute(2, peer)
    ours = attribute(3, f"b{index}\0".encode()) + attribute(1, mac(index, 0)) + attribute(18, kind)
    return message(LINK, ACK | CREATE | EXCLUSIVE, link_header(index, UP) + ours)


def address(index: int, text: str) -> bytes:
    data = socket.inet_aton(text)
    header = struct.pack("=BBBBI", socket.AF_INET, 32, 0, 0, index)
    return message(ADDRESS, ACK | CREATE | EXCLUSIVE, header + attribute(2, data) + attribute(1, data))


def route(index: int, to: str | None, gateway: str | None = None) -> bytes:
    """To an address, or everything."""
    scope = 0 if gateway else 253
    header = struct.pack("=BBBBBBBBI", socket.AF_INET, 32 if to else 0, 0, 0, 254, 4, scope, 1, 0)
    attributes = attribute(4, struct.pack("=i", index))
    attributes += attribute(1, socket.inet_aton(to)) if to else b""
    attributes += attribute(5, socket.inet_aton(gateway)) if gateway else b""
    return message(ROUTE, ACK | CREATE | EXCLUSIVE, header + attributes)


def neighbour(index: int, text: str, hardware: bytes) -> bytes:
    header = struct.pack("=BBHiHBB", socket.AF_INET, 0, 0, index, PERMANENT, 0, 1)
    return message(
        NEIGHBOUR, ACK | CREATE | EXCLUSIVE, header + attribute(1, socket.inet_aton(text)) + attribute(2, hardware)
    )


def element(text: str) -> bytes:
    """A batch that adds an address to the map of the rules, with the verdict to jump to the function's chain."""
    verdict = attribute(1, struct.pack(">i", -3)) + attribute(2, b"function\0")
    data = attribute(1 | NESTED, attribute(1, socket.inet_aton(text)))
    data += attribute(2 | NESTED, attribute(2 | NESTED, verdict))
    names = attribute(1, b"bench\0") + attribute(2, b"policies\0")
    body = bytes([socket.AF_INET, 0, 0, 0]) + names + attribute(3 | NESTED, attribute(1 | NESTED, data))
    batch = struct.pack("=BBH", 0, 0, socket.htons(10))
    return message(0x10, 0, batch) + message(10 << 8 | 12, ACK | CREATE, body) + message(0x11, 0, batch)


def mac(index: int, end: int) -> bytes:
    return struct.pack(">BBI", 2, end, index)


def exchange(sock: socket.socket, *messages: bytes, answers: int = 0) -> None:
    """Send all at once, and take an answer to each. Raises OSError: what the kernel refused."""
    sock.send(b"".join(messages))
    left = answers or len(messages)
    while left:
        data, at = sock.recv(1 << 16), 0
        while at < len(data):
            size, kind = struct.unpack_from("=IH", data, at)
            error = struct.unpack_from("=i", data, at + 16)[0]
            if kind == 2 and error:
                raise OSError(-error, os.strerror(-error))
            left, at = left - 1, at + size


def opened(family: int, namespace: int | None = None) -> socket.socket:
    """A netlink socket, which stays in the namespace that it was made in."""
    if namespace is None:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
    check(libc.setns(namespace, NEWNET), "setns")
    try:
        return opened(family)
    finally:
        check(libc.setns(HOST, NEWNET), "setns")


# -- the ways


def new_namespace() -> int:
    check(libc.unshare(NEWNET), "unshare")
    made = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    check(libc.setns(HOST, NEWNET), "setns")
    return made


def address_of(index: int) -> str:
    return socket.inet_ntoa(struct.pack(">I", 0x64400000 + index))


class Ready:
    """An endpoint."""

    def __init__(self, index: int, namespace: int, name: str = "") -> None:
        self.index, self.namespace, self.name = index, namespace, name


def by_commands() -> Ready:
    """As published (PCPM): one process after the other."""
    index = next(_numbers)
    name, ours, theirs, where = f"bench{index}", f"b{index}", f"c{index}", address_of(index)
    for command in (
        f"netns add {name}",
        f"link add {ours} index {index} type veth peer name {theirs}",
        f"link set {theirs} netns {name}",
        f"-n {name} link set lo up",
        f"-n {name} addr add {where}/32 dev {theirs}",
        f"-n {name} link set {theirs} up",
        f"link set {ours} up",
        f"route add {where} dev {ours}",
        f"-n {name} route add default dev {theirs}",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    return Ready(index, -1, name)


def by_netlink() -> Ready:
    """As the worker does: all messages to one socket in one send."""
    index, namespace = next(_numbers), new_namespace()
    where = address_of(index)
    exchange(OUTSIDE, veth(index, namespace))
    exchange(OUTSIDE, route(index, where), neighbour(index, where, mac(index, 1)))
    with opened(NETLINK_ROUTE, namespace) as inside:
        exchange(
            inside,
            *(link_up(LOOPBACK), link_up(INSIDE), address(INSIDE, where), route(INSIDE, GATEWAY)),
            *(route(INSIDE, None, GATEWAY), neighbour(INSIDE, GATEWAY, mac(index, 0))),
        )
    return Ready(index, namespace)


def bare() -> Ready:
    return Ready(0, new_namespace())


def assigned(ready: Ready) -> None:
    """What an endpoint of the pool needs on the path: its function's rules; the process enters, and its parent leaves again."""
    exchange(RULES_SOCKET, element(address_of(ready.index)), answers=1)
    check(libc.setns(ready.namespace, NEWNET), "setns")
    check(libc.setns(HOST, NEWNET), "setns")


def at_once(count: int, make: Callable[[], Ready]) -> tuple[list[Ready], list[float]]:
    """Each in a thread, as commands of different requests run beside each other."""
    made: list[Ready] = []
    times: list[float] = []

    def one() -> None:
        ready = make()
        made.append(ready)
        times.append((perf_counter() - begun) * 1e3)

    begun = perf_counter()
    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(made) < count:
        raise OSError(f"{count - len(made)} of {count} endpoints were not made")
    return made, times


def in_order(count: int, make: Callable[[], Ready]) -> tuple[list[Ready], list[float]]:
    """One after the other, as the worker's one thread does."""
    made, times = [], []
    begun = perf_counter()
    for _ in range(count):
        made.append(make())
        times.append((perf_counter() - begun) * 1e3)
    return made, times


def make(way: str, count: int) -> dict[str, object]:
    if way == "ip commands":
        made, times = at_once(count, by_commands)
    elif way == "raw netlink":
        made, times = in_order(count, by_netlink)
    else:
        pool = iter(in_order(count, by_netlink)[0])

        def take() -> Ready:
            ready = next(pool)
            assigned(ready)
            return ready

        made, times = in_order(count, take)
    return {"ms": times, **removed(made)}


def removed(made: list[Ready]) -> dict[str, float]:
    """ms until it is over for us, and until the kernel has removed every link."""
    left = {ready.index for ready in made if ready.index}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_ROUTE) as news:
        news.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
        news.bind((0, RTMGRP_LINK))
        begun = perf_counter()
        for ready in made:
            if ready.name:
                subprocess.run(["ip", "netns", "del", ready.name], check=True)
            else:
                os.close(ready.namespace)
        call_ms = (perf_counter() - begun) * 1e3
        while left:
            data, at = news.recv(1 << 16), 0
            while at < len(data):
                size, kind = struct.unpack_from("=IH", data, at)
                if kind == DELLINK:
                    left.discard(struct.unpack_from("=i", data, at + 20)[0])
                at += size
        gone_ms = (perf_counter() - begun) * 1e3
    subprocess.run(["nft", "flush", "map", "ip", "bench", "policies"], check=True)
    return {"call_ms": call_ms, "gone_ms": gone_ms}


def memory(way: str, count: int) -> dict[str, float]:
    before = unreclaimable_kb()
    made = [bare() if way == "bare namespace" else by_netlink() for _ in range(count)]
    used = unreclaimable_kb() - before
    removed(made)
    return {"kb": used / count}


def unreclaimable_kb() -> int:
    """Return the kernel's unreclaimable memory: slabs that no pressure frees, and what exists once for each processor."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        fields = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return fields["SUnreclaim"] + fields["Percpu"]


def private_host() -> int:
    """Enter a network and a mount namespace of our own, in which ip(8) finds an empty /run."""
    check(libc.unshare(NEWNS | NEWNET), "unshare")
    check(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "mount /")
    check(libc.mount(b"tmpfs", b"/run", b"tmpfs", ctypes.c_ulong(0), None), "mount /run")
    subprocess.run(["nft", "-f", "-"], input=RULES, text=True, check=True)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


COMMANDS: dict[str, Callable[[str, int], object]] = {"make": make, "memory": memory}

if __name__ == "__main__":
    HOST = private_host()
    OUTSIDE, RULES_SOCKET = opened(NETLINK_ROUTE), opened(NETLINK_NETFILTER)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(COMMANDS[command](*arguments)), flush=True)
