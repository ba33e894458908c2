"""A thread in a network namespace of its own: what takes milliseconds of netlink runs there, and not on the event loop.

Owns the thread; the namespace lives as long as it, or as somebody holds a descriptor. Processes that the thread starts are
born in it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sockd.linux import syscalls
from sockd.linux.network.network_namespaces import enter

T = TypeVar("T")
NFT = "nft"
NFT_DEADLINE_S = 30.0
_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


class NamespaceThread:
    """`close` ends the thread, after what it was asked for before."""

    def __init__(self, namespace: int | None = None) -> None:
        """Args: namespace: to be entered, used until the first `run` has ended; None: a new one."""
        initializer = (
            (lambda: syscalls.unshare(syscalls.CLONE_NEWNET)) if namespace is None else lambda: enter(namespace)
        )
        self._executor = ThreadPoolExecutor(1, "network", initializer)

    async def run(self, call: Callable[..., T], *arguments: object) -> T:
        """`call(*arguments)` in the thread, in the order in which it was asked for; a cancelled one is run all the same.

        Raises: whatever it raises; BrokenThreadPool: the thread could not enter its namespace."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments))

    def close(self) -> None:
        self._executor.shutdown()


def apply_rules(text: str, *, check: bool = False) -> None:
    """Have nft(8) obey a text, all of it or nothing, in the calling thread's namespace.

    Args: check: the kernel only says whether it would.
    Raises: FileNotFoundError: nft is not installed; OSError: the kernel refused the rules."""
    done = subprocess.run(
        [NFT, *(["-c"] if check else []), "-f", "-"],
        input=text,
        text=True,
        capture_output=True,
        timeout=NFT_DEADLINE_S,
        env={"PATH": _PATH},
    )
    if done.returncode:
        raise OSError(f"nft: {done.stderr.strip()[:500]}")


def listed(table: str) -> str:
    """A table of the family ip as nft(8) prints it; empty: there is none. Raises: OSError."""
    command = [NFT, "list", "table", "ip", table]
    return subprocess.run(command, text=True, capture_output=True, timeout=NFT_DEADLINE_S, env={"PATH": _PATH}).stdout


def have_nft() -> bool:
    """Whether nft(8) is installed."""
    return any(os.access(os.path.join(place, NFT), os.X_OK) for place in _PATH.split(":"))
