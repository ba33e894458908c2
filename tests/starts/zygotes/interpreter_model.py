"""A model of an interpreter that imports synthetic packages: small enough to be seen to be right.

State is a dict; a module is what it has noted when it was imported; an import is a list of reads, writes and further imports. Of
the product it has the shape of a recording alone: `Process` says what a start becomes, `record` what a trial notes of it.
Not modelled: circular imports, and reads of `sys.modules` without an import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sockd.starts.zygotes.top_levels.top_level import Module, Step, TopLevel

KEYS = {
    "a": "a-1-aaaaaaaaaaaa",
    "b": "b-1-bbbbbbbbbbbb",
    "c": "c-1-cccccccccccc",
    "d": "c-1-cccccccccccc",
    "e": "e-1-eeeeeeeeeeee",
}
"""Each module's distribution; c and d have the same."""
VARIABLES = ("X", "Y")
STATE = (*VARIABLES, "sys.path", "json.dumps")
"""What code may change: environment variables, and state of the interpreter and of the standard library."""

Action = tuple[Any, ...]
Bodies = Mapping[str, Sequence[Action]]
"""What the import of each module does, in order:

    ("read", key)               note a part of the state
    ("set", key, value)         change it
    ("add", key)                change it to another value than it has, whatever that is
    ("import", module)          import a module, and note what that has noted
    ("try", module)             as import; note that it is missing, if it is
    ("patch", module)           import a module, and change it
    ("within", key, module)     change a part of the state, import a module, and change it back
"""


@dataclass
class Process:
    """One interpreter. `closure`: the distributions on its sys.path."""

    bodies: Bodies
    closure: frozenset[str]
    state: dict[str, int]
    modules: dict[str, list[object]] = field(default_factory=dict)
    """What each loaded module has noted, in the order in which their imports began."""
    missed: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    """Parts of the state that were read or changed."""
    parts: dict[str, list[str]] = field(default_factory=dict)
    """For each module, the modules that its import has begun to load."""
    _importing: list[str] = field(default_factory=list)

    @classmethod
    def started(cls, bodies: Bodies, closure: frozenset[str], environment: Mapping[str, int]) -> Process:
        return cls(bodies, closure, {**dict.fromkeys(STATE, 0), **environment})

    def do(self, action: Action, notes: list[object], name: str) -> None:
        """Run one statement. Args: notes: of the module that it is in, whose name is `name`."""
        kind, what, *more = action
        if kind == "read":
            self.touched.add(what)
            notes.append((what, self.state[what]))
        elif kind in ("set", "add"):
            self.touched.add(what)
            self.state[what] = more[0] if more else self.state[what] + 1
        elif kind == "within":
            before = self.state[what]
            self.do(("add", what), notes, name)
            self.do(("import", *more), notes, name)
            self.state[what] = before
        elif kind == "try" and KEYS[what] not in self.closure:
            self.missed.add(what)
            notes.append((what, "missing"))
        else:
            self.load(what)
            if kind == "patch":
                self.modules[what].append(("patched by", name))
            else:
                notes.append((what, tuple(self.modules[what])))

    def load(self, name: str) -> None:
        if name in self.modules:
            return
        if self._importing:
            self.parts[self._importing[-1]].append(name)
        notes = self.modules[name] = []
        self.parts[name] = []
        self._importing.append(name)
        for action in self.bodies[name]:
            self.do(action, notes, name)
        self._importing.pop()

    def run(self, code: Sequence[Action]) -> list[object]:
        """The function's own code: what it has noted."""
        notes: list[object] = []
        for action in code:
            self.do(action, notes, "own code")
        return notes

    def became(self) -> object:
        """All that a handler can see."""
        return self.state, {name: tuple(notes) for name, notes in self.modules.items()}

    def snapshot(self) -> dict[str, object]:
        """What is compared before and after each import: the state, and each loaded module."""
        return {**self.state, **{f"module {name}": tuple(notes) for name, notes in self.modules.items()}}


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """What is otherwise of what there was."""
    return [name for name in before if after[name] != before[name]]


def record(bodies: Bodies, closure: frozenset[str], environment: Mapping[str, int], code: Sequence[Action]) -> TopLevel:
    """What a recording says of own code in a start of its own: as `sockd_zygote.top_levels.top_level` does."""
    process = Process.started(bodies, closure, environment)
    steps: list[Step] = []
    reference, effect = process.snapshot(), ""
    changed: set[str] = set()
    read: set[str] = set()
    for action in code:
        for name in imported_by(process, action):
            before = process.snapshot()
            new = changes(reference, before)
            changed |= set(VARIABLES).intersection(new)
            effect = effect or ", ".join([*(each for each in new if each not in VARIABLES), *sorted(changed & read)])
            read |= touched_by(process, name)
            effect = effect or ", ".join(sorted(changed & read))
            reference = process.snapshot()
            writes = () if effect else tuple(changes(before, reference))
            steps += steps_of(process, name, len(steps), effect, writes, tuple(sorted(changed)))
        process.do(action, [], "own code")
    return TopLevel(tuple(steps), closure)


def touched_by(process: Process, name: str) -> set[str]:
    """Load a module. Returns: the parts of the state that its import has read or changed."""
    before, process.touched = process.touched, set()
    process.load(name)
    touched, process.touched = process.touched, process.touched | before
    return touched


def imported_by(process: Process, action: Action) -> Iterator[str]:
    """The module that a statement of own code loads, if it does."""
    kind, what = action[:2]
    if kind in ("import", "try", "patch") and what not in process.modules and KEYS[what] in process.closure:
        yield what


def steps_of(
    process: Process, name: str, first: int, before: str, writes: tuple[str, ...], variables: tuple[str, ...]
) -> list[Step]:
    """An import of own code, and those in it that are of another distribution than what asks for them."""
    made: list[tuple[str, int, list[str]]] = [(name, -1, [name])]

    def visit(module: str, at: int) -> None:
        for part in process.parts[module]:
            if KEYS[part] == KEYS[made[at][0]]:
                made[at][2].append(part)
                visit(part, at)
            else:
                made.append((part, first + at, [part]))
                visit(part, len(made) - 1)

    visit(name, 0)
    return [
        Step(
            step,
            KEYS[step],
            outer,
            "" if outer >= 0 else before,
            () if outer >= 0 else writes,
            tuple(Module(KEYS[step], each, 0.1) for each in modules),
            () if outer >= 0 else variables,
        )
        for step, outer, modules in made
    ]
