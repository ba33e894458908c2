"""Which packages a plan for a Zygote may have, from what distributions require and from what earlier Zygotes saw."""

from __future__ import annotations

from sockd.caches.packages.provided_names import NOTHING, Provided
from sockd.caches.zygotes.selection import Demand, PackageCost, TreeLimits, next_node
from sockd.caches.zygotes.sharing import Sharing
from sockd.caches.zygotes.soundness import ImportView, Preimported
from sockd.farm.imported import Observed


def key(name: str, version: str = "1") -> str:
    return f"{name}-{version}-{'0' * 12}"


def keys(*names: str) -> frozenset[str]:
    return frozenset(key(*name.split("==")) for name in names)


class Known:
    """A sharing and what it is told of distributions."""

    def __init__(self, requires: dict[str, set[str]], offers: dict[str, Provided] | None = None) -> None:
        self.refused: frozenset[str] = frozenset()
        self._requires = requires
        self._offers = offers or {}
        self.sharing = Sharing(self.provided, lambda: self.refused)

    def provided(self, key: str) -> Provided:
        name = key.rsplit("-", 2)[0]
        return self._offers.get(name, Provided(requires=frozenset(self._requires.get(name, ()))))


def test_a_package_is_planned_with_what_it_requires_also_where_nobody_imported_that() -> None:
    known = Known({"pandas": {"numpy", "tzdata"}, "numpy": set()})
    closure = keys("pandas", "numpy", "tzdata", "unrelated")
    assert known.sharing.closed(keys("pandas"), closure, closure) == keys("pandas", "numpy", "tzdata")


def test_the_common_part_of_two_locks_is_closed_in_both() -> None:
    """dateutil in two versions: neither it nor pandas, which requires it, is common; numpy is."""
    known = Known({"pandas": {"numpy", "dateutil"}, "stats": {"pandas"}})
    ours = keys("pandas", "numpy", "dateutil==2", "stats")
    theirs = keys("pandas", "numpy", "dateutil==4", "stats")
    assert known.sharing.closed(ours & theirs, ours, theirs) == keys("numpy")
    assert known.sharing.closed(ours, ours, ours) == ours


def test_what_requires_a_refused_package_is_not_planned() -> None:
    known = Known({"pandas": {"numpy"}})
    closure = keys("pandas", "numpy", "click")
    known.refused = keys("numpy")
    assert known.sharing.closed(closure, closure, closure) == keys("click")
    known.refused = frozenset()
    assert known.sharing.closed(closure, closure, closure) == closure


def test_packages_that_require_each_other_are_planned_together() -> None:
    known = Known({"a": {"b"}, "b": {"a"}})
    assert known.sharing.closed(keys("a"), keys("a", "b"), keys("a", "b")) == keys("a", "b")


def test_pth_files_are_in_each_plan_and_the_same_for_all_of_its_functions() -> None:
    known = Known({}, {"tools": Provided(has_pth=True)})
    with_tools, without = keys("numpy", "tools"), keys("numpy")
    assert known.sharing.closed(keys("numpy"), with_tools, with_tools) == with_tools
    assert known.sharing.closed(keys("numpy"), with_tools, without) == frozenset()
    known.refused = keys("tools")
    assert known.sharing.closed(keys("numpy"), with_tools, with_tools) == frozenset()


def test_what_a_zygote_saw_decides_which_closures_it_serves() -> None:
    known = Known({}, {"socks": Provided(modules=frozenset({"socks"}))})
    sharing = known.sharing
    packages, both = keys("requests"), keys("requests", "socks")
    assert sharing.serves(packages, both)  # nothing is known
    sharing.learn(Preimported(packages, {}, Observed(missed=frozenset({"socks"}), variables=frozenset({"X"}))))
    assert sharing.serves(packages, packages) and not sharing.serves(packages, both)
    assert "variable X" in sharing.refusal(packages, ImportView(packages, environment={"X": "1"}))
    sharing.forget()
    assert sharing.serves(packages, both)


def test_no_plan_is_made_for_functions_that_it_would_not_serve() -> None:
    known = Known({}, {"socks": Provided(modules=frozenset({"socks"}))})
    packages, both = keys("requests"), keys("requests", "socks")
    known.sharing.learn(Preimported(packages, {}, Observed(missed=frozenset({"socks"}))))

    class Root:
        id = "root"
        packages: frozenset[str] = frozenset()

    plan = next_node(
        [Root()],
        both,
        [Demand(both, 1.0), Demand(packages, 1.0)],
        costs={key("requests"): PackageCost(0.1, 1000)},
        depths={"root": 0},
        limits=TreeLimits(),
        sharing=known.sharing,
    )
    assert plan is not None and plan.packages == both, (
        "with what its import looks for, though no function imported that"
    )
    assert plan.benefit == 0.1  # of those that it serves


def test_what_is_remembered_is_bounded() -> None:
    sharing = Sharing(lambda key: NOTHING, frozenset)
    for number in range(300):
        sharing.learn(Preimported(keys(f"p{number}"), {}, Observed(every_variable=True)))
    view = ImportView(keys("p0"), environment={"X": "1"})
    assert sharing.refusal(keys("p0"), view) == ""
    assert sharing.refusal(keys("p299"), view)


def test_what_fewer_packages_looked_for_is_looked_for_by_more_unless_it_is_among_them() -> None:
    known = Known({}, {"socks": Provided(modules=frozenset({"socks"}))})
    known.sharing.learn(Preimported(keys("requests"), seen=Observed(missed=frozenset({"socks"}))))
    closure = keys("requests", "click", "socks")
    assert not known.sharing.serves(keys("requests", "click"), closure)
    assert known.sharing.serves(keys("requests", "socks"), closure)
    assert known.sharing.serves(keys("click"), closure) and not known.sharing.serves(keys("faker"), closure)
