"""What a recorded top level says, and that no Zygote serves a function whose own start would have become another process.

The second half compares `soundness.difference` with a model of an interpreter (`interpreter_model`). What it leaves to the
verification, which runs the top level in both, is listed in `LEFT_TO_VERIFICATION`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from sockd.isolation.farm.imported import Observed
from sockd.starts.packages.provided_names import Provided
from sockd.starts.zygotes.top_levels import top_level
from sockd.starts.zygotes.top_levels.soundness import ImportView, Preimported, difference
from sockd.starts.zygotes.top_levels.top_level import (
    BYTES_PER_IMPORT_SECOND,
    UNKNOWN_PEAK_BYTES,
    BadRecording,
    Module,
    Step,
    TopLevel,
    import_id,
    key_of_import,
    out_of_order,
    path_id,
    read_steps,
)
from tests.starts.zygotes.interpreter_model import KEYS, STATE, VARIABLES, Action, Bodies, Process, record

PANDAS, NUMPY, FLASK = "pandas-2.2.3-aa", "numpy-1.26.4-bb", "flask-3.1-cc"
CLOSURE = frozenset({PANDAS, NUMPY, FLASK})


def step(name: str, key: str, *parts: str, outer: int = -1, before: str = "", writes: str = "") -> Step:
    modules = tuple(Module(key, each, 0.01) for each in (name, *parts))
    return Step(name, key, outer, before, tuple(writes.split()), modules)


STEPS = (
    step("json", "", "json.decoder"),
    step("pandas", PANDAS, "pandas.core"),
    step("numpy", NUMPY, "numpy.core", outer=1),
    step("flask", FLASK, before="os.environ['X']"),
    step("numpy.fft", NUMPY, before="os.environ['X']"),
)
TOP = TopLevel(STEPS, CLOSURE)


# -- one recording


def test_all_before_the_first_change_of_own_code_may_be_done_ahead() -> None:
    assert TOP.change == "the function's own code changes os.environ['X'] before it imports flask"
    assert TOP.shareable == {"json", "json.decoder", "pandas", "pandas.core", "numpy", "numpy.core"}
    assert TOP.loaded == TOP.shareable | {"flask", "numpy.fft"}
    path = path_id(CLOSURE)
    assert TOP.wanted == {"json@", f"pandas@{PANDAS}", path}
    assert TOP.asked_for == TOP.wanted | {f"flask@{FLASK}", f"numpy.fft@{NUMPY}"}


def test_what_changes_nothing_before_its_imports_may_have_all_of_them_ahead() -> None:
    top = TopLevel(STEPS[:3], CLOSURE)
    assert top.change == "" and top.shareable == top.loaded and top.wanted == top.asked_for


def test_with_the_standard_library_alone_no_import_of_a_package_is_done_ahead() -> None:
    top = TopLevel((*STEPS[:1], step("sched", ""), step("helper", NUMPY, outer=1), step("flask", FLASK)), CLOSURE, True)
    assert top.wanted == {"json@", path_id(CLOSURE)}
    assert top.shareable == {"json", "json.decoder", "sched"}


def test_a_top_level_without_imports_wants_no_zygote() -> None:
    for top in (TopLevel((), CLOSURE), TopLevel(STEPS[3:], CLOSURE), TopLevel(STEPS[1:2], CLOSURE, True)):
        assert top.wanted == frozenset() and top.shareable == frozenset()


def test_an_import_has_the_modules_and_distributions_of_its_parts() -> None:
    pandas, numpy = STEPS[1], STEPS[2]
    assert TOP.modules_of(pandas.id) == {"pandas", "pandas.core", "numpy", "numpy.core"}
    assert TOP.modules_of(numpy.id) == {"numpy", "numpy.core"} and TOP.modules_of("none@") == frozenset()
    assert TOP.keys_of(pandas) == {PANDAS, NUMPY} and TOP.keys_of_id("json@") == frozenset()
    assert {each.name: modules for each, modules in TOP.outer_steps()} == {
        "json": frozenset({"json", "json.decoder"}),
        "pandas": frozenset({"pandas", "pandas.core", "numpy", "numpy.core"}),
    }
    assert TOP.places["numpy.core"] == TOP.places["pandas"] == 1 and TOP.places["numpy.fft"] == 4


def test_a_zygote_imports_in_the_order_in_which_the_function_does() -> None:
    assert TOP.in_order(TOP.wanted) == ["json", "pandas"]
    assert TOP.in_order(frozenset({path_id(CLOSURE)})) == []


def test_the_time_of_an_import_is_that_of_its_parts_too() -> None:
    assert TOP.seconds[STEPS[1].id] == pytest.approx(0.04) and TOP.seconds[STEPS[4].id] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("seconds", "peak_bytes", "expected"),
    [
        (0.1, 128 << 20, [0.1 * BYTES_PER_IMPORT_SECOND, 0.3 * BYTES_PER_IMPORT_SECOND]),
        (10.0, 64 << 20, [16 << 20, 48 << 20]),
        (10.0, 0, [UNKNOWN_PEAK_BYTES / 4, UNKNOWN_PEAK_BYTES * 3 / 4]),
        (0.0, 64 << 20, [0.0, 0.0]),
    ],
    ids=["by time", "on a busy host", "of unknown memory", "no time"],
)
def test_the_memory_of_imports_is_at_most_what_the_recorded_start_used(
    seconds: float, peak_bytes: int, expected: list[float]
) -> None:
    steps = tuple(
        Step(name, NUMPY, -1, "", (), (Module(NUMPY, name, times * seconds),)) for name, times in (("a", 1), ("b", 3))
    )
    top = TopLevel(steps, CLOSURE, peak_bytes=peak_bytes)
    assert list(top.memory_bytes.values()) == pytest.approx(expected)


def test_ids() -> None:
    assert STEPS[1].id == import_id("pandas", PANDAS) and key_of_import(STEPS[1].id) == PANDAS
    assert key_of_import(STEPS[0].id) == top_level.STANDARD_LIBRARY
    assert path_id(CLOSURE) == path_id(frozenset(sorted(CLOSURE))) != path_id(CLOSURE - {FLASK})


# -- the order of imports


@pytest.mark.parametrize("writer", ["a", "b", "c"])
@pytest.mark.parametrize(
    ("order", "is_served"),
    [
        (("a", "b", "c"), True),
        (("a", "b"), True),
        (("a",), True),
        (("b", "c"), False),
        (("a", "c"), False),
        (("b", "a", "c"), False),
        (("a", "c", "b"), False),
    ],
)
def test_imports_commute_where_none_of_them_writes(order: tuple[str, ...], is_served: bool, writer: str) -> None:
    steps = [step(name, NUMPY, writes="warnings.filters" if name == writer else "") for name in "abc"]
    silent = TopLevel(tuple(step(name, NUMPY) for name in "abc"), CLOSURE)
    reason = out_of_order(order, frozenset(order), TopLevel(tuple(steps), CLOSURE))
    assert out_of_order(order, frozenset(order), silent) == ""
    stays_first = order == ("a", "c") and writer == "a"  # before both of the others, whichever comes first of these
    if is_served or stays_first or (writer == "c" and "c" not in order):
        assert reason == ""
    else:
        assert reason == f"the function imports in another order, among others {writer}, which changes warnings.filters"


@pytest.mark.parametrize(
    ("writes", "is_served"),
    [
        *((name, True) for name in sorted(top_level.COMMUTING)),
        ("loggers['b']", True),
        ("loggers['root']", False),
        ("loggers.b", False),
    ],
)
def test_imports_commute_that_register_something_under_names_of_their_own(writes: str, is_served: bool) -> None:
    """The root logger is no import's own: of two that configure it the first decides."""
    first = msgspec.structs.replace(step("a", NUMPY), writes=("loggers['a']", writes))
    top = TopLevel((first, step("b", NUMPY)), CLOSURE)
    assert (out_of_order(("b",), frozenset("b"), top) == "") is is_served


def test_imports_of_the_standard_library_may_come_earlier_or_later() -> None:
    steps = step("logging", ""), step("a", NUMPY, writes="warnings.filters"), step("json", "")
    top = TopLevel(steps, CLOSURE)
    for order in (("a",), ("logging", "a"), ("a", "logging"), ("json", "a", "logging")):
        assert out_of_order(order, frozenset(order), top) == ""


# -- what sandboxes say

SAID: list[dict[str, Any]] = msgspec.to_builtins(STEPS)


def test_a_recording_is_read_as_it_was_made() -> None:
    assert read_steps(SAID, CLOSURE) == STEPS
    assert read_steps([], frozenset()) == ()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (None, "no recording"),
        ({"steps": []}, "no recording"),
        ([{**SAID[0], "more": 1}], "no recording"),
        ([{name: value for name, value in SAID[0].items() if name != "before"}], "no recording"),
        ([{**SAID[0], "outer": "0"}], "no recording"),
        ([{**SAID[0], "modules": [["", "json"]]}], "no recording"),
        ([{**SAID[0], "modules": [["", "json", "soon"]]}], "no recording"),
        ([{**SAID[0], "outer": 0}], "distributions that the function does not have"),
        ([SAID[0], {**SAID[1], "outer": 2}], "distributions that the function does not have"),
        ([{**SAID[0], "outer": -2}], "distributions that the function does not have"),
        ([{**SAID[0], "key": "other-1-dd"}], "distributions that the function does not have"),
        ([{**SAID[0], "modules": [["other-1-dd", "json", 0.1]]}], "distributions that the function does not have"),
        ([SAID[0]] * (top_level.MAX_MODULES + 1), "more than 5000 modules"),
        ([{**SAID[0], "modules": [["", "json", 0.1]] * 5001}], "more than 5000 modules"),
    ],
)
def test_what_is_no_recording_is_refused(said: object, words: str) -> None:
    with pytest.raises(BadRecording, match=words):
        read_steps(said, CLOSURE)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300])
def test_times_that_are_none_are_refused_or_bounded(seconds: float) -> None:
    said = [{**SAID[0], "modules": [["", "json", seconds]]}]
    try:
        (read,) = read_steps(said, CLOSURE)
    except BadRecording:
        return
    assert 0 <= read.modules[0].seconds < 1e9


# -- against the model

ALL = frozenset(KEYS.values())
E_KEY = KEYS["e"]
"""A distribution that not each function has: its module is imported optionally, if at all."""


def body(name: str) -> st.SearchStrategy[list[Action]]:
    """What the import of a module does. It may import e, and modules before it, so that no import is circular."""
    before = [each for each in KEYS if each < name != "e"]
    actions = [
        st.tuples(st.just("read"), st.sampled_from(STATE)),
        st.tuples(st.just("set"), st.sampled_from(STATE), st.integers(0, 2)),
        st.tuples(st.just("add"), st.sampled_from(STATE)),
    ]
    if name != "e":
        actions.append(st.tuples(st.just("try"), st.just("e")))
    if before:
        modules = st.sampled_from(before)
        actions += [
            st.tuples(st.sampled_from(("import", "import", "patch")), modules),
            st.tuples(st.just("within"), st.sampled_from(STATE), modules),
        ]
    return st.lists(st.one_of(actions), max_size=3)


bodies = st.fixed_dictionaries({name: body(name) for name in KEYS})
environments = st.dictionaries(st.sampled_from(VARIABLES), st.integers(1, 2), max_size=1)
closures = st.sampled_from((ALL, ALL, ALL - {E_KEY}))
own_imports = st.lists(st.sampled_from("abcd"), unique=True, min_size=1, max_size=4)


@st.composite
def own_code(draw: st.DrawFn, *, acts: bool = True) -> list[Action]:
    """Imports; between them, seldom, what own code changes: each time to a value of its own."""
    code: list[Action] = []
    for number, name in enumerate(draw(own_imports)):
        kind = draw(st.sampled_from(("none",) * 6 + ("set", "patch"))) if acts else "none"
        if kind == "set":
            code.append(("set", draw(st.sampled_from(STATE)), 100 + number))
        elif kind == "patch" and code and code[-1][0] == "import":
            code.append(("patch", code[-1][1]))
        code.append(("import", name))
    return code


class Case:
    """A function, and a Zygote that was asked to import some modules, with other packages on its path and no variables."""

    def __init__(
        self, bodies: Bodies, closure: frozenset[str], environment: dict[str, int], code: list[Action], order: list[str]
    ) -> None:
        self.bodies, self.closure, self.environment, self.code = bodies, closure, environment, code
        self.top = record(bodies, closure, environment, code)
        self.order = tuple(order)
        self.zygote = self.imported(closure)

    def __repr__(self) -> str:
        parts = (f"{name}: {actions}" for name, actions in self.bodies.items() if actions)
        more = f"environment: {self.environment}", f"closure: {sorted(self.closure)}"
        return "\n".join(
            (*parts, f"own code: {self.code}", *more, f"Zygote: {self.order} {sorted(self.zygote.closure)}")
        )

    def outer(self) -> list[str]:
        """What own code imports, as far as it is not loaded already."""
        return [each.name for each in self.top.steps if each.outer < 0]

    def planned(self, outer: list[str]) -> list[str]:
        """Return what a Zygote is asked to import that is to have these imports of own code, with their parts
        (`zygote_maker`)."""
        modules = frozenset(name for each in outer for name in self.top.modules_of(import_id(each, KEYS[each])))
        return self.top.in_order(frozenset(each.id for each in self.top.steps if each.name in modules))

    def imported(self, closure: frozenset[str]) -> Process:
        process = Process.started(self.bodies, closure, {})
        self.groups: list[tuple[str, frozenset[str]]] = []
        for name in self.order:
            before = set(process.modules)
            process.load(name)
            if new := frozenset(process.modules.keys() - before):
                self.groups.append((name, new))
        return process

    def with_path(self, closure: frozenset[str]) -> Case:
        self.zygote = self.imported(closure)
        return self

    def reason(self) -> str:
        """Why the policy does not let the Zygote serve the function; empty: it does."""
        zygote = self.zygote
        seen = Observed(
            missed=frozenset(zygote.missed),
            found=frozenset(zygote.modules),
            variables=frozenset(zygote.touched.intersection(VARIABLES)),
        )
        loaded = frozenset(zygote.modules)
        shared = Preimported(zygote.closure, {}, seen, loaded=loaded, order=self.order, groups=tuple(self.groups))
        offers = {
            key: Provided(modules=frozenset(name for name, owner in KEYS.items() if owner == key))
            for key in self.closure
        }
        environment = {name: str(value) for name, value in self.environment.items()}
        return difference(shared, ImportView(self.closure, offers, environment=environment, top=self.top))

    def is_alike(self, *, with_own: bool = False) -> bool:
        """Whether a start from the Zygote becomes what a start of the function's own becomes.

        Args: with_own: what own code has noted counts, too."""
        own = Process.started(self.bodies, self.closure, self.environment)
        fork = self.imported(self.zygote.closure)
        fork.closure = self.closure
        for name, value in self.environment.items():
            # What an import has not touched is the function's; the policy refuses what it has.
            fork.state[name] = fork.state[name] if name in fork.touched else value
        notes = own.run(self.code), fork.run(self.code)
        return own.became() == fork.became() and (not with_own or notes[0] == notes[1])


@st.composite
def cases(draw: st.DrawFn, *, acts: bool = True) -> Case:
    code = draw(own_code(acts=acts))
    closure = draw(closures)
    case = Case(draw(bodies), closure, draw(environments), code, [])
    outer = case.outer()
    kind = draw(st.sampled_from(("first", "some", "any")))
    if kind == "any":
        case.order = tuple(draw(own_imports))
    else:
        chosen = outer[: draw(st.integers(1, len(outer)))]
        case.order = tuple(case.planned([name for name in chosen if kind == "first" or draw(st.booleans())]))
    return case.with_path(draw(st.sampled_from((closure, closure, ALL - {E_KEY}))))


many = settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow], deadline=None)


@many
@given(cases())
def test_no_zygote_serves_a_function_whose_own_start_would_become_another_process(case: Case) -> None:
    reason = case.reason()
    event(reason.partition(" ")[0] or "served")
    if not reason:
        assert case.is_alike()


@many
@given(cases(acts=False))
def test_a_zygote_that_has_done_the_first_imports_of_a_function_serves_it(case: Case) -> None:
    """Own code changes nothing, and the function has the packages and the variables of the Zygote."""
    alone = Case(case.bodies, case.closure, {}, case.code, [])
    for count in range(1, len(alone.outer()) + 1):
        exact = Case(case.bodies, case.closure, {}, case.code, alone.planned(alone.outer()[:count]))
        assert exact.reason() == "" and exact.is_alike()


NO_BODIES: Bodies = dict.fromkeys(KEYS, ())
PARTS: dict[str, tuple[Bodies, list[Action], list[str]]] = {
    "a part of an import, before which that had changed something": (
        {"a": [("read", "X")], "b": [("add", "X"), ("import", "a")]},
        [("import", "b")],
        ["a"],
    ),
    "a part of an import, for which that had changed something and back": (
        {"a": [("read", "sys.path")], "b": [("within", "sys.path", "a")]},
        [("import", "b")],
        ["a"],
    ),
    "a part of an import before the whole": (
        {"a": [("read", "X")], "b": [("add", "X"), ("import", "a")]},
        [("import", "b")],
        ["a", "b"],
    ),
    "the second of two parts of an import, without the first": (
        {"a": [("add", "json.dumps")], "b": [("read", "json.dumps")], "c": [("import", "a"), ("import", "b")]},
        [("import", "c")],
        ["b"],
    ),
    "a part of an import that patches it, and a later import that has it unpatched": (
        {"b": [("patch", "a")], "c": [("import", "a")]},
        [("import", "b"), ("import", "c")],
        ["a", "c"],
    ),
    "a later import of the same distribution, of which the first is a part": (
        {"c": [("read", "X")], "d": [("add", "X"), ("import", "c")]},
        [("import", "c"), ("import", "d")],
        ["d"],
    ),
}
"""Zygotes that have done a part of an import of own code ahead of the rest: bodies, own code, and what the Zygote was asked
to import."""


@pytest.mark.parametrize("what", PARTS)
def test_a_part_of_an_import_is_not_done_ahead(what: str) -> None:
    bodies, code, order = PARTS[what]
    case = Case({**NO_BODIES, **bodies}, ALL, {}, code, order)
    reasons = "only within another import", "another import of the function loads a part of"
    assert any(reason in case.reason() for reason in reasons) and not case.is_alike(with_own=True)


LEFT_TO_VERIFICATION: dict[str, tuple[Bodies, list[Action], list[str]]] = {
    "own code that has noted what a later import changes": (
        {"b": [("patch", "a")]},
        [("import", "a"), ("import", "b")],
        ["a", "b"],
    ),
    "own code that sets what it has already, and a later import changes": (
        {"a": [("set", "X", 1)], "b": [("add", "X")]},
        [("import", "a"), ("set", "X", 1), ("import", "b")],
        ["a", "b"],
    ),
}
"""What the policy allows though the start becomes another process: a recording has not what own code reads.

The verification finds these: a module, the interpreter's state or a name of own code differs."""


@pytest.mark.parametrize("what", LEFT_TO_VERIFICATION)
def test_what_the_policy_cannot_see_differs_where_a_verification_looks(what: str) -> None:
    bodies, code, order = LEFT_TO_VERIFICATION[what]
    case = Case({**NO_BODIES, **bodies}, ALL, {}, code, order)
    assert case.reason() == "" and not case.is_alike(with_own=True)


def test_the_cases_are_of_all_kinds() -> None:
    """Zygotes that serve or do not, and starts that are alike or not: each is met often."""
    met: Counter[tuple[bool, bool]] = Counter()

    @settings(
        max_examples=600, suppress_health_check=[HealthCheck.too_slow], deadline=None, database=None, derandomize=True
    )
    @given(cases())
    def meet(case: Case) -> None:
        met[not case.reason(), case.is_alike()] += 1

    meet()
    assert met[True, True] > 60 and met[False, False] > 60 and met[False, True] > 10, met
