"""The initscripts of a worker: their store, and the client of their engine.

Owns nothing: the stack that it is given closes everything.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from sockd.base.config import MB, Config
from sockd.base.errors import BadConfig
from sockd.base.uids import ENGINE_BELOW
from sockd.functions.code.function_config import ENDPOINT
from sockd.functions.modules.initscript_store import InitscriptStore
from sockd.functions.modules.initscripts import Initscripts
from sockd.functions.modules.module_compiler import ModuleCompiler
from sockd.isolation.roots.jail import built, jail_on
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.worker.state_dir import StateDir
from sockd_initscripts.client import engine_software
from sockd_initscripts.client.client import EngineClient
from sockd_initscripts.client.keeper import EngineSettings

ENGINE_MEMORY_BYTES = 256 * MB
"""What the initscript engine needs for itself, regions and linear memories not counted: those are in the budget."""


def open_initscripts(
    config: Config, state: StateDir, cgroups: CgroupPool, budget: MemoryBudget, stack: AsyncExitStack
) -> Initscripts:
    """The store of initscripts and the client of their engine, which stand on a tree of their own. Nothing is started."""
    settings = config.initscripts
    if wrong := [entry for entry in settings.denied if not ENDPOINT.fullmatch(entry)]:
        raise BadConfig(f"initscripts.denied: {wrong[0][:80]!r} is not host, host:port, *.suffix or a network")
    root = state.path / "engine"
    places = engine_software.places()
    if settings.enabled and not engine_software.missing():
        stack.callback(built(root, places).close)
    jail = jail_on(root, places, cgroups.take, cgroups.give_back)
    uid = settings.uid if settings.uid is not None else config.sandbox.base_uid - ENGINE_BELOW
    memory_bytes = settings.memory_mb * MB if settings.memory_mb is not None else ENGINE_MEMORY_BYTES + budget.total
    engine_settings = EngineSettings(uid, memory_bytes, settings.runs)
    compiler = ModuleCompiler(jail, uid - 1)
    store = InitscriptStore(state.path / "initscripts", state.path / "tmp", compiler, settings)
    store.recover()
    runs_budget = MemoryBudget(max(memory_bytes - ENGINE_MEMORY_BYTES, 0))
    scripts = Initscripts(settings, EngineClient(jail, engine_settings), store, budget, runs_budget)
    stack.push_async_callback(scripts.close)
    return scripts
