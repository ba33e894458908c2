"""Breaks of what workers of a group owe each other and the proxy in front of them."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from sockd.client.cli.cluster import haproxy
from sockd.events import membership
from sockd.events.postgres import attempts as postgres_attempts
from sockd.events.postgres import events as postgres_events
from sockd.http.server.listening import inherited
from sockd.worker import group_cache
from sockd.worker.for_apis import group
from tests.support.breaks.breaking import breaks, patch_agent
from tests.support.servers import postgres_server


@breaks("any-owner")
def any_owner() -> None:
    """A worker changes events whatever worker has them, and in whatever epoch."""
    whose, anyones = "worker = $2 AND epoch = $3", "($2::text, $3::bigint) IS NOT NULL"
    for module, mine in ((postgres_events, postgres_events.MINE), (postgres_attempts, postgres_attempts.THESE)):
        for name, query in list(vars(module).items()):
            if isinstance(query, str) and mine in query:
                setattr(module, name, query.replace(mine, mine.replace(whose, anyones)))


@breaks("no-notice")
def no_notice() -> None:
    """A worker that is stopped refuses requests at once."""

    async def give_notice(self: group.Group, notice_s: float) -> None:
        pass

    group.Group.give_notice = give_notice  # type: ignore[method-assign]


@breaks("closed-last")
def closed_last() -> None:
    """The listening socket of a killed worker is closed after its connections: another process has it for two seconds more."""
    held = (
        "import os, select, sys; select.select([os.pidfd_open(int(sys.argv[1]))], [], []); select.select([], [], [], 2)"
    )

    def closed_last(sock: socket.socket) -> socket.socket:
        subprocess.Popen(
            [sys.executable, "-c", held, str(os.getpid())], pass_fds=[sock.fileno()], start_new_session=True
        )
        return sock

    inherited.closed_first = closed_last  # type: ignore[attr-defined]


@breaks("endless-wait", in_tests=True)
def endless_wait() -> None:
    """The proxy waits for the answers of a worker that is cut off as long as for any other."""
    haproxy.SILENT_S = 1000


@breaks("hasty-judge")
def hasty_judge() -> None:
    """A worker judges the others with its first report after a gap."""
    membership.GAP = math.inf


@breaks("early-answer", in_tests=True)
def early_answer() -> None:
    """PostgreSQL answers before what it acknowledges is in its log, where it comes when a page is full or 10 s have passed."""
    postgres_server.FAST = (*postgres_server.FAST, "-c", "synchronous_commit=off", "-c", "wal_writer_delay=10s")


@breaks("believed-nodes")
def believed_nodes() -> None:
    """A worker takes what cache nodes send it for the chunk that it has asked for, also if a busy host delays that."""
    patch_agent("images/caches/l2_client.py", "is_named(name, chunk, blake3_digest=digest.of(chunk))", "True")
    patch_agent("images/caches/l2_client.py", "\nDEADLINE_S = 0.1\n", "\nDEADLINE_S = 1.0\n")


@breaks("first-nodes")
def first_nodes() -> None:
    """A worker goes on with the cache nodes that it has read of first, whichever workers come and go."""
    follow = group_cache.GroupCache.follow

    def follow_once(self: group_cache.GroupCache, nodes: Mapping[str, str]) -> None:
        if len(self._nodes) < 2:
            follow(self, nodes)

    group_cache.GroupCache.follow = follow_once  # type: ignore[method-assign]
