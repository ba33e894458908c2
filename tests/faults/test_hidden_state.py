"""Own code that changes, before an import, what no name of a module shows: a learned start answers as one of its own."""

from __future__ import annotations

import pytest

from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel

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
    "subclass": ("own = type('Own', (Plugin,), {})", "[each.__name__ for each in Plugin.__subclasses__()]"),
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
def test_state_that_no_name_shows(worker: PrivateWorker, happened: Happened) -> None:
    wheels = [wheel("h-base", "1.0", {"h_base.py": SLOW + BASE})]
    for name, (_, read) in CHANGES.items():
        reader = f"{SLOW}from h_base import *\ndef keep():\n    read = {read}\n    return lambda: read\nkept = keep()\n"
        wheels.append(wheel(f"h-{name}", "1.0", {f"h_{name}.py": reader}, requires=("h-base",)))
    for each in wheels:
        worker.index.add(each)
    expected = {}
    for name, (change, _) in CHANGES.items():
        code = f"import h_base\nfrom h_base import *\n{change}\nimport h_{name}\ndef f(event): return h_{name}.kept()\n"
        worker.deploy(f"hidden-{name}-own", code, requirements=[f"h-{name}"], zygote="none")
        expected[name] = worker.call(f"hidden-{name}-own")
        worker.deploy(f"hidden-{name}", code, requirements=[f"h-{name}"])
        assert worker.call(f"hidden-{name}") == expected[name], name
        plain = f"import h_base, h_{name}\ndef f(event): return h_{name}.kept()\n"
        worker.deploy(f"hidden-{name}-plain", plain, requirements=[f"h-{name}"])
        assert worker.call(f"hidden-{name}-plain") != expected[name], f"{name}: the change makes no difference"
    differing = {}
    worker.daemon.wait_verified(PATIENCE_S)
    for name in CHANGES:
        for _ in range(2):
            worker.call_learned(f"hidden-{name}-plain")
            learned = worker.call_learned(f"hidden-{name}")
            if learned != expected[name]:
                differing[name] = (expected[name], learned)
    happened(f"{len(CHANGES)} kinds of state, answers {expected}: {len(differing)} differ in a learned start")
    assert not differing


READ = """
import gc, importlib.machinery, locale, signal, sys
def keep():
    with open("/proc/self/status") as status:
        caught = next(line for line in status if line.startswith("SigCgt"))
    loops = sys.modules.get("_asyncio")
    read = {
        "debug": gc.get_debug(), "domain": locale.textdomain(None), "finder": sys.meta_path[-1].__name__, "handler": caught,
        "loop": loops is not None and loops._get_running_loop() is not None, "frozen": getattr(sys, "frozen", None),
        "length": getattr(sys, "tracebacklimit", None), "stream": sys.stderr.name, "timer": any(signal.getitimer(0)),
        "suffix": len(importlib.machinery.SOURCE_SUFFIXES), "platform": sys.platform, "option": sorted(sys._xoptions),
    }
    return lambda: read
kept = keep()
"""
OF_PROCESS = {
    "debug": "import gc; gc.set_debug(gc.DEBUG_UNCOLLECTABLE)",
    "domain": "import locale; locale.textdomain('own')",
    "finder": "import sys; sys.meta_path[-1] = type('Own', (sys.meta_path[-1],), {})",
    "handler": "import faulthandler, signal; faulthandler.register(signal.SIGWINCH)",
    "loop": "import asyncio; LOOP = asyncio.new_event_loop(); asyncio.events._set_running_loop(LOOP)",
    "frozen": "import sys; sys.frozen = True",
    "length": "import sys; sys.tracebacklimit = 3",
    "stream": "import sys; sys.stderr = open(__file__)",
    "timer": "import signal; signal.setitimer(signal.ITIMER_REAL, 1000)",
    "suffix": "import importlib.machinery; importlib.machinery.SOURCE_SUFFIXES.append('.own')",
    "platform": "import sys; sys.platform = 'own'",
    "option": "import sys; sys._xoptions['own'] = True",
}
"""Own code, by what of `READ` it changes. An import keeps that in a closure, where a fingerprint does not look."""
RESTORED = """
import sys
if "_asyncio" in sys.modules: sys.modules["_asyncio"]._set_running_loop(None)
def f(event): return h_process.kept()
"""


@case(
    "P48",
    "change in a function's own code, before an import that reads it, names and finders of the interpreter, a timer, a handler "
    "in C, the domain of messages and the running event loop",
    expect="learned starts answer as a start of the function's own",
)
def test_what_the_interpreter_and_the_kernel_know_of_a_process(worker: PrivateWorker, happened: Happened) -> None:
    worker.index.add(wheel("h-process", "1.0", {"h_process.py": SLOW + READ}))
    worker.deploy("process-plain", f"import h_process\n{RESTORED}", requirements=["h-process"])
    plain = worker.call("process-plain")
    expected = {}
    for name, change in OF_PROCESS.items():
        code = f"{change}\nimport h_process\n{RESTORED}"
        worker.deploy(f"process-{name}-own", code, requirements=["h-process"], zygote="none")
        expected[name] = worker.call(f"process-{name}-own")
        assert expected[name][name] != plain[name], f"{name}: the change makes no difference"
        worker.deploy(f"process-{name}", code, requirements=["h-process"])
        assert worker.call(f"process-{name}") == expected[name], name
    worker.daemon.wait_verified(PATIENCE_S)
    assert worker.call_learned("process-plain") == plain
    learned = {name: worker.daemon.run_learned(f"process-{name}").json for name in OF_PROCESS}
    differing = {
        name: (expected[name][name], learned[name][name]) for name in OF_PROCESS if learned[name] != expected[name]
    }
    happened(f"{len(OF_PROCESS)} kinds of state: {len(differing)} differ in a learned start {differing or ''}")
    assert not differing
