"""What a function's top level does, in order: the imports that its own code asks for, and whether that code has changed what each
of them saw.

A recording runs the entry module of a version in a start of its own, from the root Zygote. An import *of the function's code* is
one that no package's and no standard module's import asked for; modules of the code itself are its code, not imports. Before and
after each such import the state of the interpreter is compared (`state`): what changed in between is the doing of the function's
own code, and from there on an import in a Zygote would see something else. The recording then goes on without comparing.
"""

from __future__ import annotations

import os
import sys
import time

from sockd_zygote.forks.module_kinds import OWN, RUNTIME, STANDARD, Kinds
from sockd_zygote.top_levels.change_names import in_words
from sockd_zygote.top_levels.interpreter import LIBRARIES
from sockd_zygote.top_levels.own_calls import Code, OwnCalls, places, set_profile
from sockd_zygote.top_levels.own_variables import OwnVariables
from sockd_zygote.top_levels.process import THREADS
from sockd_zygote.top_levels.registrations import Registrations
from sockd_zygote.top_levels.state import VARIABLES, State

_bootstrap = sys.modules["_frozen_importlib"]
TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

MOST_WORDS = 300
"""Characters of what the function's code has changed."""
NUMBERS = "threading._counter"
"""What an import has changed that has made a thread, or a `Thread`, without a name."""
MOST_WRITES = 100
"""Changes of one import that are named."""


class Loading:
    """One import while it runs."""

    __slots__ = (
        *("asked_by", "began", "besides", "by_code", "inner_s", "lists", "name", "own_code", "state", "step"),
        "was_watched",
    )

    def __init__(self, name: str, began: float, asked_by: Loading | None) -> None:
        self.name = name
        self.began = began
        self.asked_by = asked_by
        """The import that it is a part of."""
        self.inner_s = 0.0
        self.by_code = False
        """Whether the function's code asked for it."""
        self.state: State | None = None
        """Before it, if `by_code`."""
        self.own_code = False
        """Whether a module of the function's code was loaded in it."""
        self.step: dict[str, Any] | None = None
        self.lists: ListsSubclasses | None = None
        """While it runs, if own code has derived classes before it."""
        self.besides: list[str] = []
        """Modules that it has put into `sys.modules` without an import, if `by_code`."""
        self.was_watched = False
        """Whether reads of variables were recorded when it began."""


class ListsSubclasses:
    """Whether code of this thread calls `type.__subclasses__` of some classes while it is watched.

    To such an import, a class that the function's own code has derived from one of them is a change; to others it is none."""

    def __init__(self, classes: set[int]) -> None:
        """Args: classes: their ids."""
        self._classes = classes
        self.seen = False
        self._hook: Any = self._look

    def watch(self, is_on: bool) -> None:
        """Begin or pause."""
        set_profile(self._hook, is_on=is_on)

    def _look(self, frame: object, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ == "__subclasses__":
            self.seen |= id(called.__self__) in self._classes


class Recorder:
    """Between `__enter__` and `__exit__` imports are recorded; `steps` then."""

    def __init__(self, kinds: Kinds, entry: str) -> None:
        """Args: entry: the name of the entry module, which is not loaded by the import system."""
        self._kinds = kinds
        self._known = {entry, *sys.modules}
        self._stack: list[Loading] = []
        self._begun: list[tuple[Loading, Loading | None]] = []
        """Imports and those that asked for them, in the order in which they began."""
        self._seconds: dict[str, float] = {}
        self._reference: State | None = None
        self._effect = ""
        """What the function's code has changed; nothing is compared any more."""
        self._derived_from: set[int] = set()
        """The ids of classes that own code has derived others from."""
        self._listing: ListsSubclasses | None = None
        """The one that watches; none does while the function's code runs, as that is watched by `_calls`."""
        self._has_named_threads = False
        """Whether own code has taken numbers from `threading`, which names threads by them."""
        self._registrations = Registrations()
        self._variables = OwnVariables()
        self._calls = OwnCalls(kinds)
        self._pid = os.getpid()

    def __enter__(self) -> Recorder:
        self._get_ident = sys.modules["_thread"].get_ident  # eventlet takes the module away
        self._thread = self._get_ident()
        self._load, self._load_spec = _bootstrap._find_and_load_unlocked, _bootstrap._load_unlocked
        sys.addaudithook(self._calls.hear)
        self._registrations.__enter__()
        self._reference = self._state()
        _bootstrap._find_and_load_unlocked = self._timed  # type: ignore[attr-defined]
        _bootstrap._load_unlocked = self._noting_origin  # type: ignore[attr-defined]
        self._calls.watch(True)
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.watch(False)
        _bootstrap._find_and_load_unlocked = self._load  # type: ignore[attr-defined]
        _bootstrap._load_unlocked = self._load_spec  # type: ignore[attr-defined]
        self._variables.watch(is_import=False)
        self._registrations.__exit__()
        self._reference = None

    @property
    def changed_variables(self) -> set[str]:
        """The environment variables that own code has changed."""
        return self._variables.changed

    @property
    def finished(self) -> list[Code]:
        """The function's code that has returned, in order."""
        return self._calls.finished

    def steps(self) -> list[dict[str, Any]]:
        """Return the imports into each distribution, in the order in which they began.

        A step is what the function's code imports, or what a module of one distribution imports of another: `name`, `key`,
        `outer` (the number of the step that it is in, or -1), `before` (what own code had changed by then), `variables` (those
        that it had changed, too, and that no import has read), `writes` (what the import changed outside of the modules that it
        loaded), `places`, `finished` and `varies` (where the function's code has asked for it, how much of it had run, and
        whether it has what another start may have otherwise, for `certainty.mark`) and `modules`, each with its own seconds."""
        steps: list[dict[str, Any]] = []
        for loading, asked_by in self._ordered():
            module = sys.modules.get(loading.name)
            key = self._kinds.key_of(loading.name, module) if module is not None else OWN
            if key in (OWN, RUNTIME):
                continue
            outer = self._step_above(asked_by)
            if loading.by_code or outer is None or (outer["key"] != key and key != STANDARD):
                loading.step = step = {
                    "name": loading.name,
                    "key": key,
                    "modules": [],
                    "outer": -1 if loading.by_code or outer is None else steps.index(outer),
                    "before": "",
                    "variables": [],
                    "writes": [],
                    **(loading.step or {}),
                }
                steps.append(step)
            else:
                loading.step = step = outer
            step["modules"].append([key, loading.name, round(self._seconds.get(loading.name, 0.0), 6)])
            step["modules"] += [[self._key_besides(name, key), name, 0.0] for name in loading.besides]
        return steps

    def _ordered(self) -> list[tuple[Loading, Loading | None]]:
        """Imports in the order of their steps, each with the import within which it ran.

        CPython begins the import of `p.q` and only then imports `p`. Here `p` comes first; both have the same outer import.
        """
        ordered: list[tuple[Loading, Loading | None]] = []
        for loading, asked_by in self._begun:
            place = len(ordered)
            while asked_by is not None and asked_by.name.startswith(f"{loading.name}."):
                place = next((at for at, (each, _) in enumerate(ordered) if each is asked_by), place)
                asked_by = asked_by.asked_by
            ordered.insert(place, (loading, asked_by))
        return ordered

    def _step_above(self, asked_by: Loading | None) -> dict[str, Any] | None:
        """The innermost import that has a step; one that failed, and one of the function's code, have none."""
        while asked_by is not None:
            if asked_by.step and "name" in asked_by.step:
                return asked_by.step
            asked_by = asked_by.asked_by
        return None

    def _key_besides(self, name: str, key: str) -> str:
        """The key of a module that an import of the distribution `key` has put into `sys.modules`, perhaps made of nothing."""
        own = self._kinds.key_of(name, sys.modules.get(name))
        return key if own in (OWN, RUNTIME) else own

    # -- each import

    def _timed(self, name: str, import_: object) -> object:
        if self._get_ident() != self._thread or os.getpid() != self._pid:
            self._effect = self._effect or f"what is loaded, as a thread of it imports {name},"
            return self._load(name, import_)
        loading = Loading(name, time.perf_counter(), self._stack[-1] if self._stack else None)
        was_called = self._calls.watch(False)
        above = self._listing
        self._begin(loading)
        self._stack.append(loading)
        started = time.perf_counter()
        done = False
        try:
            module = self._load(name, import_)
            done = True
            return module
        finally:
            self._seconds[name] = time.perf_counter() - started - loading.inner_s
            self._stack.pop()
            if loading.by_code:
                self._list(None)
                self._variables.watch(is_import=False)
            (self._end if done else self._fail)(loading)
            if loading.by_code:
                self._variables.watch(is_import=loading.was_watched)
            if self._stack:
                self._stack[-1].inner_s += time.perf_counter() - loading.began
            self._list(above)
            self._calls.watch(was_called)

    def _noting_origin(self, spec: Any) -> object:
        if isinstance(spec.origin, str):
            self._kinds.origins[spec.name] = spec.origin
        if self._get_ident() != self._thread or self._kinds.key_of(spec.name, None) != OWN:
            return self._load_spec(spec)
        above, was_watched = self._list(None), self._variables.watch(is_import=False)
        was_called = self._calls.watch(not self._effect)
        try:
            return self._load_spec(spec)
        finally:
            self._calls.watch(was_called)
            self._list(above)
            self._variables.watch(is_import=was_watched)

    def _list(self, lists: ListsSubclasses | None) -> ListsSubclasses | None:
        """Let that one watch what the code of imports lists, or none. Returns: the one before."""
        above, self._listing = self._listing, lists
        if above is not None:
            above.watch(False)
        if lists is not None:
            lists.watch(True)
        return above

    def _begin(self, loading: Loading) -> None:
        """Compare what the function's code has left with what the import before has left."""
        self._begun.append((loading, loading.asked_by))
        loading.by_code = all(self._is_code(each, loading.name) for each in self._stack)
        if loading.by_code:
            self._list(None)  # which the state would show
            loading.was_watched = self._variables.watch(is_import=False)  # likewise
        if loading.by_code and not self._effect and self._reference is not None:
            loading.state = self._state()
            changes = self._reference.changes(loading.state, but=(VARIABLES,))
            self._variables.changed |= self._reference.changed_variables(loading.state)
            changes += [f"sys.modules[{name!r}]" for name in self._put_in()]
            self._effect = in_words([*changes, *self._read_variables()])[:MOST_WORDS]
            self._effect = self._effect or self._calls.outside
            self._has_named_threads |= self._reference.next_thread != loading.state.next_thread
            self._derived_from |= self._reference.derived_from(loading.state)
            if self._derived_from:
                loading.lists = ListsSubclasses(self._derived_from)
                self._list(loading.lists)
        if loading.by_code:
            loading.step = {"before": self._effect, "variables": sorted(self._variables.changed)}
            if not self._effect:
                loading.step |= {"places": places(self._kinds), "finished": len(self._calls.finished)}
                loading.step["varies"] = self._calls.has_varied
            self._variables.watch(is_import=not self._effect)

    def _end(self, loading: Loading) -> None:
        key = self._kinds.key_of(loading.name, sys.modules.get(loading.name))
        if key == OWN:
            for each in self._stack:
                each.own_code = True
            return
        if not loading.by_code or loading.step is None or key == RUNTIME:
            return
        loading.besides = self._put_in()
        if loading.lists is not None and loading.lists.seen:
            loading.step["before"] = self._effect = self._effect or f"subclasses, which {loading.name} lists,"
        if not self._effect and (read := self._read_variables()):
            loading.step["before"] = self._effect = in_words(read)[:MOST_WORDS]
        if loading.own_code:
            loading.step["before"] = self._effect = (
                self._effect or f"what {loading.name} imports, as that is code of its own,"
            )
        elif loading.state is not None and not self._effect:
            self._reference = self._state()
            writes = {
                *loading.state.changes(self._reference, but=(LIBRARIES, THREADS)),
                *loading.state.new_subclasses(self._reference),
                *loading.state.new_libraries(self._reference),
            }
            if loading.state.next_thread != self._reference.next_thread:
                writes.add(NUMBERS)
                if self._has_named_threads:
                    self._effect = f"the numbers of threads, of which {loading.name} takes one,"
                    loading.step["before"] = self._effect
            loading.step["writes"] = sorted(writes)[:MOST_WRITES]
        loading.state = None

    def _fail(self, loading: Loading) -> None:
        """A missing module leaves nothing but its packages; one that fails may have left half of what it does, also before
        its own imports."""
        inner = [each for each, asked_by in self._begun if asked_by is loading and each.name in sys.modules]
        loaded = [each for each in inner if not loading.name.startswith(f"{each.name}.")]
        if loading.by_code and loaded:
            self._effect = self._effect or f"what is loaded, as its import of {loading.name} fails,"
            for each in loaded:
                each.step = {"before": self._effect}
        loading.state = None

    def _is_code(self, loading: Loading, name: str) -> bool:
        """Whether an import that runs is one of the function's code, or that of a submodule whose package comes first."""
        if loading.name.startswith(f"{name}."):
            return loading.by_code
        module = sys.modules.get(loading.name)
        return module is not None and self._kinds.key_of(loading.name, module) in (OWN, RUNTIME)

    def _read_variables(self) -> list[str]:
        """The variables that own code has changed and an import has read, in words."""
        return [f"{VARIABLES}[{name!r}]" for name in self._variables.read()]

    def _put_in(self) -> list[str]:
        """Names that are new in `sys.modules` and were not imported."""
        imported = {loading.name for loading, _ in self._begun}
        new = sorted(sys.modules.keys() - self._known)
        self._known.update(new)
        runtime = [name for name in new if self._kinds.key_of(name, sys.modules[name]) == RUNTIME]
        return [name for name in new if name not in imported and name not in runtime]

    def _state(self) -> State:
        return State(
            lambda name, module: self._kinds.key_of(name, module) not in (OWN, RUNTIME),
            self._registrations.counts,
        )
