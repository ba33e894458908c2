"""The life of a daemon: the worker with its ports open, from `sockd up` to SIGTERM, or to the worker that follows.

Owns the worker, its servers and the process's signals. SIGTERM and SIGINT drain: no new request, those under way end, then
everything is taken down, upper layers first. SIGKILL needs nothing: the next start finds the cgroups and the lock, and everything
else went with the process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from sockd.base.config import Config
from sockd.http.server.listening.inherited import Inherited
from sockd.http.server.listening.sockets import url_of
from sockd.observe.observations import Observations
from sockd.worker.asynchronous import StoredEvents
from sockd.worker.builders.api_parts import ApiParts
from sockd.worker.daemon import Daemon
from sockd.worker.life.drain import Drain
from sockd.worker.life.ending import Ended, Endings, followed, named_sockets, until_ended
from sockd.worker.life.handover import HandoverSocket
from sockd.worker.life.notify import READY, notify
from sockd.worker.life.takeover import Predecessor
from sockd.worker.listeners import Guards, Listeners, Servers, open_without_key
from sockd.worker.state_dir import HISTORY, StateDir
from sockd.worker.worker import Worker

UMASK = 0o022
"""What is secret has a mode of its own; the rest is read by confined processes, which are other users. Functions inherit it."""


async def would_start() -> str:
    """Say nothing against starting the worker again."""
    return ""


async def serve(
    config: Config,
    inherited: Inherited | None = None,
    predecessor: Predecessor | None = None,
    why_not_again: Callable[[], Awaitable[str]] = would_start,
) -> Ended:
    """Run a daemon until a signal, the end of the farm, or the worker that takes over.

    Args:
        inherited: listening sockets that are there already;
        predecessor: the worker that gave them, notified when this one serves;
        why_not_again: says why the worker that is installed now would not start, and this one is to serve on; empty: it would.
    Raises: SockdError that says what to do, before anything is served."""
    os.umask(UMASK)
    inherited = inherited or Inherited()
    endings = Endings()
    guards = Guards.of(config)
    async with AsyncExitStack() as stack:
        state = StateDir.open(Path(config.state_dir))
        stack.callback(state.close)
        worker = await Worker.build(config, state, stack, lambda: endings.stop(1))
        observations = Observations.open(config, state.path / "logs", worker.live_output, state.path / HISTORY)
        stack.push_async_callback(observations.aclose)
        worker.functions.failed_inits.listeners.append(observations.note_failed_init)
        worker.services.log_listeners.append(observations.note_service_log)
        stored_events = await StoredEvents.open(config, state.path, is_first=not worker.functions.registry.list())
        stack.push_async_callback(stored_events.backend.aclose)
        daemon = Daemon(worker, observations, stored_events)
        stack.push_async_callback(daemon.later.aclose)
        await worker.rebuild_zygotes()
        parts = await ApiParts.open(worker, stored_events, stack)
        listeners = Listeners(daemon, guards, config, state, parts, inherited, stack)
        servers = await listeners.open(worker.ports, worker.networks)
        endings.watch_stops()
        handover = HandoverSocket(state.path, endings.hand_over)
        stack.callback(handover.close)
        worker.open_engine(servers.ports)
        preloading = asyncio.create_task(worker.preload())
        worker.latency.serving_begun()
        daemon.later.start()
        _tell(config, daemon, worker, servers)
        notify(READY)
        if predecessor is not None:
            predecessor.tell_serving()
        drain = Drain(daemon, servers.all, servers.managing, config.http.drain_s)
        ending, kept = await until_ended(
            endings, drain, lambda: named_sockets(servers.all, inherited.are_kept), why_not_again
        )
        preloading.cancel()
        if ending.status:
            print("the farm ended by itself; start sockd again", file=sys.stderr)
        if kept or inherited.are_kept:
            await drain.leave()
        else:
            if not ending.status:
                await daemon.leave_group()
            await drain.finish()
    return await followed(ending, kept, endings)


def _tell(config: Config, daemon: Daemon, worker: Worker, servers: Servers) -> None:
    """Print where the worker serves, and for whom."""
    print(f"sockd is listening on {daemon.url}", flush=True)
    if worker.latency.notice:
        print(worker.latency.notice, flush=True)
    if servers.keyed is not None:
        where = url_of(config.management.listen, servers.keyed.port)
        print(f"those with a key manage this worker at {where}", flush=True)
    if open_to_all := open_without_key(config.http):
        print(f"without a key, each client that reaches this address may use {open_to_all}", flush=True)
