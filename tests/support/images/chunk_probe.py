"""`benchmarks.instruments.chunk_probe` as a process of a test, with one protection taken away or whole.

python -m tests.support.images.chunk_probe NAME probe|node ...     the program without the protection NAME; "": with all
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from benchmarks.instruments import chunk_probe as probe
from sockd.images.caches import node
from tests.support.broken import BREAKS
from tests.support.images.cache_nodes import REPO


def command(broken: str, program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.support.images.chunk_probe", broken, program, *arguments]


class ChunkProbe:
    """The process. `begin` and `end` are the halves of `ask`."""

    def __init__(self, broken: str = "") -> None:
        self.process = subprocess.Popen(
            command(broken, "probe"), cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begin(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def end(self) -> Any:
        """The answer; an error of the probe is one of the test."""
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        assert not isinstance(answer, dict) or "error" not in answer, answer
        return answer

    def ask(self, do: str, **arguments: Any) -> Any:
        self.begin(do, **arguments)
        return self.end()

    def close(self) -> None:
        self.process.kill()
        with suppress(BrokenPipeError):
            self.process.communicate()


@contextmanager
def chunk_probe(broken: str = "") -> Iterator[ChunkProbe]:
    made = ChunkProbe(broken)
    try:
        yield made
    finally:
        made.close()


def main() -> None:
    """The program, after the break."""
    broken, program = sys.argv[1:3]
    del sys.argv[1:3]
    if broken:
        BREAKS[broken]()
    {"probe": probe.main, "node": node.main}[program]()


if __name__ == "__main__":
    main()
