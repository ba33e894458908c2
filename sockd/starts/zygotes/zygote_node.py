"""One node of the Zygote tree: a Zygote, its packages, its spares, and its use.

Owns the Zygote and the spares. The policies use its start rate and saved time.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol
from weakref import WeakKeyDictionary

from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.program import HOST_LINEAGE, OWN, Lineage, Network
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.starts.zygotes.eviction import NodeStats
from sockd.starts.zygotes.rate import RATE_TAU_S, DecayingRate
from sockd.starts.zygotes.top_levels.soundness import ImportView, Preimported, difference
from sockd.starts.zygotes.top_levels.top_level import STANDARD_LIBRARY_WORDS

SPARES_TAU_S = 10.0


class Verifies(Protocol):
    """Finds out whether a start from a node is like a start of a version's own."""

    def unverified(self, node: ZygoteNode, view: ImportView) -> str:
        """Why the node must not serve a version, though its imports saw nothing that the version has otherwise; empty: it may."""


@dataclass(eq=False)
class ZygoteNode:
    """A serving node. `close` ends its Zygote and its spares; sandboxes that were leased from it live on."""

    zygote: Zygote
    packages: frozenset[str]
    """Keys of the distributions that it has imported from."""
    parent: ZygoteNode | None
    imports: frozenset[str] = frozenset()
    """What it has imported ahead, as the policies know it; its parent had some of it."""
    lineage: Lineage = HOST_LINEAGE
    """The lineage of the functions that the node serves: its Zygote's."""
    shared: Preimported = field(default_factory=Preimported)
    """What its imports saw: which functions it may serve."""
    verdicts: MutableMapping[ImportView, str] = field(default_factory=WeakKeyDictionary)
    """Why it must not serve a function, or "": worked out once for each version."""
    verifier: Verifies | None = None
    """Asked about each version that its imports would not refuse; None: all of those may be served."""
    program: str = ""
    """The version that it was made for (`ImportView.program`)."""
    function: str = ""
    """The name of that version's function."""
    unique_bytes: int = 0
    """Memory that was its alone when it began to serve, and what it shared with its parent and others."""
    shared_bytes: int = 0
    seconds_saved: float = 0.0
    """Import time that a start from it is saved, against a start from the node it was forked from."""
    created_s: float = field(default_factory=time.monotonic)
    last_used_s: float = field(default_factory=time.monotonic)
    hits: int = 0
    rate: DecayingRate = field(default_factory=lambda: DecayingRate(RATE_TAU_S, now_s=time.monotonic()))
    """How often it is worth having: what evicting it would cost, over minutes."""
    lately: DecayingRate = field(default_factory=lambda: DecayingRate(SPARES_TAU_S, now_s=time.monotonic()))
    """How often it is used right now: how many spares it keeps, over seconds."""
    spares: deque[Sandbox] = field(default_factory=deque)
    spares_coming: int = 0

    @property
    def id(self) -> str:
        return self.zygote.name

    @cached_property
    def identity(self) -> str:
        """What a fork of it has from it, by digest: the same for a Zygote of a later daemon that has imported the same."""
        shared = self.shared
        groups = [(name, sorted(modules)) for name, modules in shared.groups]
        parts = shared.order, groups, sorted(shared.loaded), sorted(shared.packages), self.lineage
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    @property
    def words(self) -> str:
        """The keys of its packages; of a Zygote without any, what it has imported; empty: it is a root."""
        return ",".join(sorted(self.packages)) or (STANDARD_LIBRARY_WORDS if self.imports else "")

    @property
    def network(self) -> Network:
        """The network of the functions that the node serves."""
        return self.lineage.network

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1

    def refusal(self, view: ImportView) -> str:
        """Why it must not serve a function that has this view; empty: it may (`soundness`)."""
        verdict = self.verdicts.get(view)
        if verdict is None:
            verdict = difference(self.shared, view)
            if not verdict and self.verifier is not None:
                verdict = self.verifier.unverified(self, view)
            self.verdicts[view] = verdict
        return verdict

    def refusals(self) -> list[str]:
        """The reasons for which it did not serve functions that import all of what it has."""
        asked = {view: reason for view, reason in self.verdicts.items() if reason and view.top is not None}
        refused = {str(reason) for view, reason in asked.items() if view.top and self.imports <= view.top.asked_for}
        return sorted(refused)

    def hit(self, now_s: float) -> None:
        """One sandbox was started from it."""
        self.hits += 1
        self.last_used_s = now_s
        self.rate.hit(now_s)
        self.lately.hit(now_s)

    def take_spare(self) -> Sandbox | None:
        """The oldest ready spare, now the caller's."""
        if not self.spares:
            return None
        spare = self.spares.popleft()
        spare.on_death = lambda sandbox: None
        return spare

    def add_spare(self, spare: Sandbox) -> None:
        """Keep a ready spare until it is taken, dropped, or dies."""
        self.spares.append(spare)
        spare.on_death = self._forget_spare

    def drop_spares(self, keep: int = 0) -> None:
        """Destroy spares beyond `keep`."""
        while len(self.spares) > keep:
            self.spares[-1].destroy()

    def stats(self, now_s: float, *, is_alone: bool = False) -> NodeStats:
        """As the eviction policies see it. Args: is_alone: there is no other of its lineage."""
        return NodeStats(
            id=self.id,
            parent_id=self.parent.id if self.parent else None,
            imports=self.imports,
            unique_bytes=self.unique_bytes,
            recent_rate=self.rate.at(now_s),
            import_seconds_saved=self.seconds_saved,
            last_used_s=self.last_used_s,
            created_s=self.created_s,
            hits=self.hits,
            lineage=self.lineage,
            revivable=is_alone and self.lineage.interpreter != OWN,
        )

    def close(self) -> None:
        """Safe to call twice."""
        self.drop_spares()
        self.zygote.close()

    def _forget_spare(self, spare: Sandbox) -> None:
        if spare in self.spares:
            self.spares.remove(spare)
