"""Cache nodes as processes on loopback, real ones and such as lie."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sockd.images.caches import node, stripes
from sockd.images.caches.node_store import Framed, NodeStore
from sockd.images.chunks.chunk import CHUNK_BYTES

REPO = Path(__file__).parents[3]


class CacheNode:
    """One node's process. It can be killed, and started again at the same address."""

    def __init__(self, *options: str, lies: bool = False, command: Sequence[str] = ()) -> None:
        """Args: command: what to run instead of a node."""
        module = "tests.support.images.cache_nodes" if lies else "sockd.images.caches.node"
        self._command = [*(command or (sys.executable, "-m", module)), *options]
        self.address = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Returns when it listens."""
        self.begin()
        self.wait_listening()

    def begin(self) -> None:
        """Start the process without waiting for it."""
        command = [*self._command, "--listen", self.address]
        self._process = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True)

    def wait_listening(self) -> None:
        """Returns when it listens."""
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("cache node on "), line
        self.address = line.split()[-1]

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait(self) -> None:
        """Until it has ended by itself."""
        assert self._process is not None
        self._process.communicate()

    def kill(self) -> None:
        """End it, if it runs, and forget what it had in memory."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@contextmanager
def cache_nodes(count: int, *options: str, lying: int = 0) -> Iterator[list[CacheNode]]:
    """Running nodes, of which the first `lying` lie."""
    with ExitStack() as stack:
        nodes = [CacheNode(*options, lies=number < lying) for number in range(count)]
        for each in nodes:
            stack.callback(each.kill)
            each.begin()
        for each in nodes:
            each.wait_listening()
        yield nodes


def addresses(nodes: list[CacheNode]) -> list[str]:
    return [each.address for each in nodes]


class LyingStore(NodeStore):
    """Returns well-formed stripes with other data."""

    def get_nowait(self, key: bytes) -> Framed | None:
        framed = super().get_nowait(key)
        if framed is None:
            return None
        stripe = stripes.parse(framed, max_chunk_bytes=CHUNK_BYTES)
        return stripes.framed(stripe.number, stripe.chunk_bytes, bytes(stripe.data)[::-1])


def run_lying_node(run: Callable[[], None]) -> None:
    """The command line of a node, with stores that lie."""
    node.NodeStore = LyingStore  # type: ignore[attr-defined]
    run()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        run_lying_node(node.main)
