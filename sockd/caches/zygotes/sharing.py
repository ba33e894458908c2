"""POLICY: which set of packages may be imported for which functions, as far as known before the import.

`closed` restricts a plan to complete sets: with each distribution those that it requires in the lock of every function that it
serves. `serves` predicts the result of `soundness` from the observations of earlier Zygotes with the same packages; an unknown
set is tried. Owns a bounded cache of both."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeVar

from sockd.caches.packages.distribution import name_of
from sockd.caches.packages.provided_names import Provided
from sockd.caches.zygotes.soundness import ImportView, Preimported, difference

MAX_KNOWN = 256
MAX_REMEMBERED = 4096

Keys = frozenset[str]
T = TypeVar("T")


class Sharing:
    """What one worker knows. Cheap to ask again; `forget` when a distribution is gone or may be imported after all."""

    def __init__(self, provided: Callable[[str], Provided], refused: Callable[[], Keys]) -> None:
        """Args: provided: what an installed distribution offers, by key; refused: distributions that no Zygote may import."""
        self._provided = provided
        self._refused = refused
        self._known: OrderedDict[Keys, Preimported] = OrderedDict()
        self._verdicts: dict[tuple[Keys, Keys], bool] = {}
        self._differing: dict[tuple[Keys, Keys], bool] = {}
        self._unfit: dict[tuple[Keys, Keys, Keys], Keys] = {}

    def learn(self, shared: Preimported) -> None:
        """A Zygote has imported these."""
        self._known[shared.packages] = shared
        self._known.move_to_end(shared.packages)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        self._verdicts.clear()

    def refuse(self, packages: Keys, closure: Keys) -> None:
        """A Zygote of these has been found to differ from a start with this closure (`verifier`)."""
        _remembered(self._differing, (packages, closure), lambda: True)

    def forget(self) -> None:
        self._differing.clear()
        self._known.clear()
        self._verdicts.clear()
        self._unfit.clear()

    def serves(self, packages: Keys, closure: Keys) -> bool:
        """Whether a Zygote of these packages may serve functions with this closure, whatever their code and environment."""
        if not packages <= closure or (packages, closure) in self._differing:
            return False
        return _remembered(self._verdicts, (packages, closure), lambda: self._would_serve(packages, closure))

    def _would_serve(self, packages: Keys, closure: Keys) -> bool:
        """If these were never imported: what fewer of them looked for, without finding it in the rest, they look for again."""
        shared = self._known.get(packages)
        fewer = [shared] if shared else [known for known in self._known.values() if known.packages < packages]
        besides = closure - packages
        return not any(difference(known, self._bare(known, known.packages | besides)) for known in fewer)

    def refusal(self, packages: Keys, view: ImportView) -> str:
        """Why it may not serve this very function; empty: it may, or it is not known."""
        shared = self._known.get(packages)
        return difference(shared, view) if shared is not None else ""

    def closed(self, wanted: Keys, ours: Keys, theirs: Keys) -> Keys:
        """Of the wanted packages those that import alike in both closures, with all that they require; and those with .pth
        files, which run before all imports: none at all, if these differ."""
        before_imports = self._with_pth(ours)
        unfit = _remembered(self._unfit, (ours, theirs, self._refused()), lambda: self._find_unfit(ours, theirs))
        if before_imports != self._with_pth(theirs) or before_imports & unfit:
            return frozenset()
        kept = set((wanted & ours & theirs) - unfit)
        if not kept:
            return frozenset()
        kept |= before_imports
        pending, names = list(kept), by_name(ours)
        while pending:
            added = self._required(pending.pop(), names) - kept
            kept |= added
            pending += added
        return frozenset(kept)

    def _find_unfit(self, ours: Keys, theirs: Keys) -> Keys:
        """Distributions that are not in both closures, or refused, or require such a one in either."""
        every = ours | theirs
        unfit = set(every - (ours & theirs)) | (every & self._refused())
        our_names, their_names = by_name(ours), by_name(theirs)
        requirements = {key: self._required(key, our_names) | self._required(key, their_names) for key in every}
        while more := {key for key in every - unfit if requirements[key] & unfit}:
            unfit |= more
        return frozenset(unfit)

    def _required(self, key: str, names: Mapping[str, str]) -> set[str]:
        return {names[name] for name in self._provided(key).requires if name in names}

    def _with_pth(self, closure: Keys) -> Keys:
        return frozenset(key for key in closure if self._provided(key).has_pth)

    def _bare(self, shared: Preimported, closure: Keys) -> ImportView:
        """A function with these packages, without code, and with an environment as the Zygote's."""
        return ImportView(closure, {key: self._provided(key) for key in closure}, environment=shared.environment)


def by_name(closure: Keys) -> dict[str, str]:
    return {name_of(key): key for key in closure}


def _remembered(memory: dict, key: object, work_out: Callable[[], T]) -> T:  # type: ignore[type-arg]
    if key not in memory:
        if len(memory) >= MAX_REMEMBERED:
            memory.clear()
        memory[key] = work_out()
    return memory[key]  # type: ignore[no-any-return]
