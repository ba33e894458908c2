"""The network as system calls reach it: protocols, options of sockets, rtnetlink, and namespaces of a package's own."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

from tests.abuse.attack import attack, in_zygote
from tests.abuse.prelude import in_child, name_of, outcome, read, refusal, syscall
from tests.support.cases import Happened, case
from tests.support.emulated import SLOWER
from tests.support.private_worker import PrivateWorker


@case(
    "K11",
    "sockets of MPTCP, UDP-Lite, SCTP, DCCP, ping; SO_BINDTODEVICE, TCP_CONGESTION, TCP_ULP, BPF programs as options",
    expect="EPROTONOSUPPORT, EPERM or ENOPROTOOPT; what TCP, UDP and their options do for programs works",
)
def test_protocols_and_options_of_sockets(worker: PrivateWorker, happened: Happened) -> None:
    def use_them(event: Any) -> Any:
        def make(family: int, kind: int, protocol: int) -> None:
            socket.socket(family, kind, protocol).close()

        refused, works = {}, {}
        for family in (2, 10):
            for name, kind, protocol in (
                ("MPTCP", 1, 262),
                ("UDP-Lite", 2, 136),
                ("SCTP", 1, 132),
                ("DCCP", 6, 33),
                ("ping", 2, 1 if family == 2 else 58),
                ("raw", 3, 255),
            ):
                refused[f"{name} {family}"] = outcome(make, family, kind, protocol)
            for kind, protocol in ((1, 0), (1, 6), (2, 0), (2, 17), (1 | 0o4000 | 0o2000000, 6)):
                works[f"socket {family} {kind} {protocol}"] = outcome(make, family, kind, protocol)
        program = struct.pack("HxxxxxxP", 0, 0)
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            for name, sock, level, option, value in (
                ("SO_BINDTODEVICE", tcp, 1, 25, b"lo\0"),
                ("SO_BINDTOIFINDEX", tcp, 1, 62, 1),
                ("SO_ATTACH_FILTER", udp, 1, 26, program),
                ("SO_ATTACH_BPF", udp, 1, 50, 0),
                ("SO_ATTACH_REUSEPORT_CBPF", udp, 1, 51, program),
                ("TCP_CONGESTION", tcp, 6, 13, b"reno"),
                ("TCP_ULP", tcp, 6, 31, b"tls"),
                ("UDP_ENCAP", udp, 17, 100, 2),
                ("IP_LOCAL_PORT_RANGE", tcp, 0, 51, 9000 << 16 | 9000),
                ("SOL_MPTCP", tcp, 284, 1, 1),
                ("SOL_TLS", tcp, 282, 1, b"\0" * 40),
            ):
                refused[name] = outcome(sock.setsockopt, level, option, value)
            for name, sock, level, option, value in (
                ("SO_REUSEADDR", tcp, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1),
                ("SO_REUSEPORT", tcp, socket.SOL_SOCKET, socket.SO_REUSEPORT, 1),
                ("SO_KEEPALIVE", tcp, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
                ("SO_RCVBUF", tcp, socket.SOL_SOCKET, socket.SO_RCVBUF, 65536),
                ("TCP_NODELAY", tcp, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
                ("TCP_KEEPIDLE", tcp, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
                ("IP_TOS", tcp, socket.IPPROTO_IP, socket.IP_TOS, 8),
                ("UDP_SEGMENT", udp, 17, 103, 1200),
                ("IP_MULTICAST_TTL", udp, socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1),
            ):
                works[name] = outcome(sock.setsockopt, level, option, value)
        with socket.socket(socket.AF_INET6) as six:
            works["IPV6_V6ONLY"] = outcome(six.setsockopt, socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        works["asyncio's socket pair"] = outcome(socket.socketpair)
        return refused, works

    for subject, (refused, works) in (("handler", attack(worker, use_them)), ("Zygote", in_zygote(worker, use_them))):
        open_ = {name: answer for name, answer in refused.items() if answer not in REFUSALS}
        broken = {name: answer for name, answer in works.items() if answer != "ok"}
        answers = ", ".join(sorted(set(refused.values())))
        happened(f"{subject}: {len(refused)} refused ({answers}), {len(open_)} open {open_ or ''}; {len(works)} work")
        assert not open_ and not broken, (open_, broken)
        assert refused["MPTCP 2"] == "EPROTONOSUPPORT"  # from which programs fall back to TCP


REFUSALS = ("EPROTONOSUPPORT", "EPERM", "ENOPROTOOPT")


@case(
    "K11",
    "",
    expect="rtnetlink is asked, and changes nothing, whoever owns the namespace; no other netlink family",
)
def test_rtnetlink_answers_and_changes_nothing(worker: PrivateWorker, happened: Happened) -> None:
    def ask_and_change(event: Any) -> Any:
        def send(kind: int, flags: int, body: bytes) -> Any:
            """The type of the answer, or the errno's name that it carries."""
            with socket.socket(16, socket.SOCK_RAW, 0) as netlink:
                netlink.settimeout(5)
                netlink.send(struct.pack("=IHHII", 16 + len(body), kind, 1 | flags, 1, 0) + body)
                answer = netlink.recv(1 << 16)
            answered = struct.unpack_from("=H", answer, 4)[0]
            if answered != 2:
                return answered
            error = -struct.unpack_from("=i", answer, 16)[0]
            return name_of(error) if error else "ok"

        def to_another(port: int) -> None:
            with socket.socket(16, socket.SOCK_RAW, 0) as netlink:
                netlink.sendto(struct.pack("=IHHII", 16, 16, 1, 1, 0), (port, 0))

        families = {protocol: outcome(socket.socket, 16, 3, protocol) for protocol in range(1, 33)}
        change = {kind: send(kind, 4, bytes(64)) for kind in range(16, 128) if kind & 3 != 2}
        names = [name for _, name in socket.if_nameindex()]
        dumps = {kind: send(kind, 0x300, bytes([0] * 16)) for kind in (18, 22, 26)}
        down = send(19, 4, struct.pack("=BBHiII", 0, 0, 0, 1, 0, 1))
        address = struct.pack("=BBBBI", 2, 32, 0, 0, 1) + struct.pack("=HH4s", 8, 2, bytes([10, 1, 2, 3]))
        added = send(20, 4 | 0x400, address)
        elsewhere = [outcome(to_another, port) for port in (1, 2, 1000)]
        return families, change, names, dumps, down, added, elsewhere

    mine = {name for _, name in socket.if_nameindex()}
    seen = {
        "host": attack(worker, ask_and_change),
        "none": attack(worker, ask_and_change, network="none"),
        "Zygote": in_zygote(worker, ask_and_change),
    }
    for subject, (families, change, names, dumps, down, added, elsewhere) in seen.items():
        happened(
            f"{subject}: interfaces {names}, dumps {dumps}; {len(change)} kinds of change: {', '.join(set(change.values()))};"
            f" other families {', '.join(sorted(set(families.values())))}"
        )
        assert set(families.values()) == {"EPROTONOSUPPORT"}, families
        assert set(change.values()) <= {"EPERM", "ENOTSUP"} and change["16"] == change["24"] == "EPERM", change
        assert down == added == "EPERM", (down, added)
        assert set(names) == ({"lo"} if subject == "none" else mine) and dumps["18"] == 16, (names, dumps)
        assert "ok" not in elsewhere, elsewhere


FLAGS = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
USER, NET = 0x10000000, 0x40000000
FORKS = {USER, 0x3C000000}
"""What Zygotes with packages clone: a Zygote, a sandbox."""


@case(
    "K10",
    "a package being imported clones all 127 sets of namespaces, and uses the capabilities of those that it gets",
    expect="EPERM but for the two sets that forks need, which lead to no network namespace, packet socket or netfilter",
)
def test_a_package_makes_no_namespace_but_those_of_forks(worker: PrivateWorker, happened: Happened) -> None:
    def clone_them(event: Any) -> Any:
        import itertools

        def inside() -> dict[str, Any]:
            """As root of a user namespace, with every capability in it."""
            zeros = bytes(64)
            answer = {
                "capabilities": read("/proc/self/status").decode().partition("CapEff:")[2].split()[0],
                "packet socket": outcome(lambda: socket.socket(17, 3, 0).close()),
                "raw socket": outcome(lambda: socket.socket(2, 3, 255).close()),
                "netfilter's netlink": outcome(lambda: socket.socket(16, 3, 12).close()),
                "unshare net": refusal(272, 0x40000000),
                "mount": refusal(165, b"x\0", b"/tmp\0", b"tmpfs\0", 0, 0),
            }
            with socket.socket() as sock:
                answer["iptables"] = outcome(sock.getsockopt, 0, 64, 84)
                answer["iptables' table"] = outcome(sock.setsockopt, 0, 64, zeros)
                answer["ip6tables"] = outcome(sock.setsockopt, 41, 64, zeros)
            for more in (0x40000000, 0x50000000, 0x7C000000, 0x20000):
                answer[f"clone {more:#x}"] = in_child(refusal, 56, more | 17, 0, 0, 0, 0)
            return answer

        def in_namespaces(flags: int) -> Any:
            taken, given = os.pipe()
            pid, error = syscall(56, flags | 17, 0, 0, 0, 0)
            if pid == 0:
                try:
                    os.write(given, repr(inside()).encode())
                finally:
                    os._exit(0)
            os.close(given)
            if pid < 0:
                os.close(taken)
                return error
            with open(taken, "rb") as pipe:
                return eval(pipe.read())

        def leave_the_tree() -> None:
            """Imports run in a tree of their own, and a chrooted process may make no user namespace (user_namespaces(7)). The
            Zygote keeps a descriptor of the farm's root, by which a package gets out of that."""
            for fd in map(int, os.listdir("/proc/self/fd")):
                try:
                    os.fchdir(fd)
                    os.chroot(".")
                except OSError:
                    continue
                if in_child(refusal, 56, 0x10000000 | 17, 0, 0, 0, 0) == "ok":
                    return

        def clone_all() -> Any:
            leave_the_tree()
            flags, forks, _ = event
            sets = [sum(chosen) for size in range(1, 8) for chosen in itertools.combinations(flags, size)]
            tried = {each: in_child(refusal, 56, each | 17, 0, 0, 0, 0) for each in sets}
            clone3 = {each: refusal(435, struct.pack("8Q", each, 0, 0, 0, 17, 0, 0, 0), 64) for each in sets}
            return list(tried.items()), sorted(set(clone3.values())), [in_namespaces(each) for each in forks]

        # A Zygote whose working directory is another one may not serve, and nobody would learn what it has seen.
        return in_child(clone_all, seconds=event[2])

    tried, clone3, inside = in_zygote(worker, clone_them, (FLAGS, sorted(FORKS), 10.0 * SLOWER))
    made = {flags for flags, answer in tried if answer == "ok"}
    refused = {answer for flags, answer in tried if flags not in FORKS}
    used = {name: answer for each in inside for name, answer in each.items() if name != "capabilities"}
    happened(
        f"{len(tried)} sets: made {sorted(map(hex, made))}, else {', '.join(refused)}; clone3 {', '.join(clone3)}; in them"
        f" {inside[0]['capabilities']} and {', '.join(sorted(set(used.values())))}"
    )
    assert made == FORKS and refused == {"EPERM"} and clone3 == ["ENOSYS"]
    for each in inside:
        assert not [name for name, answer in each.items() if answer == "ok"], each
    worker.deploy(
        "none", "import socket\ndef f(event): return [name for _, name in socket.if_nameindex()]\n", network="none"
    )
    assert worker.call("none") == ["lo"]
