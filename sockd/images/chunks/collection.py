"""What the garbage collector does next: a pure function of what the store holds.

    a retired root   copy one image that a reference names to the active root, or, when no reference names the root, expire it
    an expired root  delete a part of it, manifests before chunks, `grace_s` after it expired and while there is no alarm
    a deleted root   delete what a worker wrote that was slower than the collector

A manifest is written after its chunks and deleted before them: a manifest in a root means that its chunks are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sockd.images.chunks.layout import Image, Reference
from sockd.images.chunks.root_table import RootState, RootTable


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a store held; the table was read first, then the references, then the rest."""

    table: RootTable
    references: frozenset[Reference] = frozenset()
    manifests: Mapping[str, frozenset[Image]] = field(default_factory=dict)
    """By root."""
    alarms: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By root: the workers that read it when it was expired."""
    leftovers: frozenset[str] = frozenset()
    """Deleted roots that are not empty."""


@dataclass(frozen=True, slots=True)
class Migrate:
    """Copy an image's chunks, then its manifest."""

    image: Image
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Expire:
    root: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a part of an expired or a deleted root."""

    root: str


@dataclass(frozen=True, slots=True)
class Wait:
    """There is nothing to do now; `reasons` say what each root waits for."""

    reasons: tuple[str, ...] = ()


Action = Migrate | Expire | Delete | Wait


def next_action(held: Holdings, *, now_s: float, grace_s: float, failed: frozenset[Image] = frozenset()) -> Action:
    """POLICY: the oldest root first; copies before expiries before deletions; nothing is deleted while there is an alarm.

    Args: failed: images whose copy failed, which are not tried again now."""
    reasons = []
    for root in held.table.in_state(RootState.RETIRED):
        references = [each for each in held.references if each.root == root]
        if not references:
            return Expire(root)
        used = {each.image for each in references}
        missing = (used & _manifests(held, root)) - _manifests(held, held.table.active) - failed
        if missing:
            return Migrate(min(missing), root, held.table.active)
        workers = ", ".join(sorted({each.worker for each in references}))
        reasons.append(f"{root} is retired and has {len(used)} images that are used by {workers}")
        reasons += [f"{image.path} could not be copied from {root}" for image in sorted(used & failed)]
    expired = held.table.in_state(RootState.EXPIRED)
    if any(held.alarms.values()):
        readers = ", ".join(sorted(set[str]().union(*held.alarms.values())))
        return Wait((*reasons, f"nothing is deleted: {readers} has read an expired root"))
    for root in (*held.leftovers, *expired):
        if root in held.leftovers or now_s - held.table.roots[root].since_s >= grace_s:
            return Delete(root)
        left_s = grace_s - (now_s - held.table.roots[root].since_s)
        reasons.append(f"{root} has expired and is deleted in {left_s:.0f} s")
    return Wait(tuple(reasons))


def _manifests(held: Holdings, root: str) -> frozenset[Image]:
    return held.manifests.get(root, frozenset())
