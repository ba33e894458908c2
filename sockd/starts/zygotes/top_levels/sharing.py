"""POLICY: which imports may be done ahead for which functions, as far as known before they are done.

`closed` restricts a plan to imports that load the same modules in both functions, with packages that a Zygote may import.
`serves` predicts the result of `soundness` from the observations of earlier Zygotes with the same imports; an unknown set is
tried. Owns a bounded cache of both. A function is known by the set of imports that its top level asks for (`TopLevel.wanted`)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from sockd.starts.packages.distribution import name_of
from sockd.starts.packages.provided_names import Provided
from sockd.starts.zygotes.top_levels import soundness
from sockd.starts.zygotes.top_levels.soundness import ImportView, Preimported, difference
from sockd.starts.zygotes.top_levels.top_level import TopLevel, name_of_import, out_of_order, path_id

MAX_KNOWN = 256
MAX_REMEMBERED = 4096

Imports = frozenset[str]
Keys = frozenset[str]
T = TypeVar("T")


class Sharing:
    """What one worker knows. Cheap to ask again; `forget` when a distribution is gone or may be imported after all."""

    def __init__(self, provided: Callable[[str], Provided], refused: Callable[[], Keys]) -> None:
        """Args: provided: what an installed distribution offers, by key; refused: distributions that no Zygote may import."""
        self._provided = provided
        self._refused = refused
        self._tops: OrderedDict[Imports, TopLevel] = OrderedDict()
        self._known: OrderedDict[Imports, Preimported] = OrderedDict()
        self._verdicts: dict[tuple[Imports, Imports], bool] = {}
        self._differing: dict[tuple[Imports, Imports], bool] = {}
        self._names: dict[Keys, dict[str, str]] = {}
        """For each closure, its keys by distribution name."""
        self._closed: dict[tuple[Imports, Imports, Imports, Keys], Imports] = {}

    def know(self, top: TopLevel) -> Imports:
        """The set of imports that a function is known by from now on."""
        self._tops[top.wanted] = top
        self._tops.move_to_end(top.wanted)
        if len(self._tops) > MAX_REMEMBERED:
            self._tops.popitem(last=False)
        return top.wanted

    def learn(self, imports: Imports, shared: Preimported) -> None:
        """A Zygote has done these."""
        self._known[imports] = shared
        self._known.move_to_end(imports)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        self._verdicts.clear()

    def refuse(self, imports: Imports, wanted: Imports) -> None:
        """A Zygote of these has been found to differ from a start of a function that wants those (`verifier`)."""
        _remembered(self._differing, (imports, wanted), lambda: True)

    def forget(self) -> None:
        self._differing.clear()
        self._known.clear()
        self._verdicts.clear()
        self._closed.clear()

    def serves(self, imports: Imports, wanted: Imports) -> bool:
        """Whether a Zygote of these may serve the function last known to want those, whatever its environment and files."""
        if not imports <= wanted or (imports, wanted) in self._differing:
            return False
        return _remembered(self._verdicts, (imports, wanted), lambda: self._would_serve(imports, wanted))

    def _would_serve(self, imports: Imports, wanted: Imports) -> bool:
        """If these were never imported: what fewer of them looked for, without finding it in the rest, they look for again."""
        top = self._tops.get(wanted)
        if top is None:
            return True
        shared = self._known.get(imports)
        if shared is not None:
            # On its sys.path there may be less than a Zygote for this function would have.
            return not self._observed(shared, top.closure, top)
        fewer = [known for done, known in self._known.items() if done < imports]
        besides = top.closure - self.path_of(imports, top)
        return not any(self._observed(known, known.packages | besides) for known in fewer)

    def refusal(self, imports: Imports, view: ImportView) -> str:
        """Why it may not serve this very function; empty: it may, or it is not known."""
        shared = self._known.get(imports)
        return difference(shared, view) if shared is not None else ""

    def closed(self, wanted: Imports, ours: Imports, theirs: Imports) -> Imports:
        """Return the wanted imports that load the same modules for both functions, of packages that a Zygote may import, up to
        the first that would come too early for one of them; none, if .pth files, which run before all imports, differ."""
        key = wanted, ours, theirs, self._refused()
        return _remembered(self._closed, key, lambda: self._find_closed(wanted & ours & theirs, ours, theirs))

    def _find_closed(self, wanted: Imports, ours: Imports, theirs: Imports) -> Imports:
        our_top, their_top = self._tops.get(ours), self._tops.get(theirs)
        if our_top is None or their_top is None:
            return frozenset()
        before_imports, refused = self._with_pth(our_top.closure), self._refused()
        if before_imports != self._with_pth(their_top.closure) or before_imports & refused:
            return frozenset()
        whole_path = path_id(our_top.closure)
        kept = {
            import_
            for import_ in wanted - {whole_path}
            if our_top.whole.get(name_of_import(import_)) == their_top.whole.get(name_of_import(import_))
            and our_top.modules_of(import_) <= their_top.shareable
            and not self._needed(our_top.keys_of_id(import_), our_top.closure) & refused
        }
        first = first_in_both(kept, our_top, their_top)
        return first | ({whole_path} & wanted if first else frozenset())

    def path_of(self, imports: Imports, top: TopLevel) -> Keys:
        """The distributions that a Zygote of these imports has on sys.path: all of a function's, or those that it imports from,
        with what they require, and those with .pth files."""
        if path_id(top.closure) in imports:
            return top.closure
        imported = frozenset().union(*(top.keys_of_id(import_) for import_ in imports))
        return self._needed(imported, top.closure) | self._with_pth(top.closure)

    def _needed(self, keys: Keys, closure: Keys) -> Keys:
        """Distributions, and all that these require of a closure."""
        names, needed = _remembered(self._names, closure, lambda: by_name(closure)), set(keys)
        pending = list(keys)
        while pending:
            added = self._required(pending.pop(), names) - needed
            needed |= added
            pending += added
        return frozenset(needed)

    def _required(self, key: str, names: Mapping[str, str]) -> set[str]:
        return {names[name] for name in self._provided(key).requires if name in names}

    def _with_pth(self, closure: Keys) -> Keys:
        return frozenset(key for key in closure if self._provided(key).has_pth)

    def _observed(self, shared: Preimported, closure: Keys, top: TopLevel | None = None) -> str:
        """What a Zygote's imports would observe otherwise with these packages, without code, in an environment as its own.

        Args: top: None: the Zygote will have other imports than those, so that theirs need not fit the function's."""
        provided = {key: self._provided(key) for key in closure}
        view = ImportView(closure, provided, environment=shared.environment, top=top)
        return difference(shared, view, soundness.OBSERVATIONS if top is None else soundness.CLAUSES)


def first_in_both(imports: Collection[str], ours: TopLevel, theirs: TopLevel) -> Imports:
    """The first of these imports, as many as a Zygote may do for both functions: where one of them does something else in
    between, a later import that changes something would come too early for it (`top_level.out_of_order`)."""
    order = list(dict.fromkeys(step.id for step in ours.steps if step.outer < 0 and step.id in imports))

    def is_allowed(count: int) -> bool:
        names = [name_of_import(each) for each in order[:count]]
        loaded = frozenset().union(*map(ours.modules_of, order[:count]))
        return not any(out_of_order(names, loaded, top) for top in (ours, theirs))

    if is_allowed(len(order)):
        return frozenset(order)
    fewest, most = 0, len(order)
    while most - fewest > 1:
        middle = (fewest + most) // 2
        fewest, most = (middle, most) if is_allowed(middle) else (fewest, middle)
    return frozenset(order[:fewest])


def by_name(closure: Keys) -> dict[str, str]:
    return {name_of(key): key for key in closure}


def _remembered(memory: dict[Any, T], key: Any, work_out: Callable[[], T]) -> T:
    if key not in memory:
        if len(memory) >= MAX_REMEMBERED:
            memory.clear()
        memory[key] = work_out()
    return memory[key]
