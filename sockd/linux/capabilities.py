"""Which capabilities the calling thread has (capabilities(7))."""

from __future__ import annotations

CAP_NET_ADMIN = 12


def has(number: int) -> bool:
    """Whether a capability is effective in the thread's user namespace."""
    with open("/proc/thread-self/status") as status:
        effective = next(line for line in status if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> number & 1)
