"""Many clients at once, who go on whatever they are answered: what came when, and how much of it failed.

Unlike `client.closed_loop`, an answer that is not 200 is a measurement here, and no reason to stop.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.harness.client import BadAnswer, Client

WINDOW_S = 0.5
"""Over which a rate is taken."""


@dataclass(slots=True)
class Burst:
    """The answers to one burst."""

    seconds: float
    """How long requests were sent."""
    ok_s: list[float] = field(default_factory=list)
    """When answers with 200 came, in seconds since the first request, in order."""
    failures: Counter[str] = field(default_factory=Counter)
    """Other answers, by status and text."""

    @property
    def failed(self) -> int:
        return self.failures.total()

    @property
    def first_s(self) -> float:
        """When the first answer with 200 came; if none did, how long it was waited for."""
        return self.ok_s[0] if self.ok_s else self.seconds

    def rate(self, since_s: float = 0.0) -> float:
        """Answers with 200 per second from then on, while requests were sent."""
        count = sum(since_s <= moment < self.seconds for moment in self.ok_s)
        return count / (self.seconds - since_s)

    def reached_s(self, rate: float) -> float:
        """From when on the rate was reached for a window of time; if it never was, the length of the burst."""
        needed = max(1, round(rate * WINDOW_S))
        for first, last in zip(self.ok_s, itertools.islice(self.ok_s, needed - 1, None), strict=False):
            if last - first <= WINDOW_S:
                return first
        return self.seconds


def burst(host: str, port: int, clients: int, requests: Iterable[bytes], seconds: float) -> Burst:
    """Send requests for so long, from so many connections that each send the next when they have an answer.

    Every request that was sent is waited for."""
    found = Burst(seconds)
    waiting = iter(requests)
    with ExitStack() as stack:
        poll = stack.enter_context(contextlib.closing(select.epoll()))
        begun = time.perf_counter()
        by_fd = {}
        for _ in range(clients):
            client = stack.enter_context(Client(host, port, timeout_s=300))
            client.send(next(waiting))
            by_fd[client.socket.fileno()] = client
            poll.register(client.socket.fileno(), select.EPOLLIN)
        while by_fd:
            for fd, client in answered(poll, by_fd):
                try:
                    answer = client.receive()
                except (BadAnswer, OSError) as error:
                    found.failures[f"no answer: {error}"] += 1
                    poll.unregister(fd)
                    del by_fd[fd]
                    continue
                if answer is None:
                    continue
                now_s = time.perf_counter() - begun
                if answer.status == 200:
                    found.ok_s.append(now_s)
                else:
                    found.failures[f"{answer.status} {answer.body[:200].decode(errors='replace')}"] += 1
                if now_s < seconds and not answer.last:
                    client.send(next(waiting))
                else:
                    poll.unregister(fd)
                    del by_fd[fd]
    return found


def answered(poll: select.epoll, by_fd: dict[int, Client]) -> Iterator[tuple[int, Client]]:
    """The clients for which something has come."""
    for fd, _ in poll.poll():
        yield fd, by_fd[fd]
