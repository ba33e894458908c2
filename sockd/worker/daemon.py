"""The daemon: the worker as its APIs see it (`listeners` opens them, `life/run.py` is its life from start to end).

Owns the asynchronous invocations. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections import Counter

from sockd.functions.environments import Environments
from sockd.observe.observations import Observations
from sockd.worker.asynchronous import Asynchronous, StoredEvents
from sockd.worker.for_apis.calls import Calls
from sockd.worker.for_apis.group import About, Group
from sockd.worker.for_apis.managed_functions import ManagedFunctions
from sockd.worker.for_apis.managed_packages import ManagedPackages
from sockd.worker.for_apis.observed import Logs, Numbers, Traces
from sockd.worker.for_apis.status_views import watch
from sockd.worker.worker import Worker


class Daemon:
    """A `sockd.http.worker.Worker` of its parts, and a `Draining`."""

    def __init__(self, worker: Worker, observations: Observations, stored_events: StoredEvents) -> None:
        """Raises: BadConfig."""
        functions = worker.functions
        self._functions = functions
        self._observations = observations
        self._notice_s = worker.config.group.drain_notice_s
        self.url = ""
        """The address of the public port, when it is open."""
        watch(observations.metrics, worker)
        self.calls = Calls(functions, worker.services, worker.versions.canaries, worker.initscripts, observations)
        about = About(worker, self.calls, lambda: self.url)
        self.later = Asynchronous(worker, stored_events, self.calls.invoke, observations.metrics, about)
        peer_key = worker.group.peer_key if worker.group is not None else None
        self.group = Group(worker.config, self.later.membership, peer_key, self.calls)
        self.peer_key = peer_key
        """None: the worker is in no group."""
        self.events = self.later.events
        self.functions = ManagedFunctions(worker, self.later, observations)
        self.versions = worker.versions
        self.environments = Environments(functions.live, functions.changes)
        self.urls = worker.urls
        self.images = worker.images
        self.packages = ManagedPackages(worker)
        self.logs = Logs(functions.registry, observations)
        self.traces = Traces(observations)
        self.numbers = Numbers(worker, observations, self.later.status, lambda: self.url)

    def drain(self) -> None:
        """As `Draining.drain`."""
        self.calls.draining = True
        self.later.stop()
        self._functions.debugging.close()
        self._observations.logs.end_followers()

    async def leave_group(self) -> None:
        """Leave what comes to the others of the group, if there is one: begin no event, and have a proxy send them requests."""
        if self.later.membership is None:
            return
        await self.events.pause(0.0)
        await self.group.give_notice(self._notice_s)

    async def pause_events(self, deadline_s: float) -> None:
        """As `Draining.pause_events`."""
        await self.events.pause(deadline_s)

    def resume_events(self) -> None:
        """As `Draining.resume_events`."""
        self.events.resume()

    async def drained(self, deadline_s: float) -> None:
        """As `Draining.drained`."""
        await self._functions.live.allowances.drain(deadline_s)

    def under_way(self) -> Counter[str]:
        """As `Draining.under_way`."""
        return self._functions.live.allowances.under_way()
