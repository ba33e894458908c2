"""POLICY: whether a Zygote's imports would have the same results in a function's own start. Pure; owns nothing.

A Zygote records observations of its imports (`Observed`): names that were looked up, found or not, queries to
`importlib.metadata`, listed directories, files looked for in the working directory, environment variables, and the limits of
open files and of /tmp. A function's own start shows its imports an `ImportView`: its code, packages and environment, and what
its top level does before each of them (`TopLevel`). The Zygote serves the function only if each observation would be the same in
that view, and if it has loaded nothing that the function's top level does not load. Each clause below compares one kind and
names the first difference; SOCK's rule is one of them.

Not observed: reads of `sys.modules` without an import, C code that walks `environ`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sockd.isolation.farm.imported import NOTHING_SEEN, Observed
from sockd.isolation.roots import interpreter_settings
from sockd.isolation.roots.program import OWN, Lineage, Network
from sockd.starts.packages.provided_names import NOTHING, Provided
from sockd.starts.zygotes.top_levels.top_level import TopLevel, out_of_order
from sockd_zygote.forks.observer import EVERY_FILE
from sockd_zygote.forks.variable_reads import UNOBSERVED, UNOBSERVED_PREFIX

OPEN_FILES = "RLIMIT_NOFILE"
"""The limit of open files: compared as a variable of this name, which an import that asks for the limit has read."""
TMP_SIZE = "TMP_SIZE"
"""The size of /tmp, likewise: read by an import that asks a file system how much it holds."""
UNOBSERVED_VARIABLES = UNOBSERVED | interpreter_settings.READ_BY_IMPORTS
"""Variables that the C library or the interpreter reads inside itself, unseen: taken to be read by every import."""
LISTS_DISTRIBUTIONS = "pkg_resources"
"""A module that, when it is imported, notes every distribution that there is."""


def visible_limits(*, open_files: int, tmp_mb: int, tmp_inodes: int) -> dict[str, str]:
    """Return the limits of a function that imports can see, by the names that they are compared by."""
    return {OPEN_FILES: str(open_files), TMP_SIZE: f"{tmp_mb} MB, {tmp_inodes} inodes"}


@dataclass(frozen=True, slots=True)
class Preimported:
    """What a Zygote has imported for others: with what, and what its imports saw, those of its ancestors included."""

    packages: frozenset[str] = frozenset()
    """Keys of the distributions that were on sys.path."""
    environment: Mapping[str, str] = field(default_factory=dict)
    seen: Observed = NOTHING_SEEN
    network: Network = "host"
    """What its imports reached: "none", also where the functions that it serves have a private network."""
    loaded: frozenset[str] = frozenset()
    """Modules that are there since, with those of its ancestors."""
    order: tuple[str, ...] = ()
    """The modules that the Zygote was asked to import, after those of its ancestors."""
    groups: tuple[tuple[str, frozenset[str]], ...] = ()
    """The modules of `order` that have loaded something, each with what it has loaded."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class ImportView:
    """What imports see in a function's own start. Compared by identity: verdicts are remembered for it."""

    closure: frozenset[str]
    """Keys of its distributions."""
    provided: Mapping[str, Provided] = field(default_factory=dict)
    """What each of them offers, by key."""
    code: Provided = NOTHING
    """What the function's own code offers, which is first on sys.path."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """All that its process has."""
    variables: frozenset[tuple[str, str]] = frozenset()
    """The variables of the version's environment that are not the worker's, with their values."""
    network: Network = "host"
    """Its function's."""
    files: frozenset[str] = frozenset()
    """Names of files and directories at the top of its code: imports run there, and a Zygote's find nothing."""
    interpreter: str = OWN
    zygote: Literal["packages", "stdlib", "none"] = "none"
    """What may be imported ahead for it."""
    program: str = ""
    """A digest of its code and settings: what is known of this version is known of each start with the same."""
    function: str = ""
    """The name of the function whose version it is."""
    top: TopLevel | None = None
    """What its top level does, once that was recorded; it is set once."""

    @property
    def lineage(self) -> Lineage:
        """Return the lineage of the Zygotes that may serve the function."""
        return Lineage(self.network, self.interpreter)

    def besides(self, packages: frozenset[str]) -> Iterator[tuple[str, Provided]]:
        """(name for people, what it offers) of all that a Zygote with these packages did not have."""
        yield "the function's code", self.code
        for key in sorted(self.closure - packages):
            yield key, self.provided.get(key, NOTHING)


NO_PACKAGES = ImportView(frozenset())


Clause = Callable[[Preimported, ImportView], str]


def difference(shared: Preimported, view: ImportView, clauses: Sequence[Clause] | None = None) -> str:
    """Why a Zygote must not serve a function: the first observation that would be another one. Empty: it may.

    Args: clauses: those that are asked; default: all."""
    if not shared.order:
        return ""  # the root
    return next(filter(None, (clause(shared, view) for clause in clauses or CLAUSES)), "")


def _modules_loaded(shared: Preimported, view: ImportView) -> str:
    """What the top level does not load must not be there, and nothing for which its own code has changed something."""
    if view.top is None:
        return "the function's top level is not recorded yet"
    surplus = shared.loaded - view.top.shareable
    if early := surplus & view.top.loaded:
        return view.top.change or _not_allowed(min(early), view.top)
    return _first("the function's top level does not import {}", surplus)


def _not_allowed(module: str, top: TopLevel) -> str:
    """Why a module that an unchanged top level loads must not be there: it is not shareable."""
    if module in top.of_packages:
        return f'a package has {module}, and zygote = "stdlib" allows imports of the standard library alone'
    return f'a package imports {module} for the function, and zygote = "stdlib" allows no imports of packages'


def _whole_imports(shared: Preimported, view: ImportView) -> str:
    """Each import must have loaded of packages what it loads for the function's code: a part of another one would come too
    early."""
    if view.top is None:
        return ""
    nothing, packages = frozenset[str](), view.top.of_packages
    parts = {name for name, group in shared.groups if group & packages != view.top.whole.get(name, nothing)}
    return _first("the function imports {} only within another import", parts - view.top.whole.keys()) or _first(
        "another import of the function loads a part of {} first", parts
    )


def _order_of_imports(shared: Preimported, view: ImportView) -> str:
    return out_of_order(shared.order, shared.loaded, view.top) if view.top is not None else ""


def _variables_of_own_code(shared: Preimported, view: ImportView) -> str:
    """A variable that the function's code changes before an import must not have been read by any."""
    if view.top is None:
        return ""
    read = {name for name in view.top.changed_variables(shared.loaded) if _is_read(shared.seen, name)}
    return _first("the function's own code changes os.environ[{!r}], which an import read", read)


def _other_packages(shared: Preimported, view: ImportView) -> str:
    """SOCK's rule: nothing runs that the function did not ask for."""
    return _first("the function does not have {}", shared.packages - view.closure)


def _names_looked_up(shared: Preimported, view: ImportView) -> str:
    """No missed name is provided by what the function has besides, no found one provided twice, where order would decide."""
    for owner, offer in view.besides(shared.packages):
        if offer.is_partial:
            return f"{owner} has too many files to be compared"
        if reason := _first(f"an import looked for {{}}, which {owner} has", _offered(offer, shared.seen.missed)):
            return reason
        if reason := _first(f"an import found {{}}, which {owner} has, too", _offered(offer, shared.seen.found)):
            return reason
        # Of a namespace package there may be more portions: sys.path is looked at again for each import below it.
        if reason := _first(f"{owner} has {{}}, found as a namespace package", offer.modules & shared.seen.namespaces):
            return reason
    return ""


def _directories_listed(shared: Preimported, view: ImportView) -> str:
    for owner, offer in view.besides(shared.packages):
        if "" in shared.seen.listed and offer != NOTHING:
            return f"an import listed the directories of sys.path, among which is that of {owner}"
        if reason := _first(f"an import listed {{}}, of which {owner} has a part", _offered(offer, shared.seen.listed)):
            return reason
    return ""


def _files_looked_for(shared: Preimported, view: ImportView) -> str:
    if EVERY_FILE in shared.seen.files and view.files:
        return "an import listed the function's directory"
    return _first("an import looked for the file {}, which the function's code has", shared.seen.files & view.files)


def _metadata_asked_for(shared: Preimported, view: ImportView) -> str:
    every = shared.seen.every_distribution or LISTS_DISTRIBUTIONS in shared.seen.found
    for owner, offer in view.besides(shared.packages):
        if every and offer.metadata:
            return f"an import asked for all distributions, of which {owner} is one"
        if reason := _first(
            f"an import asked for the distribution {{}}, which is {owner}", offer.metadata & shared.seen.metadata
        ):
            return reason
        if reason := _first(
            f"an import asked for entry points {{}}, of which {owner} has some", offer.groups & shared.seen.groups
        ):
            return reason
    return ""


def _pth_files(shared: Preimported, view: ImportView) -> str:
    """They run before the function's first import, and may do anything."""
    for owner, offer in view.besides(shared.packages):
        if offer.has_pth and owner in view.closure:
            return f"{owner} has a .pth file, which runs before all imports"
    return ""


def _variables_read(shared: Preimported, view: ImportView) -> str:
    names = {name for name in (*shared.environment, *view.environment) if _is_read(shared.seen, name)}
    different = {name for name in names if shared.environment.get(name) != view.environment.get(name)}
    if OPEN_FILES in different:
        return "an import read the limit of open files, and the function sets open_files"
    if TMP_SIZE in different:
        return "an import read the size of a file system, and the function sets tmp_mb or tmp_inodes"
    return _first("an import read the variable {}, which the function has otherwise", different)


def _is_read(seen: Observed, name: str) -> bool:
    return (
        seen.every_variable
        or name in seen.variables
        or name in UNOBSERVED_VARIABLES
        or name.startswith((UNOBSERVED_PREFIX, *seen.prefixes))
    )


OBSERVATIONS: tuple[Clause, ...] = (
    _other_packages,
    _names_looked_up,
    _directories_listed,
    _files_looked_for,
    _metadata_asked_for,
    _pth_files,
    _variables_read,
)
"""What the imports of a Zygote have observed."""
OF_TOP_LEVELS: tuple[Clause, ...] = (_modules_loaded, _whole_imports, _order_of_imports, _variables_of_own_code)
"""What the function's own top level does."""
CLAUSES: tuple[Clause, ...] = (*OBSERVATIONS, *OF_TOP_LEVELS)


def _offered(offer: Provided, names: frozenset[str]) -> frozenset[str]:
    return names & (offer.modules | offer.namespaces)


def _first(text: str, names: frozenset[str] | set[str]) -> str:
    """`text` with the first of the names; empty if there is none."""
    return text.format(min(names)) if names else ""
