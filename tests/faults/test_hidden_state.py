"""Own code that changes, before an import, what no name of a module shows: a learned start answers as one of its own."""

from __future__ import annotations

import pytest

from tests.support.cases import Happened, case
from tests.support.package_index import wheel
from tests.support.private_worker import PrivateWorker

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

SLOW = "import time\n_end = time.perf_counter() + 0.1\nwhile time.perf_counter() < _end: pass\n"
PATIENCE_S = 200.0
"""Two functions for each kind of state are recorded and verified, one after the other."""
BASE = """
import abc, contextvars, itertools, functools
class Slots:
    __slots__ = ("size",)
slots = Slots()
slots.size = 1
def kept():
    items = []
    return items.append, lambda: list(items)
add, get = kept()
def steps():
    yield from (1, 2, 3)
generator, ids = steps(), itertools.count()
variable = contextvars.ContextVar("variable", default="none")
class Deep: pass
deep = Deep()
deep.a = Deep()
deep.a.b = [{"c": [Deep()]}]
deep.a.b[0]["c"][0].size = 1
class Plugin: pass
class Abstract(abc.ABC): pass
@functools.lru_cache
def settings(): return {"size": 1}
"""
CHANGES = {
    "slots": ("slots.size = 5", "slots.size"),
    "closure": ("add(5)", "get()"),
    "generator": ("next(generator)", "next(generator)"),
    "counter": ("next(ids)", "next(ids)"),
    "context": ("variable.set('own')", "variable.get()"),
    "deep": ("deep.a.b[0]['c'][0].size = 5", "deep.a.b[0]['c'][0].size"),
    "subclass": ("type('Own', (Plugin,), {})", "[each.__name__ for each in Plugin.__subclasses__()]"),
    "abstract": ("Abstract.register(int)", "isinstance(1, Abstract)"),
    "cache": ("settings()['size'] = 5", "settings()['size']"),
}
"""Own code, and what an import then reads and keeps where a fingerprint does not look."""


@case(
    "P47",
    "change slots, closures, generators, counters, context variables, nested objects, subclasses, registered classes and caches "
    "of a package in a function's own code, before an import that reads them",
    expect="learned starts answer as a start of the function's own; what precedes the change is shared",
)
def test_state_that_no_name_shows(house: PrivateWorker, happened: Happened) -> None:
    wheels = [wheel("h-base", "1.0", {"h_base.py": SLOW + BASE})]
    for name, (_, read) in CHANGES.items():
        reader = (
            f"from h_base import *\nimport h_base\n_read = [{read}]\ndef get(): return _read\nkept = get\ndel _read\n"
        )
        reader = f"{SLOW}from h_base import *\ndef keep():\n    read = {read}\n    return lambda: read\nkept = keep()\n"
        wheels.append(wheel(f"h-{name}", "1.0", {f"h_{name}.py": reader}, requires=("h-base",)))
    for each in wheels:
        house.index.add(each)
    expected = {}
    for name, (change, _) in CHANGES.items():
        code = f"import h_base\nfrom h_base import *\n{change}\nimport h_{name}\ndef f(event): return h_{name}.kept()\n"
        house.deploy(f"hidden-{name}-own", code, requirements=[f"h-{name}"], zygote="none")
        expected[name] = house.call(f"hidden-{name}-own")
        house.deploy(f"hidden-{name}", code, requirements=[f"h-{name}"])
        assert house.call(f"hidden-{name}") == expected[name], name
        plain = f"import h_base, h_{name}\ndef f(event): return h_{name}.kept()\n"
        house.deploy(f"hidden-{name}-plain", plain, requirements=[f"h-{name}"])
        assert house.call(f"hidden-{name}-plain") != expected[name], f"{name}: the change makes no difference"
    differing = {}
    house.daemon.wait_verified(PATIENCE_S)
    for name in CHANGES:
        for _ in range(2):
            house.call_learned(f"hidden-{name}-plain")
            learned = house.call_learned(f"hidden-{name}")
            if learned != expected[name]:
                differing[name] = (expected[name], learned)
    happened(f"{len(CHANGES)} kinds of state, answers {expected}: {len(differing)} differ in a learned start")
    assert not differing
