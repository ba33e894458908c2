"""The pairs of a Zygote and a version that it must not serve: the reason, and until when. Owns nothing."""

from __future__ import annotations

from dataclasses import dataclass

from sockd.starts.packages.distribution import name_of
from sockd.starts.zygotes.top_levels.refusals import Refusal, Refusals
from sockd.starts.zygotes.top_levels.soundness import ImportView
from sockd.starts.zygotes.verification.trials import Key
from sockd.starts.zygotes.zygote_node import ZygoteNode


@dataclass(frozen=True, slots=True)
class Refused:
    """A Zygote and a version that it must not serve; `refusal` says why and until when."""

    packages: frozenset[str]
    owner: str
    """The distribution whose module differs; empty: it is not known."""
    refusal: Refusal


class RefusedPairs:
    """`refuse` a pair; `find` it until its time is over or it is forgiven."""

    def __init__(self) -> None:
        self.refusals = Refusals()
        self._refused: dict[Key, Refused] = {}

    def refuse(self, key: Key, node: ZygoteNode, reason: str, *, owner: str = "", by_deadline: bool = False) -> Refusal:
        """Refuse a pair; one that is refused already stays refused until the time that was known."""
        packages = ", ".join(sorted(map(name_of, node.packages))) or "the standard library"
        refusal = self.refusals.refuse("/".join(key), reason, node=packages, by_deadline=by_deadline)
        self._refused = {each: pair for each, pair in self._refused.items() if self.refusals.is_refused("/".join(each))}
        self._refused[key] = Refused(node.packages, owner, refusal)
        return refusal

    def find(self, node: ZygoteNode, view: ImportView) -> Refused | None:
        """Find a pair that is refused now."""
        refused = self._refused.get((node.identity, view.program)) if self._refused else None
        return refused if refused is not None and self.refusals.is_refused(refused.refusal.key) else None

    def current(self) -> list[Refused]:
        """The pairs that are refused now, the oldest first."""
        keys = {"/".join(key): key for key in self._refused}
        return [self._refused[keys[entry.key]] for entry in self.refusals.list() if entry.key in keys]

    def forgive(self, key: Key) -> str:
        """Forget a pair's refusal, if there is one. Returns: the distribution that differed; empty: none is known."""
        refused = self._refused.pop(key, None)
        if refused is None:
            return ""
        self.refusals.forgive("/".join(key))
        return refused.owner or min(refused.packages, default="")

    def forgive_all(self, name: str | None) -> list[str]:
        """Forget the refusals of Zygotes that hold a distribution, or of all; the distributions that differed."""
        keys = [
            key
            for key, refused in self._refused.items()
            if name is None or any(name in (each, name_of(each)) for each in refused.packages)
        ]
        return [self.forgive(key) for key in keys]
