"""The rule of which functions a Zygote may serve, alone: clause by clause, and against a model of what imports see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sockd.isolation.farm.imported import Observed
from sockd.starts.packages.provided_names import NOTHING, Provided
from sockd.starts.zygotes.top_levels import soundness
from sockd.starts.zygotes.top_levels.soundness import ImportView, Preimported, difference
from sockd.starts.zygotes.top_levels.top_level import Module, Step, TopLevel

A, B = "a-1-aaaaaaaaaaaa", "b-1-bbbbbbbbbbbb"


def names(*each: str) -> frozenset[str]:
    return frozenset(each)


def seen(**observed: Any) -> Preimported:
    """What a Zygote of A saw."""
    fields: dict[str, Any] = {
        name: value if isinstance(value, bool) else names(*value) for name, value in observed.items()
    }
    return Preimported(names(A), {"HOME": "/tmp"}, Observed(**fields), loaded=names("a"), order=("a",))


def step(
    name: str, *parts: str, key: str = A, before: str = "", writes: str = "", variables: tuple[str, ...] = ()
) -> Step:
    """What the function's code asks for; the parts are modules of the same distribution that it loads."""
    modules = tuple(Module(key, each, 0.01) for each in (name, *parts))
    return Step(name, key, -1, before, tuple(writes.split()), modules, variables)


def top_of(*steps: Step, **options: Any) -> TopLevel:
    return TopLevel(steps or (step("a"),), names(A, B), **options)


TOP = top_of()
"""A top level that imports a, and nothing else."""


def beside(offer: Provided = NOTHING, code: Provided = NOTHING, **env: str) -> ImportView:
    """A function with A, and B that offers this."""
    return ImportView(names(A, B), {A: NOTHING, B: offer}, code, {"HOME": "/tmp", **env}, top=TOP)


def doing(*steps: Step, **options: Any) -> ImportView:
    """A function with A and B, and a top level that does these."""
    return ImportView(names(A, B), environment={"HOME": "/tmp"}, top=top_of(*steps, **options))


def with_files(*each: str) -> ImportView:
    """A function with A, and these files."""
    return ImportView(names(A), {A: NOTHING}, environment={"HOME": "/tmp"}, files=names(*each), top=TOP)


def having(*loaded: str) -> Preimported:
    """A Zygote of A that was asked to import these, and has loaded no more."""
    return Preimported(names(A), {"HOME": "/tmp"}, loaded=names(*loaded), order=loaded)


def modules(*each: str) -> Provided:
    return Provided(modules=names(*each))


def spaces(*each: str) -> Provided:
    return Provided(namespaces=names(*each))


REFUSED: dict[str, tuple[str, Preimported, ImportView]] = {
    "a package that was not asked for": (
        "_other_packages",
        seen(),
        ImportView(names(B), {}, NOTHING, {"HOME": "/tmp"}, top=TOP),
    ),
    "a missed module": ("_names_looked_up", seen(missed=["socks"]), beside(modules("socks"))),
    "a missed directory": ("_names_looked_up", seen(missed=["google"]), beside(spaces("google"))),
    "a missed part of a namespace": ("_names_looked_up", seen(missed=["google.x"]), beside(modules("google.x"))),
    "the code's own module": ("_names_looked_up", seen(missed=["socks"]), beside(code=modules("socks"))),
    "a found module": ("_names_looked_up", seen(found=["calendar"]), beside(code=modules("calendar"))),
    "a found module, as a directory": ("_names_looked_up", seen(found=["google"]), beside(spaces("google"))),
    "a namespace that is a package": ("_names_looked_up", seen(namespaces=["google"]), beside(modules("google"))),
    "more names than are known": ("_names_looked_up", seen(), beside(Provided(is_partial=True))),
    "the top of sys.path listed": ("_directories_listed", seen(listed=[""]), beside(modules("b"))),
    "a namespace listed": ("_directories_listed", seen(listed=["google"]), beside(spaces("google"))),
    "a file": ("_files_looked_for", seen(files=["matplotlibrc"]), with_files("f.py", "matplotlibrc")),
    "the directory": ("_files_looked_for", seen(files=["."]), with_files("f.py")),
    "a version": ("_metadata_asked_for", seen(metadata=["b"]), beside(Provided(metadata=names("b")))),
    "a group": ("_metadata_asked_for", seen(groups=["g"]), beside(Provided(groups=names("g")))),
    "all distributions": ("_metadata_asked_for", seen(every_distribution=True), beside(Provided(metadata=names("b")))),
    "pkg_resources": ("_metadata_asked_for", seen(found=["pkg_resources"]), beside(Provided(metadata=names("b")))),
    "a .pth file": ("_pth_files", seen(), beside(Provided(has_pth=True))),
    "a variable": ("_variables_read", seen(variables=["X"]), beside(X="1")),
    "a variable that is the Zygote's": ("_variables_read", seen(variables=["HOME"]), beside(HOME="/")),
    "a prefix": ("_variables_read", seen(prefixes=["X_"]), beside(X_Y="1")),
    "all variables": ("_variables_read", seen(every_variable=True), beside(X="1")),
    "the limit of open files": ("_variables_read", seen(variables=["RLIMIT_NOFILE"]), beside(RLIMIT_NOFILE="77")),
    "the time zone": ("_variables_read", seen(), beside(TZ="Asia/Tokyo")),
    "the locale": ("_variables_read", seen(), beside(LC_CTYPE="C")),
    "no recording": ("_modules_loaded", seen(), ImportView(names(A), environment={"HOME": "/tmp"})),
    "a module that is not imported": ("_modules_loaded", seen(), doing(step("b", key=B))),
    "a submodule that is not imported": ("_modules_loaded", having("a", "a.late"), doing(step("a"))),
    "a part of another import": (
        "_whole_imports",
        replace(having("a", "b"), packages=names(A, B), groups=(("b", names("a", "b")),)),
        doing(step("a"), step("b", key=B)),
    ),
    "own code before an import": ("_modules_loaded", seen(), doing(step("a", before="os.environ['X']"))),
    "own code before an earlier import": (
        "_modules_loaded",
        seen(),
        doing(step("b", key=B, before="sys.path"), step("a", before="sys.path")),
    ),
    "a package, where none may be imported ahead": ("_modules_loaded", seen(), doing(step("a"), standard_only=True)),
    "an import that was left out, and changes something": (
        "_order_of_imports",
        seen(),
        doing(step("b", key=B, writes="json.dumps"), step("a")),
    ),
    "an import behind one that was left out, and changes something": (
        "_order_of_imports",
        seen(),
        doing(step("b", key=B), step("a", writes="warnings.filters")),
    ),
    "an import of which a part was left out, before one that changes something": (
        "_order_of_imports",
        having("a", "c"),
        doing(step("a", "a.late"), step("c", writes="json.dumps")),
    ),
    "another order of imports, one of which changes something": (
        "_order_of_imports",
        having("a", "c"),
        doing(step("c"), step("a", writes="json.dumps")),
    ),
}
OWN_VARIABLE = doing(step("a", variables=("X_Y",)))
"""A top level that changes a variable and then imports a."""
REFUSED |= {
    f"a variable that own code has changed, and an import {how}": ("_variables_of_own_code", zygote, OWN_VARIABLE)
    for how, zygote in {
        "has read": seen(variables=["X_Y"]),
        "may have read by a prefix": seen(prefixes=["X_"]),
        "may have read with all others": seen(every_variable=True),
    }.items()
}
ALLOWED = {
    "a variable that own code has changed, and no import has read": (
        seen(variables=["X"], prefixes=["Y_"]),
        OWN_VARIABLE,
    ),
    "a variable that own code changes behind the imports of the Zygote": (
        seen(variables=["X"]),
        doing(step("a"), step("b", key=B, variables=("X",))),
    ),
    "another prefix": (seen(prefixes=["X_"]), beside(X="1")),
    "other names": (seen(missed=["socks"], found=["json"], listed=["own"]), beside(modules("b", "b2"))),
    "another part of a namespace": (seen(namespaces=["google"], found=["google.a"]), beside(spaces("google"))),
    "another distribution": (
        seen(metadata=["c"], groups=["h"]),
        beside(Provided(metadata=names("b"), groups=names("g"))),
    ),
    "another file": (seen(files=["matplotlibrc"]), with_files("f.py")),
    "all, and there is nothing": (seen(every_distribution=True, listed=[""]), beside()),
    "another variable": (seen(variables=["Y"]), beside(X="1")),
    "the same variable": (seen(variables=["HOME"]), beside()),
    "a .pth file in the code, which none runs": (seen(), beside(code=Provided(has_pth=True))),
    "the root, whatever there is": (Preimported(), beside(Provided(is_partial=True, has_pth=True), TZ="UTC")),
    "the same imports in the same order, whatever they change": (
        having("a", "c"),
        doing(step("a", writes="json.dumps"), step("c", writes="sys.path")),
    ),
    "the first imports, whatever later ones change": (
        seen(),
        doing(step("a", writes="json.dumps"), step("b", key=B, writes="sys.path")),
    ),
    "own code behind the imports of the Zygote": (seen(), doing(step("a"), step("b", key=B, before="sys.path"))),
    "imports that change nothing, left out": (seen(), doing(step("b", key=B), step("a"))),
    "imports that change nothing, in another order": (having("a", "c"), doing(step("c"), step("a"))),
    "the standard library, where no package may be imported ahead": (
        having("json"),
        doing(step("json", "json.decoder", key=""), step("a"), standard_only=True),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_each_difference_is_refused_by_its_clause_alone(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clause, shared, view = REFUSED[what]
    assert difference(shared, view)
    rest = tuple(each for each in soundness.CLAUSES if each.__name__ != clause)
    assert len(rest) == len(soundness.CLAUSES) - 1
    monkeypatch.setattr(soundness, "CLAUSES", rest)
    assert not difference(shared, view)


def test_every_clause_has_a_case() -> None:
    assert {clause for clause, _, _ in REFUSED.values()} == {clause.__name__ for clause in soundness.CLAUSES}


@pytest.mark.parametrize("what", ALLOWED)
def test_what_no_import_saw_does_not_matter(what: str) -> None:
    assert difference(*ALLOWED[what]) == ""


def test_a_reason_names_what_and_whose() -> None:
    assert (
        difference(seen(missed=["socks", "brotli"]), beside(modules("socks")))
        == f"an import looked for socks, which {B} has"
    )


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (ImportView(names(A)), "the function's top level is not recorded yet"),
        (doing(step("b", key=B)), "the function's top level does not import a"),
        (
            doing(step("b", key=B), step("a", before="os.environ['X']")),
            "the function's own code changes os.environ['X'] before it imports a",
        ),
        (
            doing(step("a"), standard_only=True),
            'a package has a, and zygote = "stdlib" allows imports of the standard library alone',
        ),
        (
            doing(step("b", key=B, writes="json.dumps"), step("a")),
            "the function imports in another order, among others b, which changes json.dumps",
        ),
    ],
)
def test_a_reason_names_what_the_top_level_does(view: ImportView, reason: str) -> None:
    assert difference(seen(), replace(view, environment={"HOME": "/tmp"})) == reason


def test_a_module_that_only_a_package_imports_is_named_with_the_setting() -> None:
    imports = Step("a", A, -1, "", (), (Module(A, "a", 0.01), Module("", "_bisect", 0.01)))
    reason = 'a package imports _bisect for the function, and zygote = "stdlib" allows no imports of packages'
    assert difference(having("_bisect"), doing(imports, standard_only=True)) == reason
    assert difference(having("_bisect"), doing(imports)) == ""


def test_the_limit_of_open_files_is_named_as_such() -> None:
    reason = difference(seen(variables=["RLIMIT_NOFILE"]), beside(RLIMIT_NOFILE="77"))
    assert reason == "an import read the limit of open files, and the function sets open_files"


# -- against a model: sys.path as a list of offers, and imports as questions to it

MODULES = ("m", "n", "s", "s.x", "s.y")
"""Names; s is a namespace package wherever it is no module."""
KEYS = tuple(f"{name}-1-{digit * 12}" for name, digit in zip("abcd", "0123", strict=True))

offers = st.builds(
    lambda modules, spaces, metadata, groups: Provided(
        modules=frozenset(modules) - {f"{space}.{part}" for space in modules for part in "xy"},
        namespaces=frozenset(spaces) | {"s" for each in modules if "." in each},
        metadata=frozenset(metadata),
        groups=frozenset(groups),
    ),
    st.sets(st.sampled_from(MODULES)),
    st.sets(st.sampled_from(("s", "n"))),
    st.sets(st.sampled_from(("d", "e"))),
    st.sets(st.sampled_from(("g", "h"))),
)
questions = st.lists(
    st.tuples(st.just("import"), st.sampled_from(MODULES))
    | st.tuples(st.just("metadata"), st.sampled_from(("d", "e")))
    | st.tuples(st.just("group"), st.sampled_from(("g", "h")))
    | st.tuples(st.just("list"), st.sampled_from(("", "s")))
    | st.tuples(st.just("variable"), st.sampled_from(("X", "Y")))
    | st.tuples(st.just("environment"), st.just("")),
    max_size=6,
)
environments = st.dictionaries(st.sampled_from(("X", "Y", "Z")), st.sampled_from(("1", "2")))


class Model:
    """What a process with these directories on sys.path and this environment would answer to an import's questions."""

    def __init__(self, path: list[tuple[str, Provided]], environment: Mapping[str, str]) -> None:
        self._path = path
        self._environment = environment

    def answer(self, kind: str, name: str) -> object:
        if kind == "import":
            return self.find(name)
        if kind == "variable":
            return self._environment.get(name)
        if kind == "environment":
            return sorted(self._environment.items())
        if kind == "list":
            return [key for key, offer in self._path if (offer != NOTHING if name == "" else name in offer.namespaces)]
        return [key for key, offer in self._path if name in (offer.metadata if kind == "metadata" else offer.groups)]

    def find(self, name: str) -> object:
        """The first module of the name; without one, a namespace package, if there is a directory."""
        parent = name.rpartition(".")[0]
        if parent and self.find(parent) != "namespace":
            return None if self.find(parent) is None else "its own affair"
        for key, offer in self._path:
            if name in offer.modules:
                return key
        return "namespace" if any(name in offer.namespaces for _, offer in self._path) else None


def observed(model: Model, asked: list[tuple[str, str]]) -> Observed:
    """What an observer notes of these questions: each name with those above it, as the import system looks them up."""
    notes: dict[str, set[str]] = {"missed": set(), "found": set(), "namespaces": set()}
    for kind, name in asked:
        if kind == "import":
            for each in (name.partition(".")[0], name):
                found = model.find(each)
                if found != "its own affair" and not (found is None and "." in each and model.find("s") is None):
                    notes["missed" if found is None else "namespaces" if found == "namespace" else "found"].add(each)
    return Observed(
        missed=frozenset(notes["missed"]),
        found=frozenset(notes["found"]),
        namespaces=frozenset(notes["namespaces"]),
        listed=frozenset(name for kind, name in asked if kind == "list"),
        metadata=frozenset(name for kind, name in asked if kind == "metadata"),
        groups=frozenset(name for kind, name in asked if kind == "group"),
        variables=frozenset(name for kind, name in asked if kind == "variable"),
        every_variable=any(kind == "environment" for kind, _ in asked),
    )


def imported(keys: frozenset[str], environment: Mapping[str, str], seen: Observed) -> Preimported:
    """What a Zygote has done that was asked to import a."""
    return Preimported(keys, environment, seen, loaded=names("a"), order=("a",))


@given(st.lists(offers, min_size=4, max_size=4), offers, st.integers(1, 3), questions, environments, environments)
@example([modules("m"), modules("n"), NOTHING, NOTHING], NOTHING, 1, [("import", "n")], {}, {})
def test_what_is_allowed_would_have_been_answered_alike(
    all_offers: list[Provided],
    code: Provided,
    count: int,
    asked: list[tuple[str, str]],
    environment: dict[str, str],
    other: dict[str, str],
) -> None:
    """A Zygote has every other of the packages: those of a function besides may stand before and behind them on sys.path."""
    path = list(zip(KEYS, all_offers, strict=True))
    ours = path[::2][:count]
    zygote, function = Model(ours, environment), Model([("code", code), *path], other)
    shared = imported(frozenset(key for key, _ in ours), environment, observed(zygote, asked))
    view = ImportView(frozenset(KEYS), dict(path), code, other, top=TOP)
    if not difference(shared, view):
        assert [zygote.answer(*each) for each in asked] == [function.answer(*each) for each in asked]


@given(st.lists(offers, min_size=4, max_size=4), questions, environments)
def test_a_function_with_the_very_same_is_always_served(
    all_offers: list[Provided], asked: list[tuple[str, str]], environment: dict[str, str]
) -> None:
    path = list(zip(KEYS, all_offers, strict=True))
    shared = imported(frozenset(KEYS), environment, observed(Model(path, environment), asked))
    assert difference(shared, ImportView(frozenset(KEYS), dict(path), NOTHING, environment, top=TOP)) == ""


@given(st.lists(offers, min_size=4, max_size=4), offers, questions, questions, environments, environments)
def test_who_saw_more_serves_fewer(
    all_offers: list[Provided],
    code: Provided,
    asked: list[tuple[str, str]],
    later: list[tuple[str, str]],
    environment: dict[str, str],
    other: dict[str, str],
) -> None:
    path = list(zip(KEYS, all_offers, strict=True))
    zygote = Model(path[:2], environment)
    keys = frozenset(KEYS[:2])
    first = observed(zygote, asked)
    both = first.followed_by(observed(zygote, later))
    view = ImportView(frozenset(KEYS), dict(path), code, other, top=TOP)
    if difference(imported(keys, environment, first), view):
        assert difference(imported(keys, environment, both), view)
