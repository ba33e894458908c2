"""What a snapshot of the interpreter sees of what code changes between two imports."""

from __future__ import annotations

import ast
import base64
import os
import pkgutil
import subprocess
import sys
import types
import urllib.parse
from abc import ABC
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd_zygote.top_levels import heap, process
from sockd_zygote.top_levels.heap import Heap
from sockd_zygote.top_levels.state import State, are_same_items, changed_setting

REPOSITORY = Path(__file__).resolve().parents[3]
NAME = "state_of_p"
CODE = """
import collections, contextvars, itertools
number = 1
text = "a"
numbers = [1, 2]
nested = {"a": {"b": 1}}
chosen = {1, 2}
def call(): return 1
class Settings:
    level = 1
    options = {"a": 1}
    def method(self): return 1
class Thing: pass
thing = Thing()
thing.mode = "x"
thing.parts = {"a": 1}
class Slots:
    __slots__ = ("size", "parts")
slots = Slots()
slots.size, slots.parts = 1, [1]
def counted():
    count = 0
    def add():
        nonlocal count
        count += 1
        return count
    return add
add = counted()
def default(items=[]): return items
def steps():
    yield 1
    yield 1
generator = steps()
iterator = iter([1, 2])
add_item = [1].append
ids = itertools.count()
queue = collections.deque([1])
content = bytearray(b"a")
class Plain: pass
plain = Plain()
plain.a = 1
deep = [[[[[[thing, {"a": [1]}]]]]]]
variable = contextvars.ContextVar("state_of_p_variable", default=1)
"""


def add_module(name: str, code: str) -> types.ModuleType:
    made = types.ModuleType(name)
    exec(code, vars(made))
    sys.modules[name] = made
    return made


@pytest.fixture(autouse=True)
def without_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests write to /tmp and to the log that they share with these, and files that they left open are closed when cycles
    are collected."""
    monkeypatch.setattr(process, "contents_of_tmp", dict)
    descriptors = process.descriptors
    of_others = descriptors().keys()
    monkeypatch.setattr(process, "descriptors", lambda: {n: d for n, d in descriptors().items() if n not in of_others})


@pytest.fixture
def p() -> Iterator[types.ModuleType]:
    """A module that is compared, and its like that is not."""
    yield add_module(NAME, CODE)
    for name in [name for name in sys.modules if name.startswith(NAME)]:
        del sys.modules[name]


def state() -> State:
    return State(lambda name, module: name.startswith(NAME) and not name.endswith("own"))


def changes(change: Callable[[Any], object], module: Any) -> list[str]:
    """What a snapshot says of a change, settings of the process left out."""
    before = state()
    change(module)
    found = before.changes(state())
    return sorted({name for name in found if NAME in name})


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "another constant": (lambda p: setattr(p, "number", 2), "number"),
    "a constant of another type": (lambda p: setattr(p, "number", True), "number"),
    "a function in the place of another": (lambda p: setattr(p, "call", lambda: 1), "call"),
    "a name more": (lambda p: setattr(p, "more", 1), "more"),
    "a name less": (lambda p: delattr(p, "text"), "text"),
    "an item more": (lambda p: p.numbers.append(3), "numbers"),
    "an item in the place of another": (lambda p: p.numbers.__setitem__(0, 9), "numbers"),
    "a key more": (lambda p: p.nested.update(z=1), "nested"),
    "a value in the second depth": (lambda p: p.nested["a"].update(b=2), "nested"),
    "a member of a set": (lambda p: p.chosen.add(3), "chosen"),
    "a class attribute": (lambda p: setattr(p.Settings, "level", 2), "Settings"),
    "a class attribute more": (lambda p: setattr(p.Settings, "more", 2), "Settings"),
    "a method": (lambda p: setattr(p.Settings, "method", lambda self: 2), "Settings"),
    "an attribute of an object": (lambda p: setattr(p.thing, "mode", "y"), "thing"),
    "an attribute more": (lambda p: setattr(p.thing, "more", 1), "thing"),
    "an item of an object's attribute": (lambda p: p.thing.parts.update(a=2), "thing"),
    "a slot": (lambda p: setattr(p.slots, "size", 2), "slots"),
    "an item of a slot": (lambda p: p.slots.parts.append(2), "slots"),
    "a variable of a closure": (lambda p: p.add(), "add"),
    "a default argument": (lambda p: p.default().append(1), "default"),
    "an attribute of a function": (lambda p: setattr(p.call, "mode", 1), "call"),
    "where a generator stands": (lambda p: next(p.generator), "generator"),
    "an item of a list whose method alone has a name": (lambda p: p.add_item(2), "add_item"),
    "where an iterator stands": (lambda p: next(p.iterator), "iterator"),
    "a counter": (lambda p: next(p.ids), "ids"),
    "an item of a queue": (lambda p: p.queue.append(2), "queue"),
    "a byte": (lambda p: p.content.append(1), "content"),
    "an item in the eighth depth": (lambda p: p.deep[0][0][0][0][0][1]["a"].append(2), "deep"),
    "a table in a class": (lambda p: p.Settings.options.update(a=2), "Settings"),
}


@pytest.mark.parametrize("which", CHANGES)
def test_what_code_changes_is_seen(which: str, p: types.ModuleType) -> None:
    change, name = CHANGES[which]
    assert changes(change, p) == [f"{NAME}.{name}"]


UNCHANGED: dict[str, Callable[[Any], object]] = {
    "nothing": lambda p: None,
    "an equal constant": lambda p: setattr(p, "text", "".join(["a"])),
    "an equal item": lambda p: p.numbers.__setitem__(0, int("1")),
    "a warning that was shown": lambda p: setattr(p, "__warningregistry__", {1: 1}),
    "what is there already": lambda p: p.nested["a"].setdefault("b", 1),
    "a subclass": lambda p: type("Sub", (p.Settings,), {}),
    "an object of a class": lambda p: p.Slots(),
    "a dictionary that the interpreter makes": lambda p: (vars(p.plain), p.call.__dict__, p.call.__annotations__),
    "a module more": lambda p: add_module(f"{NAME}.later", "x = 1"),
    "a submodule that is bound": lambda p: setattr(p, "part", add_module(f"{NAME}.part", "x = 1")),
    "the function's own module": lambda p: setattr(sys.modules[f"{NAME}_own"], "x", 2),
}


@pytest.mark.parametrize("which", UNCHANGED)
def test_what_is_no_change(which: str, p: types.ModuleType) -> None:
    add_module(f"{NAME}_own", "x = 1")
    assert changes(UNCHANGED[which], p) == []


def test_a_module_that_is_bound_by_hand_is_a_change(p: types.ModuleType) -> None:
    assert changes(lambda p: setattr(p, "part", types.ModuleType("part")), p) == [f"{NAME}.part"]


def test_a_promised_name_is_no_change_and_another_value_of_it_is(p: types.ModuleType) -> None:
    vars(p)["__all__"] = ["late"]
    assert changes(lambda p: setattr(p, "late", 1), p) == []
    assert changes(lambda p: setattr(p, "late", 2), p) == [f"{NAME}.late"]
    assert changes(lambda p: setattr(p, "other", 2), p) == [f"{NAME}.other"]


@pytest.mark.parametrize("gone", ["forgotten", "replaced", "blocked", "blocked that was never there"])
def test_what_becomes_of_entries_of_sys_modules(gone: str, p: types.ModuleType) -> None:
    def change(p: types.ModuleType) -> None:
        if gone == "forgotten":
            del sys.modules[NAME]
        elif gone == "replaced":
            add_module(NAME, CODE.replace("number = 1", "number = 5"))
        elif gone == "blocked":
            sys.modules[NAME] = None  # type: ignore[assignment]
        else:
            sys.modules[f"{NAME}_absent"] = None  # type: ignore[assignment]

    found = changes(change, p)
    name = f"{NAME}_absent" if "never" in gone else NAME
    assert (f"sys.modules[{name!r}]" in found) if gone != "replaced" else (f"{NAME}.number" in found)


def test_a_class_is_named_by_the_module_that_made_it(p: types.ModuleType) -> None:
    borrower = add_module(f"{NAME}.borrower", f"import sys\nBorrowed = sys.modules[{NAME!r}].Settings")
    sys.modules[NAME] = sys.modules.pop(NAME)  # the last of them
    assert changes(lambda each: setattr(each.Borrowed, "x", 2), borrower) == [f"{NAME}.Settings"]


def test_a_subclass_is_reported_by_itself(p: types.ModuleType) -> None:
    before = state()
    assert before.new_subclasses(state()) == []
    derived = type("Derived", (p.Settings,), {})
    assert before.new_subclasses(state()) == [f"subclasses of {NAME}.Settings"] and derived.__base__ is p.Settings
    after = state()
    mine = type("Mine", (Exception,), {})
    assert after.new_subclasses(state()) == [] and mine.__base__ is Exception


def test_a_context_variable_is_a_part(p: types.ModuleType) -> None:
    name = "contextvars.Context.state_of_p_variable"
    before = state()
    reset = p.variable.set([1])
    set_ = state()
    p.variable.get().append(2)
    changed = state()
    p.variable.reset(reset)
    assert before.changes(set_) == set_.changes(changed) == [name]


def test_a_class_that_is_registered_with_an_abstract_one_is_a_change() -> None:
    before = state()
    assert isinstance(1, Hashable) and not before.changes(state())

    class Abstract(ABC):  # noqa: B024 -- without methods it is one, too
        pass

    Abstract.register(int)
    assert before.changes(state()) == ["registrations with abstract classes"]


def test_a_cache_of_a_package_is_compared_and_one_of_the_standard_library_is_not(p: types.ModuleType) -> None:
    code = "import fnmatch, functools\n@functools.lru_cache\ndef settings(): return {}\nstandard = fnmatch._compile_pattern"
    cached = add_module(f"{NAME}.cached", code)
    assert changes(lambda each: each.standard("state_of_p*"), cached) == []
    assert changes(lambda each: each.settings(), cached) == [f"{NAME}.cached.settings"]
    assert changes(lambda each: each.settings().update(a=1), cached) == [f"{NAME}.cached.settings"]


CACHED = """
import functools
@functools.lru_cache
def bounded(*key): return [key]
@functools.lru_cache(maxsize=None)
def whole(*key): return [key]
@functools.lru_cache(maxsize=2)
def small(*key): return [key]
bounded(1), bounded(2), whole(1), small(1)
class Settings:
    options = []
class Slot:
    __slots__ = ("call",)
    def __init__(self, call): self.call = call
    def __hash__(self): return id(self.call)
    def __eq__(self, other): return isinstance(other, Slot) and self.call is other.call
class Plain:
    def __init__(self, call): self.call = call
    def __hash__(self): return id(self.call)
    def __eq__(self, other): return self.call is other.call
class Named(Plain):
    def __hash__(self): return hash(self.call.__name__)
    def __eq__(self, other): return self.call.__name__ == other.call.__name__
kept = bounded(3)
"""
OWN = "class Mine: pass\nclass Meta(type):\n  def __eq__(self, other): return True\n  __hash__ = type.__hash__\n"
OWN += "class Equal(metaclass=Meta): pass\ndef mine(): pass\n"


@pytest.mark.parametrize(
    ("call", "changed"),
    [
        (lambda cached, own: cached.bounded(1), ""),  # which is used last now
        (lambda cached, own: cached.bounded(own.mine), ""),
        (lambda cached, own: cached.bounded("a", own.Mine, 1), ""),
        (lambda cached, own: cached.whole(own.mine), ""),
        (lambda cached, own: cached.bounded(cached.Slot(own.mine)), ""),
        (lambda cached, own: cached.bounded(1, cached.Plain(own.mine)), ""),
        (lambda cached, own: cached.bounded(cached.Slot(cached.whole)), "bounded"),
        (lambda cached, own: cached.bounded(cached.Plain(cached.Settings)), "bounded"),
        (lambda cached, own: cached.bounded(cached.Named(own.mine)), "bounded"),
        (lambda cached, own: cached.whole("a"), "whole"),
        (lambda cached, own: cached.bounded("a"), "bounded"),
        (lambda cached, own: cached.bounded(own.Mine()), "bounded"),
        (lambda cached, own: cached.bounded(own.Equal), "bounded"),
        (lambda cached, own: cached.bounded(cached.Settings), "bounded"),
        (lambda cached, own: cached.bounded(1).append(1), "bounded"),
        (lambda cached, own: cached.bounded.cache_clear(), "bounded"),
        (lambda cached, own: cached.small(own.mine), "small"),  # the next one is put out
    ],
)
def test_an_entry_of_a_cache_that_no_import_can_ask_for_is_no_change(
    p: types.ModuleType, call: Callable[[Any, Any], object], changed: str
) -> None:
    cached, own = add_module(f"{NAME}.cached", CACHED), add_module(f"{NAME}.own", f"__name__ = '{NAME}.own'\n{OWN}")
    names = [f"{NAME}.cached.{changed}"] if changed else []
    assert changes(lambda each: call(each, own), cached) == names


def test_places_of_a_syntax_tree_are_no_change_and_its_names_are() -> None:
    tree = ast.Call(called := ast.Name("f", ast.Load()), [ast.Constant(1)], [])

    def found() -> list[Any]:
        return Heap({"m": {"tree": tree}}, {}, lambda *_: False).inside["m"]["tree"]

    before = found()
    ast.fix_missing_locations(tree)
    assert are_same_items(before, found())
    called.id = "g"
    assert not are_same_items(before, after := found())
    tree.args.append(ast.Constant(2))
    assert not are_same_items(after, found())


DISPATCHED = """
import functools
@functools.singledispatch
def shown(value): return 1
"""


def test_what_a_dispatching_function_works_out_of_its_registry_is_no_change(p: types.ModuleType) -> None:
    shown = add_module(f"{NAME}.dispatched", DISPATCHED).shown
    shown("a")
    before = with_functools()
    shown(1)
    assert before.changes(with_functools()) == []
    shown.register(int, lambda value: 2)
    assert before.changes(with_functools()) == [f"{NAME}.dispatched.shown"]


def with_functools() -> State:
    """A snapshot in which functions that `functools` has made are followed."""
    return State(lambda name, module: name.startswith(NAME) or name == "functools")


def test_settings_of_objects_in_c_are_compared(p: types.ModuleType) -> None:
    code = (
        "import decimal, ssl, threading\nlocal, numbers = threading.local(), decimal.Context()\n"
        "tls = ssl.create_default_context()\nlocal.mode = 1"
    )
    objects = add_module(f"{NAME}.objects", code)
    assert changes(lambda each: None, objects) == []
    assert changes(lambda each: setattr(each.local, "mode", 2), objects) == [f"{NAME}.objects.local"]
    assert changes(lambda each: setattr(each.numbers, "prec", 5), objects) == [f"{NAME}.objects.numbers"]
    assert changes(lambda each: setattr(each.tls, "check_hostname", False), objects) == [f"{NAME}.objects.tls"]
    assert changes(lambda each: setattr(each.tls, "minimum_version", 772), objects) == [f"{NAME}.objects.tls"]


def test_an_array_of_numbers_is_compared(p: types.ModuleType) -> None:
    code = "import array, random\nnumbers, drawn = array.array('i', [1]), random.Random(1)"
    arrays = add_module(f"{NAME}.arrays", code)
    assert changes(lambda each: each.numbers.__setitem__(0, 2), arrays) == [f"{NAME}.arrays.numbers"]
    assert changes(lambda each: each.drawn.random(), arrays) == [f"{NAME}.arrays.drawn"]


LAZY = (
    "urllib.parse._typeprog",
    "urllib.parse._hostprog",
    "urllib.parse._portprog",
    "base64._a85chars",
    "base64._b85chars",
)


def test_what_the_standard_library_makes_at_first_use_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a function that has encoded something before an import would share none after it."""
    for name in LAZY:
        monkeypatch.setattr(name, None)

    def look() -> State:
        return State(lambda name, module: name in ("urllib.parse", "base64"))

    before = look()
    host, _ = urllib.parse._splithost(urllib.parse._splittype("http://a:1/b")[1])  # type: ignore[attr-defined]
    urllib.parse._splitport(host)  # type: ignore[attr-defined]
    base64.b85encode(base64.a85encode(b"a"))
    assert all(pkgutil.resolve_name(name) is not None for name in LAZY)
    changes = before.changes(look())  # other processes write to /tmp meanwhile, which is a setting
    assert [each for each in changes if each.startswith(("urllib.parse.", "base64."))] == []


ORDERED = """
import functools
@functools.total_ordering
class Ordered:
    def __{}__(self, other): return True
"""


@pytest.mark.parametrize("method", ["lt", "le", "gt", "ge"])
def test_a_class_whose_order_is_completed_is_no_change(method: str) -> None:
    def look() -> State:
        return State(lambda name, module: name == "functools")

    before = look()
    exec(ORDERED.format(method), {"__name__": f"{NAME}_own"})
    assert [each for each in before.changes(look()) if each.startswith("functools")] == []


def test_settings_of_the_process_are_a_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = state()
    monkeypatch.setenv("STATE_OF_P", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"os.environ['STATE_OF_P']", "working directory", "sys.path"} <= set(before.changes(state()))


def test_a_variable_that_is_set_past_os_environ_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state()
    monkeypatch.setitem(os.environ._data, b"STATE_OF_Q", b"1")  # type: ignore[attr-defined]
    assert "os.environ['STATE_OF_Q']" in before.changes(state())


HOSTILE = """
class Meta(type):
    def __getattribute__(cls, name): raise SystemExit
class A(metaclass=Meta): pass
class Proxy:
    def __getattribute__(self, name): raise SystemExit
    def __eq__(self, other): raise SystemExit
    def __hash__(self): return 1
class L(list):
    def __iter__(self): raise SystemExit
    def __len__(self): raise SystemExit
class D(dict):
    def items(self): raise SystemExit
    def __len__(self): raise SystemExit
class S(str):
    def __eq__(self, other): raise SystemExit
    __hash__ = str.__hash__
class Own:
    @property
    def __dict__(self): raise SystemExit
a, l, d, s, own, every = Proxy(), L([Proxy()]), D(x=Proxy()), S("s"), Own(), {Proxy()}
"""


def test_no_code_of_a_package_is_run(p: types.ModuleType) -> None:
    hostile = add_module(f"{NAME}.hostile", HOSTILE)
    assert changes(lambda each: None, hostile) == []
    assert changes(lambda each: setattr(each, "s", each.S("t")), hostile) == [f"{NAME}.hostile.s"]


def test_a_lazy_module_is_not_loaded(p: types.ModuleType) -> None:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError("it was loaded")

    sys.modules[f"{NAME}.lazy"] = Lazy(f"{NAME}.lazy")
    assert changes(lambda each: None, p) == []


def test_what_refers_to_itself_ends(p: types.ModuleType) -> None:
    p.numbers.append(p.numbers)
    assert changes(lambda p: None, p) == []


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are computed at the definition")
def test_annotations_that_only_a_type_checker_can_compute_are_left_alone() -> None:
    computed: list[int] = []
    module = add_module(NAME, "def call(x: note()) -> Absent: pass")
    vars(module)["note"] = lambda: computed.append(1)
    try:
        assert changes(lambda p: None, module) == []
    finally:
        del sys.modules[NAME]
    assert computed == []


def test_more_objects_than_are_compared_are_a_change(p: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "MOST", 50)
    assert "more objects than are compared" in state().changes(state())


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=6,
)


@given(VALUES)
def test_looking_twice_finds_no_change(value: Any) -> None:
    def found() -> list[Any]:
        return Heap({"m": {"value": value}}, {}, lambda *_: False).inside["m"].get("value", [])

    assert are_same_items(found(), found())


def test_a_setting_that_is_a_mapping_is_named_with_its_key() -> None:
    assert changed_setting("os.environ", {"A": "1"}, {"A": "1", "B": "2"}) == "os.environ['B']"
    assert changed_setting("sys.path", ["a"], ["b"]) == "sys.path"
    assert changed_setting("loggers", {"a": [1]}, {"a": [2], "root": [1]}) == "loggers['root']"
    assert changed_setting("loggers", {}, {"b": [1], "a": [1]}) == "loggers['a']"


USED = """
import sys
sys.path.insert(0, sys.argv[1])
import ctypes, collections, encodings, functools, json, linecache, logging, os, re, struct, threading, typing, urllib.parse
from sockd_zygote.forks.module_kinds import RUNTIME, Kinds
from sockd_zygote.top_levels import process
from sockd_zygote.top_levels.state import State
process.contents_of_tmp = dict  # other tests write there meanwhile
kinds = Kinds()
def state(): return State(lambda name, module: kinds.key_of(name, module) == "" and name != "__main__")
def use():
    re.compile("a+b*").match("aab"); "x".encode("cp850"); linecache.getline(__file__, 1); json.loads('{"a": 1}')
    struct.pack("<I", 1); urllib.parse.urlsplit("http://a/b?c"); os.environ.get("A"); typing.Optional[int]
    functools.lru_cache()(len)("a"); ctypes.POINTER(ctypes.c_int); ctypes.CFUNCTYPE(ctypes.c_int)
    threading.Thread(target=int).start(); collections.namedtuple("T", "a"); logging.getLogger("root")
    try: 1 / 0
    except ZeroDivisionError: pass
def ended():  # a thread that has been joined is in the kernel's list until it has left its own code
  for thread in threading.enumerate()[1:]: thread.join()
  while len(os.listdir("/proc/self/task")) > 1: os.sched_yield()
def main():  # its names are no part of __main__, which is compared
  use()
  ended()
  before = state()
  use(); re.compile("c+").match("c"); struct.pack("<QQ", 1, 2); linecache.getline(os.__file__, 1)
  ended()
  print(before.changes(state()))
main()
"""


def test_using_the_standard_library_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "used.py").write_text(USED)
    command = [sys.executable, "-I", "-S", str(tmp_path / "used.py"), str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr
