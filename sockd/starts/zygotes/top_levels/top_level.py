"""What the top level of one version does, as recorded in a start of its own: which imports its code asks for, in which order, and
from where on it has changed what they see. Pure; owns nothing.

A recording (`sockd_zygote.top_levels.top_level`) is a list of *steps*: the imports that the function's code asks for, and
within them what a module of one distribution imports of another. The steps before the first change by the function's own code are
*unchanged*: an import of the same modules in a Zygote, in the same order, sees the same state. Everything later is the function's
own to import. What a recording says is a claim of the version's own sandbox, and decides about that version alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import msgspec

from sockd.base.untrusted import read_seconds

MAX_MODULES = 5000
"""The default of `zygote.max_modules`."""
STANDARD_LIBRARY = ""
"""The key of modules of the standard library, which no distribution has."""
STANDARD_LIBRARY_WORDS = "the standard library"
"""What a Zygote without a distribution has imported from, for people."""
COMMUTING = frozenset(
    {
        *(
            "copyreg.dispatch_table",
            "loggers",
            "pickle.dispatch_table",
            "platform._sys_version_cache",
            "registrations with abstract classes",
        ),
        *("threading._threading_atexits", "time.tzname", "typing._overload_registry", "weakref.finalize"),
    }
)
"""Registries that imports add to under names of their own: the order in which they do changes nothing."""
ROOT_LOGGER = "loggers['root']"
"""Which is no import's own: the first that configures it decides for all."""
WHOLE_PATH = "sys.path"
"""The name of the import that stands for a sys.path with all distributions of a closure, and those alone."""
BYTES_PER_IMPORT_SECOND = 250 << 20
"""Memory of an import, from its time: 200-310 MB a second (numpy, pandas, Django)."""
UNKNOWN_PEAK_BYTES = 256 << 20
"""Stands for the peak of a recorded start where that could not be read."""


class Module(NamedTuple):
    """One module that was loaded."""

    key: str
    """The distribution that it came from; empty: the standard library."""
    name: str
    seconds: float
    """Its own import time, without what it imported in turn."""


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One import into a distribution, or of the standard library by the function's code."""

    name: str
    key: str
    outer: int
    """The number of the step that it is a part of; -1: the function's code asked for it."""
    before: str
    """What the function's own code had changed when it began, in words; empty: nothing."""
    writes: tuple[str, ...]
    """What it changed outside of the modules that it loaded, as far as the function's code asked for it."""
    modules: tuple[Module, ...]
    """What it loaded, without the modules of the steps that are a part of it."""
    variables: tuple[str, ...] = ()
    """Environment variables that the function's own code had changed when it began, and that no import had read by its end."""

    @property
    def conflicts(self) -> list[str]:
        """What another import could see of it, if that came before instead of after it."""
        return [name for name in self.writes if name == ROOT_LOGGER or name.partition("[")[0] not in COMMUTING]

    @property
    def id(self) -> str:
        """Its name for the policies, which treat imports as the members of a set."""
        return import_id(self.name, self.key)


class BadRecording(Exception):
    """A sandbox answered with something that is no recording."""


@dataclass(frozen=True, eq=False)
class TopLevel:
    """One recording. `closure`: the distributions that the function has; `standard_only`: no package may be imported for it."""

    steps: tuple[Step, ...]
    closure: frozenset[str] = field(default_factory=frozenset)
    standard_only: bool = False
    peak_bytes: int = 0
    """The most memory that the recorded start used, as the kernel counts it; 0: that could not be read."""

    @cached_property
    def first_changed(self) -> int:
        """The number of the first step that own code has changed something for; the number of steps, if there is none."""
        return next((number for number, step in enumerate(self.steps) if step.before), len(self.steps))

    @cached_property
    def change(self) -> str:
        """What the function's own code changes before an import, in words; empty: nothing."""
        if self.first_changed == len(self.steps):
            return ""
        before = self.steps[self.first_changed].before
        return f"the function's own code changes {before} before it imports {self.first_late}"

    @cached_property
    def first_late(self) -> str:
        """The first import that comes too late to be shared, where own code changes something: of a package, if there is one, as
        the standard library imports parts of its own that the code does not name (`encodings.idna`)."""
        late = self.steps[self.first_changed :]
        return next((step.name for step in late if step.key and step.outer < 0), late[0].name)

    @cached_property
    def unchanged(self) -> tuple[Step, ...]:
        """The steps that see what they would see without the function's own code."""
        return self.steps[: self.first_changed]

    @cached_property
    def shareable(self) -> frozenset[str]:
        """Modules that a Zygote may have loaded for this version."""
        steps = (step for step in self.unchanged if not (self.standard_only and step.key))
        return frozenset(module.name for step in steps for module in step.modules)

    @cached_property
    def loaded(self) -> frozenset[str]:
        """All modules that the top level loads."""
        return frozenset(module.name for step in self.steps for module in step.modules)

    @cached_property
    def wanted(self) -> frozenset[str]:
        """Ids of the imports of its code that a Zygote may do ahead for this version, and of its sys.path."""
        steps = {step.id for step, _ in self.outer_steps() if not (self.standard_only and self.keys_of(step))}
        return frozenset(steps | {path_id(self.closure)}) if steps else frozenset()

    @cached_property
    def asked_for(self) -> frozenset[str]:
        """As `wanted`, with the imports that own code has changed something for."""
        return self.wanted | {step.id for step in self.steps if step.outer < 0} | {path_id(self.closure)}

    @cached_property
    def of_packages(self) -> frozenset[str]:
        """Modules that it loads and that are not the standard library's."""
        return frozenset(module.name for step in self.steps for module in step.modules if module.key)

    @cached_property
    def whole(self) -> dict[str, frozenset[str]]:
        """Return, for each unchanged import of the function's code, by name, all modules of packages that it loads. (Modules
        of the standard library are the same whichever import loads them first.)"""
        return {step.name: modules & self.of_packages for step, modules in self.outer_steps()}

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Import time by id, of each import of its code."""
        outer = [step for step in self.steps if step.outer < 0]
        return {
            step.id: sum(module.seconds for part in self._parts[step.id] for module in part.modules) for step in outer
        }

    @cached_property
    def memory_bytes(self) -> dict[str, float]:
        """Memory by id, of each import of its code: guessed from its time, and at most its part of what the recorded start used,
        as on a busy host an import takes many times as long."""
        peak, spent_s = self.peak_bytes or UNKNOWN_PEAK_BYTES, sum(self.seconds.values())
        rate = min(BYTES_PER_IMPORT_SECOND, peak / spent_s) if spent_s else 0.0
        return {import_: seconds * rate for import_, seconds in self.seconds.items()}

    @cached_property
    def places(self) -> dict[str, int]:
        """Return, for each module, the number of the import of the function's code that loads it."""
        outer = 0
        found: dict[str, int] = {}
        for number, step in enumerate(self.steps):
            outer = number if step.outer < 0 else outer
            found.update((module.name, outer) for module in step.modules)
        return found

    @cached_property
    def _parts(self) -> dict[str, tuple[Step, ...]]:
        """By id: a step and all that is a part of it."""
        parts: dict[int, list[Step]] = {}
        for number, step in enumerate(self.steps):
            parts[number] = [step]
            outer = step.outer
            while outer >= 0:
                parts[outer].append(step)
                outer = self.steps[outer].outer
        found: dict[str, tuple[Step, ...]] = {}
        for number, step in enumerate(self.steps):
            found.setdefault(step.id, tuple(parts[number]))
        return found

    def modules_of(self, import_: str) -> frozenset[str]:
        """Names of the modules that a step loads, with its parts. Args: import_: its id."""
        return frozenset(module.name for step in self._parts.get(import_, ()) for module in step.modules)

    def changed_variables(self, loaded: frozenset[str]) -> frozenset[str]:
        """Environment variables that own code changes before one of the unchanged steps that load these modules."""
        steps = (step for step in self.unchanged if step.variables and not loaded.isdisjoint(self.modules_of(step.id)))
        return frozenset(name for step in steps for name in step.variables)

    def keys_of(self, step: Step) -> frozenset[str]:
        """Distributions that a step imports from, with its parts."""
        return self.keys_of_id(step.id)

    def keys_of_id(self, import_: str) -> frozenset[str]:
        return frozenset(step.key for step in self._parts.get(import_, ()) if step.key)

    def in_order(self, imports: frozenset[str]) -> list[str]:
        """The module names of these imports, in the order in which they began here."""
        return list(dict.fromkeys(step.name for step in self.steps if step.outer < 0 and step.id in imports))

    def outer_steps(self) -> Iterator[tuple[Step, frozenset[str]]]:
        """Unchanged steps that the function's code asks for, with all modules that each loads."""
        for step in self.unchanged:
            if step.outer < 0:
                yield step, self.modules_of(step.id)


def out_of_order(order: Sequence[str], loaded: frozenset[str], top: TopLevel) -> str:
    """POLICY: whether the imports of a Zygote commute with those that the function does before them, or in another order.

    They do if none of them changes anything outside of the modules that it loads: neither can then see the other. The standard
    library's imports see nothing of packages.

    Args: order: names of the modules that the Zygote was asked to import; loaded: all that it has loaded.
    Returns: why they do not, in words; empty: they do, or the order is the function's."""
    places = [top.places[name] for name in order if name in top.of_packages]
    is_moved, skipped, writer = places != sorted(places), False, ""
    for step, modules in top.outer_steps():
        conflict = f"{step.name}, which changes {step.conflicts[0]}" if step.conflicts else ""
        if modules & loaded and ((is_moved and conflict) or (skipped and (writer or conflict))):
            return f"the function imports in another order, among others {writer or conflict}"
        if step.key != STANDARD_LIBRARY and not modules <= loaded:
            skipped, writer = True, writer or conflict
    return ""


def read_steps(reported: object, closure: frozenset[str], *, most: int = MAX_MODULES) -> tuple[Step, ...]:
    """Check what a sandbox says of its imports. Args: most: steps, and modules, of one top level. Raises: BadRecording."""
    try:
        steps = msgspec.convert(reported, tuple[Step, ...])
        if len(steps) > most or sum(len(step.modules) for step in steps) > most:
            raise BadRecording(f"it imports more than {most} modules (zygote.max_modules)")
        return tuple(_checked(number, step, closure) for number, step in enumerate(steps))
    except (ValueError, TypeError, OverflowError) as error:  # msgspec's errors are ValueErrors
        raise BadRecording(f"the answer of a trial is no recording: {error}") from None


def _checked(number: int, step: Step, closure: frozenset[str]) -> Step:
    keys = {step.key, *(module.key for module in step.modules)} - {STANDARD_LIBRARY}
    if not -1 <= step.outer < number or not keys <= closure:
        raise BadRecording("a recording names distributions that the function does not have")
    modules = tuple(module._replace(seconds=read_seconds(module.seconds)) for module in step.modules)
    return msgspec.structs.replace(step, modules=modules)


def import_id(name: str, key: str) -> str:
    return f"{name}@{key}"


def name_of_import(import_: str) -> str:
    """The module of an import, by its id."""
    return import_.partition("@")[0]


def key_of_import(import_: str) -> str:
    """The distribution of an import, by its id; STANDARD_LIBRARY if it has none."""
    return import_.partition("@")[2]


def path_id(closure: frozenset[str]) -> str:
    """The id of a closure's whole sys.path; empty closures have the root's."""
    digest = hashlib.sha256("\n".join(sorted(closure)).encode()).hexdigest()[:16]
    return import_id(WHOLE_PATH, digest)
