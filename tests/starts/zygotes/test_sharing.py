"""Which imports a plan for a Zygote may have, from what top levels load, and from what earlier Zygotes saw."""

from __future__ import annotations

import msgspec
import pytest

from sockd.isolation.farm.imported import Observed
from sockd.starts.packages.provided_names import NOTHING, Provided
from sockd.starts.zygotes.selection import Demand, PackageCost, TreeLimits, next_node
from sockd.starts.zygotes.top_levels import sharing as sharings
from sockd.starts.zygotes.top_levels.sharing import Sharing
from sockd.starts.zygotes.top_levels.soundness import ImportView, Preimported
from sockd.starts.zygotes.top_levels.top_level import Module, Step, TopLevel, import_id, path_id


def key(name: str, version: str = "1") -> str:
    return f"{name}-{version}-{'0' * 12}"


def keys(*names: str) -> frozenset[str]:
    return frozenset(key(*name.split("==")) for name in names)


def ids(*names: str) -> frozenset[str]:
    """Return the ids of the imports of distributions that have one module of their name."""
    return frozenset(import_id(name.partition("==")[0], key(*name.split("=="))) for name in names)


def top(*steps: str, closure: str = "", **options: bool) -> TopLevel:
    """A top level with these imports. Each is `name`, `name==version`, or `name<outer`: a part of an earlier one.

    A `*` at its end: own code has changed something before it."""
    made: list[Step] = []
    for text in steps:
        name, _, outer = text.rstrip("*").partition("<")
        at = next((number for number, step in enumerate(made) if step.name == outer), -1)
        name, _, version = name.partition("==")
        owner = key(name, version or "1")
        before = "os.environ" if text.endswith("*") else ""
        made.append(Step(name, owner, at, before, (), (Module(owner, name, 0.1),)))
    return TopLevel(tuple(made), keys(*closure.split()) | {step.key for step in made}, **options)


class Known:
    """A sharing and what it knows of distributions."""

    def __init__(self, requires: dict[str, set[str]], offers: dict[str, Provided] | None = None) -> None:
        self.refused: frozenset[str] = frozenset()
        self._requires = requires
        self._offers = offers or {}
        self.sharing = Sharing(self.provided, lambda: self.refused)

    def provided(self, key: str) -> Provided:
        name = key.rsplit("-", 2)[0]
        return self._offers.get(name, Provided(requires=frozenset(self._requires.get(name, ()))))

    def common(self, ours: TopLevel, theirs: TopLevel) -> frozenset[str]:
        """What both may have from one Zygote, without the place on sys.path of the packages that they have besides."""
        paths = {path_id(ours.closure), path_id(theirs.closure)}
        mine, other = self.sharing.know(ours), self.sharing.know(theirs)
        return self.sharing.closed(mine, mine, other) - paths


def test_what_both_top_levels_import_is_shared() -> None:
    known = Known({})
    ours, theirs = top("numpy", "pandas", "click"), top("numpy", "flask")
    assert known.common(ours, theirs) == known.common(theirs, ours) == ids("numpy")
    assert known.common(ours, ours) == ids("numpy", "pandas", "click")


def test_a_part_of_an_import_is_not_shared() -> None:
    known = Known({})
    ours, theirs = top("pandas", "numpy<pandas", "click"), top("numpy", "click")
    assert known.common(ours, theirs) == known.common(theirs, ours) == ids("click")
    assert known.common(ours, ours) == ids("pandas", "click")


def test_an_import_that_loads_more_for_us_than_for_them_is_not_shared() -> None:
    """pandas imports an optional package that only one of the two has."""
    known = Known({})
    ours, theirs = top("pandas", "optional<pandas"), top("pandas")
    assert known.common(ours, theirs) == known.common(theirs, ours) == frozenset()


def test_what_own_code_has_changed_something_for_is_not_shared() -> None:
    known = Known({})
    ours, theirs = top("numpy", "pandas", "click"), top("numpy", "pandas*", "click*")
    assert known.common(ours, theirs) == known.common(theirs, ours) == ids("numpy")
    assert known.common(theirs, theirs) == ids("numpy")


def test_packages_are_not_shared_with_a_function_of_the_standard_library_alone() -> None:
    known = Known({})
    ours, theirs = top("numpy", "pandas"), top("numpy", "pandas", standard_only=True)
    assert theirs.wanted == frozenset() and known.common(ours, theirs) == frozenset()


def test_imports_after_one_that_the_other_lacks_are_not_shared_if_they_change_state() -> None:
    quiet = [Step(name, key(name), -1, "", (), (Module(key(name), name, 0.1),)) for name in ("a", "b", "c")]
    a, b, c = quiet
    writer = msgspec.structs.replace(c, writes=("warnings.filters",))
    closure = keys("a", "b", "c")
    assert Known({}).common(TopLevel((a, c), closure), TopLevel((a, b, c), closure)) == ids("a", "c")
    for ours, theirs in (((a, writer), (a, b, writer)), ((a, b, writer), (a, writer))):
        assert Known({}).common(TopLevel(ours, closure), TopLevel(theirs, closure)) == ids("a")


def test_two_versions_of_a_distribution_are_two_imports() -> None:
    known = Known({})
    assert known.common(top("numpy", "dateutil==2"), top("numpy", "dateutil==4")) == ids("numpy")


def test_the_path_of_a_closure_is_shared_by_functions_with_an_import_in_common() -> None:
    sharing = Known({}).sharing
    tops = [top(name, "click", closure="numpy pandas") for name in ("numpy", "pandas")]
    tops += [top("flask", closure="click numpy pandas"), top("flask", closure="click numpy pandas flask")]
    one, other, *apart = map(sharing.know, tops)
    path = path_id(tops[0].closure)
    assert path in one and path in other
    assert sharing.closed(one, one, other) == ids("click") | {path}
    for each in apart:
        assert sharing.closed(one, one, each) == frozenset()


def test_what_requires_a_refused_package_is_not_planned() -> None:
    known = Known({"pandas": {"numpy"}})
    ours = top("pandas", "click", closure="numpy")
    assert known.common(ours, ours) == ids("pandas", "click")
    known.refused = keys("numpy")
    assert known.common(ours, ours) == ids("click")
    known.refused = frozenset()
    assert known.common(ours, ours) == ids("pandas", "click")


def test_what_imports_from_a_refused_package_is_not_planned_either() -> None:
    known = Known({})  # an import that no metadata tells of
    ours = top("pandas", "numpy<pandas", "click")
    known.refused = keys("numpy")
    assert known.common(ours, ours) == ids("click")


def test_pth_files_are_the_same_for_all_functions_of_a_zygote() -> None:
    known = Known({}, {"tools": Provided(has_pth=True)})
    with_tools, without = top("numpy", closure="tools"), top("numpy")
    assert known.common(with_tools, with_tools) == ids("numpy")
    assert known.common(with_tools, without) == known.common(without, with_tools) == frozenset()
    known.refused = keys("tools")
    assert known.common(with_tools, with_tools) == frozenset()


def test_nothing_is_shared_with_a_function_that_is_not_known() -> None:
    sharing = Known({}).sharing
    wanted = sharing.know(top("numpy"))
    assert sharing.closed(wanted, wanted, wanted)
    assert sharing.closed(wanted, wanted, ids("numpy")) == sharing.closed(wanted, ids("numpy"), wanted) == frozenset()


def test_the_path_of_a_zygote_has_what_its_imports_require_and_the_pth_files() -> None:
    known = Known({"pandas": {"numpy", "absent"}, "numpy": {"pandas"}}, {"tools": Provided(has_pth=True)})
    ours = top("pandas", "six<pandas", "click", closure="numpy tools flask")
    assert known.sharing.path_of(ids("pandas"), ours) == keys("pandas", "six", "numpy", "tools")
    assert known.sharing.path_of(ids("click"), ours) == keys("click", "tools")
    assert known.sharing.path_of(ids("click") | {path_id(ours.closure)}, ours) == ours.closure


def test_what_a_zygote_saw_decides_which_functions_it_serves() -> None:
    known = Known({}, {"socks": Provided(modules=frozenset({"socks"}))})
    sharing = known.sharing
    alone, beside = (sharing.know(top("requests", closure=closure)) for closure in ("", "socks"))
    done = ids("requests")
    assert sharing.serves(done, beside)  # nothing is known
    seen = Observed(missed=frozenset({"socks"}), variables=frozenset({"X"}))
    shared = Preimported(keys("requests"), {}, seen, loaded=frozenset({"requests"}), order=("requests",))
    sharing.learn(done, shared)
    assert sharing.serves(done, alone) and not sharing.serves(done, beside)
    assert "variable X" in sharing.refusal(done, ImportView(keys("requests"), environment={"X": "1"}))
    assert sharing.refusal(ids("click"), ImportView(keys("requests"), environment={"X": "1"})) == "", "not known"
    sharing.forget()
    assert sharing.serves(done, beside)


def test_a_zygote_with_another_order_of_imports_that_change_state_saves_nothing() -> None:
    """The planner must not count on it: it would then find a Zygote of the function's own to be worth nothing."""
    sharing = Known({}).sharing
    a, b = (Step(name, key(name), -1, "", (), (Module(key(name), name, 0.1),)) for name in ("a", "b"))
    writer = msgspec.structs.replace(a, writes=("shared libraries",))
    shared = Preimported(keys("b"), loaded=frozenset({"b"}), order=("b",))
    sharing.learn(ids("b"), shared)
    assert sharing.serves(ids("b"), sharing.know(TopLevel((a, b), keys("a", "b"))))
    sharing.learn(ids("b"), shared)  # predicted anew
    assert not sharing.serves(ids("b"), sharing.know(TopLevel((writer, b), keys("a", "b"))))


def test_a_zygote_with_an_import_that_is_not_wanted_serves_never() -> None:
    sharing = Known({}).sharing
    wanted = sharing.know(top("requests", "click"))
    assert sharing.serves(ids("requests"), wanted) and not sharing.serves(ids("requests", "flask"), wanted)


def test_a_zygote_that_a_verification_found_to_differ_is_not_planned_until_forgotten() -> None:
    sharing = Known({}).sharing
    wanted, other = sharing.know(top("requests", "click")), sharing.know(top("requests", "flask"))
    sharing.refuse(ids("requests"), wanted)
    assert not sharing.serves(ids("requests"), wanted)
    assert sharing.serves(ids("requests"), other) and sharing.serves(ids("requests", "click"), wanted)
    sharing.forget()
    assert sharing.serves(ids("requests"), wanted)


def test_no_plan_is_made_for_functions_that_it_would_not_serve() -> None:
    known = Known({}, {"socks": Provided(modules=frozenset({"socks"}))})
    sharing = known.sharing
    alone, beside = sharing.know(top("requests")), sharing.know(top("requests", "flask", closure="socks"))
    shared = Preimported(
        keys("requests"), {}, Observed(missed=frozenset({"socks"})), loaded=frozenset({"requests"}), order=("requests",)
    )
    sharing.learn(ids("requests"), shared)

    class Root:
        id = "root"
        imports: frozenset[str] = frozenset()

    plan = next_node(
        [Root()],
        beside,
        [Demand(beside, 1.0), Demand(alone, 1.0)],
        costs={import_id("requests", key("requests")): PackageCost(0.1, 1000)},
        depths={"root": 0},
        limits=TreeLimits(),
        sharing=sharing,
    )
    assert plan is not None and plan.imports == beside, "with the path on which its import finds what it looks for"
    assert plan.benefit == 0.1  # of those that it serves


def test_a_module_that_fewer_imports_missed_is_missed_by_more_unless_on_their_path() -> None:
    known = Known({}, {"socks": Provided(modules=frozenset({"socks"}))})
    sharing = known.sharing
    sharing.learn(
        ids("requests"),
        Preimported(keys("requests"), seen=Observed(missed=frozenset({"socks"})), order=("requests",)),
    )
    ours = top("requests", "click", "socks")
    wanted = sharing.know(ours)
    assert not sharing.serves(ids("requests", "click"), wanted)
    assert sharing.serves(ids("requests", "socks"), wanted)
    assert sharing.serves(ids("requests", "click") | {path_id(ours.closure)}, wanted)
    assert sharing.serves(ids("click"), wanted) and not sharing.serves(ids("faker"), wanted)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharings, "MAX_REMEMBERED", 10)
    sharing = Sharing(lambda key: NOTHING, frozenset)
    for number in range(300):
        wanted = sharing.know(top(f"p{number}"))
        shared = Preimported(keys(f"p{number}"), {}, Observed(every_variable=True), order=(f"p{number}",))
        sharing.learn(ids(f"p{number}"), shared)
        assert sharing.serves(ids(f"p{number}"), wanted)
        sharing.refuse(frozenset(), wanted)
    view = ImportView(keys("p0"), environment={"X": "1"})
    assert sharing.refusal(ids("p0"), view) == ""
    assert sharing.refusal(ids("p299"), view)
    tables = sharing._tops, sharing._verdicts, sharing._differing, sharing._closed
    assert all(len(table) <= 10 for table in tables) and len(sharing._known) <= sharings.MAX_KNOWN


def test_a_zygote_without_an_optional_package_does_not_serve_who_imports_it_within() -> None:
    """The package would be a part of the function's own imports; the Zygote that there is did not have it."""
    known = Known({}, {"optional": Provided(modules=frozenset({"optional"}))})
    wanted = known.sharing.know(top("pandas", "optional<pandas"))
    seen = Observed(missed=frozenset({"optional"}))
    known.sharing.learn(ids("pandas"), Preimported(keys("pandas"), seen=seen, order=("pandas",)))
    assert not known.sharing.serves(ids("pandas"), wanted)
    assert known.sharing.serves(ids("pandas"), known.sharing.know(top("pandas")))
