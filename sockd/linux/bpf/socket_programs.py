"""The eBPF programs that count sockets, run at socket(2), after bind(2), at TCP's events, and when a socket is closed; and the
one by which a sandbox reads how often its sockets may have sent something, run at getsockopt(2).

Pure: instructions, for `bpf.load`. Their maps: cgroup id -> index of its account; the accounts, an array of `FIELDS` numbers of
32 bits; and with each socket what it is counted in (`_OWN` and so on).
"""

from __future__ import annotations

from sockd.linux.bpf import assembler as asm
from sockd.linux.bpf.assembler import R0, R1, R2, R3, R4, R6, R7, R8, R9, R10, Helper, Instruction

WORKER = 1
"""The account in which everything is counted."""
RESERVED = 8
"""Open sockets up to which a sandbox is not refused because others have filled the worker's account."""
FIELDS = 8
"""The fields of an account; two are free."""
OPEN, MOST, FUNCTION, PORTS, EXPIRED, USES = range(6)
"""Sockets that are open, their limit, the index of the function's account; TCP ports taken so far, and those of them that are
surely free again, which the daemon writes; how often something may have left by a socket so far, which only grows: each
connect, listen and accepted connection of TCP, each other IP socket, each Unix socket that was connected."""

STORAGE_BYTES = 24
_OWN, _OF_FUNCTION, _COOKIE, _STATE = 0, 4, 8, 16
"""With a socket: the two accounts, the cookie of the socket that this was written for (an accepted one begins with a copy of
its listener's), and how far it is."""
_PORT_TAKEN, _ACCEPTED, _GONE = 1, 2, 3
_KEY = -40
"""On the stack: the index of the account that is looked up."""
_TYPE, _SOCK_STREAM = 8, 1
_PROTOCOL, _TCP = 12, 6
"""Offsets in struct bpf_sock, and TCP's."""
_OP, _NEW_STATE, _SK = 0, 8, 184
"""Offsets in struct bpf_sock_ops: what happened, its second argument, the socket."""
_CONNECT, _PASSIVE_ESTABLISHED, _STATE_CHANGED, _LISTEN, _TCP_CLOSE = 3, 5, 10, 11, 7
_TELL_STATES = 1 << 2
"""BPF_SOCK_OPS_STATE_CB_FLAG."""
_OPTVAL, _OPTVAL_END, _LEVEL, _OPTNAME, _OPTLEN, _RETVAL = 8, 16, 24, 28, 32, 36
"""Offsets in struct bpf_sockopt."""
_MOST_BYTES = 4096
"""The kernel refuses a longer option with EFAULT after a program that does not set its length to 0, which means: unchanged."""

Code = list[Instruction | str]


def count(cgroups_fd: int, accounts_fd: int, storage_fd: int, refusal: int) -> Code:
    """At socket(2): refuse if one of the three accounts is full, or else store with the socket what it is counted in, and
    add 1 to each. A full worker refuses only who has `RESERVED` already: others cannot take a sandbox's last sockets.
    What its own account does not limit is counted as used, and nowhere else.

    A socket of TCP is used when it connects or listens (`follow_connections`), any other from now on.

    Args: refusal: the errno; 0: what the kernel says by itself."""
    own = -STORAGE_BYTES
    code: Code = [asm.copy(R6, R1), *_account(cgroups_fd, accounts_fd), asm.load32(R1, R10, _KEY)]
    code += [asm.store32(R10, own + _OWN, R1), *_room(accounts_fd, R7, in_ports=False)]
    code += [asm.jump_if_all_ones32(R2, "used")]
    code += [asm.load32(R1, R7, 4 * FUNCTION), asm.store32(R10, own + _OF_FUNCTION, R1)]
    code += [
        *_room(accounts_fd, R8),
        asm.move(R1, WORKER),
        *_room(accounts_fd, R9, full="worker is full"),
        asm.jump("room"),
    ]
    code += ["worker is full", asm.load32(R1, R7, 4 * OPEN), asm.move(R2, RESERVED)]
    code += [asm.jump_if_not_less(R1, R2, "refuse"), "room"]
    code += [asm.copy(R1, R6), asm.call(Helper.GET_SOCKET_COOKIE), asm.store64(R10, own + _COOKIE, R0)]
    code += [asm.move(R1, 0), asm.store64(R10, own + _STATE, R1), asm.map_address(R1, storage_fd), asm.copy(R2, R6)]
    code += [*asm.stack_address(R3, own), asm.move(R4, 1), asm.call(Helper.SK_STORAGE_GET)]
    code += [asm.jump_if_equal(R0, 0, "refuse"), asm.move(R1, 1)]
    code += [asm.atomic_add32(account, 4 * OPEN, R1) for account in (R7, R8, R9)]
    code += [asm.load32(R1, R6, _PROTOCOL), asm.jump_if_equal(R1, _TCP, "allow"), "used", *_add_use(R7)]
    code += ["allow", *asm.leave(1), "refuse"]
    if refusal:
        code += [asm.move(R1, -refusal), asm.call(Helper.SET_RETVAL)]
    return [*code, *asm.leave(0)]


def note_unix(cgroups_fd: int, accounts_fd: int) -> Code:
    """At connect(2) and sendmsg(2) with an address, of Unix sockets: something may leave the cgroup by it."""
    return [*_account(cgroups_fd, accounts_fd), *_add_use(R0), "allow", *asm.leave(1)]


def tell_uses(cgroups_fd: int, accounts_fd: int, level: int, option: int) -> Code:
    """At getsockopt(2): the value of our own option is how often the calling process' cgroup has used sockets, as 32 bits.

    It is written in halves: to the verifier the option's buffer is a packet, which is aligned to 16 bits."""
    code: Code = [asm.copy(R6, R1), asm.load32(R1, R6, _LEVEL), asm.jump_if_equal(R1, level, "ours"), "others"]
    code += [asm.load32(R1, R6, _OPTLEN), asm.move(R2, _MOST_BYTES + 1), asm.jump_if_not_less(R1, R2, "long")]
    code += [asm.jump("allow"), "long", asm.move(R1, 0), asm.store32(R6, _OPTLEN, R1), asm.jump("allow")]
    code += ["ours", asm.load32(R1, R6, _OPTNAME), asm.jump_if_not_equal(R1, option, "others")]
    code += [*_account(cgroups_fd, accounts_fd), asm.load32(R7, R0, 4 * USES)]
    code += [asm.load64(R2, R6, _OPTVAL), asm.load64(R3, R6, _OPTVAL_END), asm.copy(R1, R2), asm.add_constant(R1, 4)]
    code += [asm.jump_if_greater(R1, R3, "allow"), asm.store16(R2, 0, R7), asm.shift_right(R7, 16)]
    code += [asm.store16(R2, 2, R7), asm.move(R1, 4)]
    code += [asm.store32(R6, _OPTLEN, R1), asm.move(R1, 0), asm.store32(R6, _RETVAL, R1)]
    return [*code, "allow", *asm.leave(1)]


def uncount(accounts_fd: int, storage_fd: int) -> Code:
    """When a socket's last descriptor is closed: take 1 from its accounts; an accepted one has its own end."""
    code: Code = [asm.copy(R6, R1), asm.copy(R2, R6), *_storage_of(storage_fd)]
    code += [asm.copy(R1, R6), asm.call(Helper.GET_SOCKET_COOKIE), asm.load64(R1, R8, _COOKIE)]
    code += [asm.jump_if_same(R0, R1, "mine"), asm.jump("done"), "mine", asm.move(R9, -1)]
    return [*code, *_add(accounts_fd, OPEN, own=True), "done", *asm.leave(1)]


def note_port(accounts_fd: int, storage_fd: int) -> Code:
    """After bind(2): a TCP port was taken."""
    code: Code = [asm.copy(R2, R1), asm.load32(R1, R1, _TYPE), asm.jump_if_equal(R1, _SOCK_STREAM, "tcp")]
    code += [asm.jump("done"), "tcp", *_storage_of(storage_fd), asm.move(R1, _PORT_TAKEN), asm.store32(R8, _STATE, R1)]
    return [*code, asm.move(R9, 1), *_add(accounts_fd, PORTS), "done", *asm.leave(1)]


def follow_connections(accounts_fd: int, storage_fd: int) -> Code:
    """At TCP's events: a listener that was not bound has taken a port; a connection that came in is open until it is closed.

    A connect(2) counts as a use before its first packet, a connection that comes in before it is accepted."""
    code: Code = [asm.copy(R6, R1), asm.load32(R7, R6, _OP)]
    code += [asm.jump_if_equal(R7, each, "ours") for each in (_CONNECT, _PASSIVE_ESTABLISHED, _LISTEN)]
    code += [asm.jump_if_not_equal(R7, _STATE_CHANGED, "done"), asm.load32(R1, R6, _NEW_STATE)]
    code += [asm.jump_if_not_equal(R1, _TCP_CLOSE, "done")]
    code += ["ours", asm.load64(R2, R6, _SK), asm.jump_if_equal(R2, 0, "done"), *_storage_of(storage_fd)]
    code += [asm.jump_if_equal(R7, _STATE_CHANGED, "closing"), asm.load32(R1, R8, _OWN), asm.store32(R10, _KEY, R1)]
    code += [*asm.lookup(accounts_fd, _KEY), asm.jump_if_equal(R0, 0, "done"), *_add_use(R0)]
    code += [asm.jump_if_equal(R7, _LISTEN, "listen"), asm.jump_if_equal(R7, _PASSIVE_ESTABLISHED, "accepted")]
    code += [asm.jump("done"), "closing", asm.load32(R1, R8, _STATE), asm.jump_if_not_equal(R1, _ACCEPTED, "done")]
    code += [asm.move(R1, _GONE), asm.store32(R8, _STATE, R1), asm.move(R9, -1), asm.jump("add")]
    code += ["accepted", asm.move(R1, _ACCEPTED), asm.store32(R8, _STATE, R1), asm.copy(R1, R6)]
    code += [asm.move(R2, _TELL_STATES), asm.call(Helper.SOCK_OPS_CB_FLAGS_SET), asm.move(R9, 1)]
    code += ["add", *_add(accounts_fd, OPEN, own=True), asm.jump("done")]
    code += ["listen", asm.load32(R1, R8, _STATE), asm.jump_if_equal(R1, _PORT_TAKEN, "done")]
    code += [asm.move(R1, _PORT_TAKEN), asm.store32(R8, _STATE, R1), asm.move(R9, 1), *_add(accounts_fd, PORTS)]
    return [*code, "done", *asm.leave(1)]


def _storage_of(storage_fd: int) -> Code:
    """R8 = what is stored with the socket in R2; go to "done" if nothing is."""
    code: Code = [asm.map_address(R1, storage_fd), asm.move(R3, 0), asm.move(R4, 0), asm.call(Helper.SK_STORAGE_GET)]
    return [*code, asm.jump_if_equal(R0, 0, "done"), asm.copy(R8, R0)]


def _add_use(account: int) -> Code:
    """Note in the account whose address is in a register that something may have left."""
    return [asm.move(R1, 1), asm.atomic_add32(account, 4 * USES, R1)]


def _account(cgroups_fd: int, accounts_fd: int) -> Code:
    """R0 = the account of the calling process' cgroup, whose index is at `_KEY` then; go to "allow" if it has none."""
    code: Code = [asm.call(Helper.GET_CURRENT_CGROUP_ID), asm.store64(R10, _KEY, R0), *asm.lookup(cgroups_fd, _KEY)]
    code += [asm.jump_if_equal(R0, 0, "allow"), asm.load32(R1, R0, 0), asm.store32(R10, _KEY, R1)]
    return [*code, *asm.lookup(accounts_fd, _KEY), asm.jump_if_equal(R0, 0, "allow")]


def _room(accounts_fd: int, account: int, *, in_ports: bool = True, full: str = "refuse") -> Code:
    """Put the account whose index is in R1 into a register, and its limit into R2; go to `full` if it is full.

    Args: in_ports: whether ports that were taken lately count as well."""
    code: Code = [asm.store32(R10, _KEY, R1), *asm.lookup(accounts_fd, _KEY), asm.jump_if_equal(R0, 0, "allow")]
    code += [asm.copy(account, R0), asm.load32(R1, account, 4 * OPEN)]
    if in_ports:
        code += [asm.load32(R2, account, 4 * PORTS), asm.load32(R3, account, 4 * EXPIRED)]
        code += [asm.subtract32(R2, R3), asm.add(R1, R2)]
    return [*code, asm.load32(R2, account, 4 * MOST), asm.jump_if_not_less(R1, R2, full)]


def _add(accounts_fd: int, field: int, *, own: bool = False) -> Code:
    """Add R9 to a field of the accounts that R8 points to; of the socket's own as well, if asked."""
    indices = [asm.load32(R1, R8, _OF_FUNCTION), asm.move(R1, WORKER)]
    code: Code = []
    for number, index in enumerate([asm.load32(R1, R8, _OWN), *indices] if own else indices):
        label = f"next-{field}-{number}"
        code += [index, asm.store32(R10, _KEY, R1), *asm.lookup(accounts_fd, _KEY), asm.jump_if_equal(R0, 0, label)]
        code += [asm.atomic_add32(R0, 4 * field, R9), label]
    return code
