"""What a module is, in words that two processes agree on."""

from __future__ import annotations

import copyreg
import inspect
import json
import logging
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd_zygote.forks.module_kinds import Kinds
from sockd_zygote.top_levels.fingerprint import (
    DEPTH,
    MOST_ITEMS,
    MOST_PARTS,
    Fingerprint,
    constant_text,
    digest_of,
    parts,
    shown,
)

CONSTANTS = st.one_of(
    st.none(), st.booleans(), st.integers(-1000, 1000), st.floats(), st.text(max_size=20), st.binary(max_size=20)
)
VALUES = st.recursive(
    CONSTANTS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.text(max_size=5), inner, max_size=5),
        st.tuples(inner, inner),
        st.frozensets(CONSTANTS, max_size=5),
    ),
    max_leaves=12,
)


def module(code: str, name: str = "p") -> types.ModuleType:
    """A module with this code, which is of a distribution."""
    made = types.ModuleType(name)
    made.__file__ = "/packages/p-1.0-aaaaaaaaaaaa/p.py"
    exec(compile(code, made.__file__, "exec"), vars(made))
    return made


def digest(code: str) -> str:
    return digest_of(Fingerprint(Kinds()).names_of("p", module(code)))


@given(VALUES)
def test_equal_values_look_alike(value: Any) -> None:
    copied = eval(repr(value), {"nan": float("nan"), "inf": float("inf")})
    assert Fingerprint(Kinds()).looks(value) == Fingerprint(Kinds()).looks(copied)
    assert isinstance(shown(Fingerprint(Kinds()).looks(value)), str)


@given(CONSTANTS, CONSTANTS)
def test_constants_that_differ_look_different(one: Any, other: Any) -> None:
    same = type(one) is type(other) and repr(one) == repr(other)
    assert (Fingerprint(Kinds()).looks(one) == Fingerprint(Kinds()).looks(other)) == same


@given(st.dictionaries(st.text(max_size=5), CONSTANTS, min_size=2, max_size=8), st.randoms())
def test_order_of_dicts_and_sets_does_not_count(items: dict[str, Any], random: Any) -> None:
    mixed = list(items.items())
    random.shuffle(mixed)
    assert Fingerprint(Kinds()).looks(items) == Fingerprint(Kinds()).looks(dict(mixed))
    assert Fingerprint(Kinds()).looks(set(items)) == Fingerprint(Kinds()).looks({key for key, _ in mixed})


@given(st.lists(CONSTANTS, min_size=2, max_size=6))
def test_order_of_lists_counts(items: list[Any]) -> None:
    turned = items[::-1]
    assert (Fingerprint(Kinds()).looks(items) == Fingerprint(Kinds()).looks(turned)) == (
        list(map(repr, items)) == list(map(repr, turned))
    )


DIFFERENT = {
    "a constant": ("x = 1", "x = 2"),
    "a type": ("x = 1", "x = True"),
    "a name more": ("x = 1", "x = 1\ny = None"),
    "a function's code": ("def f(): return 1", "def f(): return 2"),
    "a function within it": ("def f():\n  def g(): return 1\n  return g", "def f():\n  def g(): return 2\n  return g"),
    "a default": ("def f(a=1): pass", "def f(a=2): pass"),
    "a base": ("class A(int): pass", "class A(float): pass"),
    "a method": ("class A:\n  def m(self): return 1", "class A:\n  def m(self): return 2"),
    "a property": (
        "class A:\n  @property\n  def m(self): return 1",
        "class A:\n  @property\n  def m(self): return 2",
    ),
    "a class attribute": ("class A:\n  x = None", "class A:\n  x = 'set'"),
    "an item": ("x = {'a': [1, 2]}", "x = {'a': [1, 3]}"),
    "a cache that was filled": (
        "class A:\n  cache = {}",
        "class A:\n  cache = {}\nA.cache[1] = 1",  # nothing tells a cache from a registry
    ),
    "a size": (f"x = list(range({MOST_ITEMS + 1}))", f"x = list(range({MOST_ITEMS + 2}))"),
    "an item of a subclass of dict": (
        "class D(dict): pass\nx = D(backend='agg')",
        "class D(dict): pass\nx = D(backend='svg')",
    ),
    "an attribute of an object": (
        "class A: pass\nx = A()\nx.offline = False",
        "class A: pass\nx = A()\nx.offline = True",
    ),
    "a module in the place of another": ("import json as x", "import re as x"),
    "nothing in the place of a module": ("import json as x", "x = None"),
    "the end of a long text": ("x = 'a' * 9000 + 'b'", "x = 'a' * 9000 + 'c'"),
}
ALIKE = {
    "an address": ("x = 140234567890123", "x = 140234567890999"),
    "an address in a text": ("x = '<object at 0x7f0012345678>'", "x = '<object at 0x7f00aaaaaaaa>'"),
    "objects of a class": ("x = object()", "x = object()"),
    "a lock": ("import threading\nx = threading.Lock()", "import threading\nx = threading.Lock()\nx.acquire()"),
    "a random state": ("import random\nx = random.Random(1)", "import random\nx = random.Random(2)"),
    "the interpreter's own names": ("__doc__ = 'a'", "__doc__ = 'b'"),
    "a set of classes": ("x = {int, str, float, dict}", "x = {dict, float, str, int}"),
    "a line number": ("def f(): return 1", "\n\ndef f(): return 1"),
}


@pytest.mark.parametrize("which", DIFFERENT)
def test_what_differs(which: str) -> None:
    one, other = DIFFERENT[which]
    assert digest(one) == digest(one)
    assert digest(one) != digest(other)


@pytest.mark.parametrize("which", ALIKE)
def test_what_does_not_differ(which: str) -> None:
    one, other = ALIKE[which]
    assert digest(one) == digest(other)


def test_process_ids_are_taken_for_each_other() -> None:
    look = Fingerprint(Kinds(), [1, 34])
    assert look.looks([1, "a"]) == look.looks([34, "a"])
    assert look.looks(1) != look.looks(2) != look.looks(34)
    assert look.looks(True) != look.looks(1)


def test_depth_is_bounded() -> None:
    deep: list[Any] = [1]
    deep.append(deep)
    assert Fingerprint(Kinds()).looks(deep)
    value: Any = 1
    for _ in range(DEPTH + 1):
        value = [value]
    assert Fingerprint(Kinds()).looks(value) == Fingerprint(Kinds()).looks(eval(repr(value).replace("1", "2")))


def test_a_default_that_holds_every_function_of_its_module_is_looked_at_once() -> None:
    every = "\n".join(f"def f{number}(all=globals()): return {number}" for number in range(200))
    assert len(repr(Fingerprint(Kinds()).looks(vars(module(every))["f7"]))) < 200 * 200


HOSTILE = """
class Meta(type):
    def __getattribute__(cls, name): raise SystemExit
class A(metaclass=Meta): pass
class Proxy:
    def __getattribute__(self, name): raise SystemExit
    def __repr__(self): raise SystemExit
    def __eq__(self, other): raise SystemExit
    def __hash__(self): return 1
class S(str):
    def __repr__(self): raise SystemExit
class L(list):
    def __iter__(self): raise SystemExit
    def __len__(self): raise SystemExit
class D(dict):
    def items(self): raise SystemExit
    def __len__(self): raise SystemExit
class Own:
    @property
    def __dict__(self): raise SystemExit
a, s, l, d, own, every = Proxy(), S('x'), L([1]), D(x=1), Own(), {Proxy()}
"""


def test_no_code_of_a_package_is_run() -> None:
    names = Fingerprint(Kinds()).names_of("p", module(HOSTILE))
    assert {"A", "a", "s", "l", "d", "own", "every"} <= names.keys()
    assert all(isinstance(shown(look), str) for look in names.values())


@pytest.fixture
def with_a_part() -> Iterator[types.ModuleType]:
    whole, part = module("x = 1"), module("y = 1", "p.part")
    vars(whole)["part"] = vars(whole)["again"] = part
    sys.modules["p.part"] = part
    yield whole
    del sys.modules["p.part"]


def test_a_submodule_that_is_bound_does_not_count(with_a_part: types.ModuleType) -> None:
    assert Fingerprint(Kinds()).names_of("p", with_a_part).keys() == {"x", "again"}


def test_runtime_and_interpreter_are_not_compared() -> None:
    loaded = {"sys": sys, "__main__": module("", "__main__"), "sockd_zygote.protocol": module("", "x"), "p": module("")}
    standard, own = {"json": json}, {"f": types.ModuleType("f"), "put in": object()}
    found = Fingerprint(Kinds()).modules({**loaded, **standard, **own})
    assert found.keys() == {"p", "json", "f", "put in"}


def test_what_stands_for_a_module_is_compared_as_a_value() -> None:
    look = Fingerprint(Kinds()).names_of
    assert digest_of(look("p", None)) != digest_of(look("p", 1)) == digest_of(look("p", 1))


def test_another_name_of_the_table_of_modules_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """As beartype has it: in a Zygote's fork it holds modules of the runtime besides."""
    code = "from sys import modules\ncopied = dict(modules)\n"
    holder = module(code)
    before = Fingerprint(Kinds()).names_of("p", holder)
    monkeypatch.setitem(sys.modules, "sockd_zygote.forks.more", types.ModuleType("more"))
    again = Fingerprint(Kinds()).names_of("p", module(code))
    assert before["modules"] == again["modules"] and before["copied"] != again["copied"]


def test_caches_of_the_standard_library_are_not_compared() -> None:
    names = Fingerprint(Kinds()).names_of("re", re)
    assert "_cache" not in names and "compile" in names
    assert {"modulesbyfile", "_filesbymodname"}.isdisjoint(Fingerprint(Kinds()).names_of("inspect", inspect))


def test_caches_of_a_copy_of_such_a_module_are_not_compared() -> None:
    copy = module("_shutdown_locks = {1}\nSHUTDOWN = 1", "threading")
    assert Fingerprint(Kinds()).names_of("__original_module_threading", copy).keys() == {"SHUTDOWN"}


def test_a_default_argument_that_is_such_a_cache_is_not_compared() -> None:
    """As `logging.shutdown` has: weak references to all handlers, which `logging.config` makes anew."""
    before = Fingerprint(Kinds()).names_of("logging", logging)
    handler = logging.NullHandler()
    after = Fingerprint(Kinds()).names_of("logging", logging)
    assert before["shutdown"] == after["shutdown"]
    assert handler.name is None, "it is there until now"
    own = module("def f(entries=[]): pass\nkept = f.__defaults__[0]")
    names = Fingerprint(Kinds()).names_of("p", own)
    own.kept.append(1)
    assert Fingerprint(Kinds()).names_of("p", own)["f"] != names["f"], "another list is"


WORDS = {
    "1": "1",
    "'2024-06-01'": "'2024-06-01'",
    "[1, 'a']": "a list of 2 (1, 'a')",
    "{'a': 1}": "a dict of 1",
    "int": "the class int",
    "len": "an object of builtin_function_or_method",
}


SECRETS = {
    "'the secret'": "$KEY",
    "'secret'": "a str",
    "['the secret']": "a list of 1",
    "1234": "an int",
    "None": "None",
    "True": "True",
}


@pytest.mark.parametrize("expression", SECRETS)
def test_words_hold_no_secret(expression: str) -> None:
    known = {constant_text("the secret", repr): "$KEY"}
    assert shown(Fingerprint(Kinds()).looks(eval(expression)), known) == SECRETS[expression]


@pytest.mark.parametrize("expression", WORDS)
def test_words_for_people(expression: str) -> None:
    assert shown(Fingerprint(Kinds()).looks(eval(expression))) == WORDS[expression]


PARTS: dict[str, tuple[str, str, str]] = {
    "a function's code": ("def x(): return 1", "def x(): return 2", "its code"),
    "a function's default": ("def x(a=0, b=1): pass", "def x(a=0, b=2): pass", "the default argument 2"),
    "a long text": ("x = 'a' * 200 + 'b'", "x = 'a' * 200 + 'c'", "the characters from 192 to 256"),
    "a type": ("class A(int): __repr__ = int.__repr__\nx = A(1)", "x = 1", "its type"),
    "an item of a dict": ("x = {'a': [1], 'b': [2]}", "x = {'a': [1], 'b': [3]}", "the item 'b'"),
    "an item of a list": ("x = [[1], [2]]", "x = [[1], [3]]", "the item 1"),
    "an attribute of an object": (
        "class A: pass\nx = A()\nx.a = 1",
        "class A: pass\nx = A()\nx.a = 2",
        "the attribute a",
    ),
    "an attribute of a class": ("class x:\n  a = 1", "class x:\n  a = 2", "the attribute a"),
    "a base of a class": ("class x(int): pass", "class x(float): pass", "its bases"),
}


@pytest.mark.parametrize("which", PARTS)
def test_values_that_are_shown_alike_differ_in_a_part(which: str) -> None:
    one, other, expected = PARTS[which]
    looks = [Fingerprint(Kinds()).names_of("p", module(code))["x"] for code in (one, other)]
    assert shown(looks[0]) == shown(looks[1])
    first, second = map(parts, looks)
    assert [name for name in first if first[name] != second.get(name)] == [expected]


@given(VALUES)
def test_parts_of_equal_values_are_equal_and_few(value: Any) -> None:
    copied = eval(repr(value), {"nan": float("nan"), "inf": float("inf")})
    looks = [Fingerprint(Kinds()).looks(each) for each in (value, copied)]
    assert parts(looks[0]) == parts(looks[1]) and len(parts(looks[0])) <= MOST_PARTS
    assert len(parts(Fingerprint(Kinds()).looks([*range(1000)]))) == MOST_PARTS


def test_parts_of_what_may_be_a_secret_are_reported_by_number() -> None:
    assert parts(Fingerprint(Kinds()).looks({"the secret": 1}), is_secret=True).keys() == {"its length", "the item 0"}


def test_the_module_that_pickle_finds_for_a_function_in_c_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(copyreg.dispatch_table, type(str.join), lambda value: value.__name__)
    own, package = module("join = str.join\nother = len\n"), module("join = str.join\n")
    own.__file__ = "/var/task/p.py"
    for first, second in (("p", "package"), ("package", "p")):
        for name in (first, second):
            monkeypatch.delitem(sys.modules, name, raising=False)
            monkeypatch.setitem(sys.modules, name, own if name == "p" else package)
        names = Fingerprint(Kinds()).names_of("p", own)
        assert names["join, when it is pickled"] == ("constant", "str", first)
        assert names.keys() == {"join", "other", "join, when it is pickled"}
