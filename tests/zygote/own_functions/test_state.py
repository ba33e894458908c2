"""What a snapshot of the interpreter sees of what code changes between two imports."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd_zygote.own_functions.state import DEPTH, MOST_ITEMS, MOST_TOLD, State, changed_setting, in_words

REPOSITORY = Path(__file__).resolve().parents[3]
NAME = "state_of_p"
CODE = """
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
"""


def add_module(name: str, code: str) -> types.ModuleType:
    made = types.ModuleType(name)
    exec(code, vars(made))
    sys.modules[name] = made
    return made


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
    "below the depth": lambda p: p.nested["a"].setdefault("b", 1),
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


def test_a_class_of_another_module_is_compared_where_it_is(p: types.ModuleType) -> None:
    vars(p)["Borrowed"] = types.new_class("Borrowed", exec_body=lambda names: names.update(__module__="elsewhere", x=1))
    assert changes(lambda p: setattr(p.Borrowed, "x", 2), p) == []


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


def test_large_containers_are_compared_by_their_length_and_first_items(p: types.ModuleType) -> None:
    vars(p)["large"] = list(range(2 * MOST_ITEMS))
    assert changes(lambda p: p.large.__setitem__(MOST_ITEMS - 1, -1), p) == [f"{NAME}.large"]
    assert changes(lambda p: p.large.append(1), p) == [f"{NAME}.large"]


def test_depth_ends(p: types.ModuleType) -> None:
    deep: list[Any] = [1]
    for _ in range(DEPTH):
        deep = [deep]
    deep.append(deep)
    vars(p)["deep"] = deep
    assert changes(lambda p: None, p) == []


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=6,
)


@given(VALUES)
def test_looking_twice_finds_no_change(value: Any) -> None:
    add_module(NAME, "")
    vars(sys.modules[NAME])["value"] = value
    try:
        assert changes(lambda p: None, None) == []
    finally:
        del sys.modules[NAME]


def test_words_name_the_first_changes() -> None:
    assert in_words([]) == "" and in_words(["b", "a"]) == "a, b"
    assert in_words(["d", "c", "b", "a", "e"]) == f"a, b, c and {5 - MOST_TOLD} more"


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
from sockd_zygote.own_functions.state import State
kinds = Kinds()
def state(): return State(lambda name, module: kinds.key_of(name, module) == "" and name != "__main__")
def use():
    re.compile("a+b*").match("aab"); "x".encode("cp850"); linecache.getline(__file__, 1); json.loads('{"a": 1}')
    struct.pack("<I", 1); urllib.parse.urlsplit("http://a/b?c"); os.environ.get("A"); typing.Optional[int]
    functools.lru_cache()(len)("a"); ctypes.POINTER(ctypes.c_int); ctypes.CFUNCTYPE(ctypes.c_int)
    threading.Thread(target=int).start(); collections.namedtuple("T", "a"); logging.getLogger("root")
    try: 1 / 0
    except ZeroDivisionError: pass
use()
before = state()
use(); re.compile("c+").match("c"); struct.pack("<QQ", 1, 2); linecache.getline(os.__file__, 1)
for thread in threading.enumerate()[1:]: thread.join()
print(before.changes(state()))
"""


def test_using_the_standard_library_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "used.py").write_text(USED)
    command = [sys.executable, "-I", "-S", str(tmp_path / "used.py"), str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr
