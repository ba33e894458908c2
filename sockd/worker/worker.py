"""The worker: the house from the state directory up to the functions, built in order and taken down in reverse.

Owns every part below HTTP, in one AsyncExitStack, lower layers first. `Daemon` puts the doors in front of it.
"""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import fcntl
import logging
import os
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import sockd_initscripts
import sockd_storage_lib
from sockd.base.config import MB, Config, ZygoteConfig
from sockd.base.errors import BadConfig, NoCapacity, PackagesFailed, SandboxFailed
from sockd.base.uids import ENGINE_BELOW, PROXY_BELOW, RESOLVER_BELOW, ROOT_UIDS
from sockd.functions.code.code_store import CodeStore
from sockd.functions.code.function_config import ENDPOINT
from sockd.functions.deploys.images import Images
from sockd.functions.functions import Functions
from sockd.functions.in_images.image_compiler import ImageCompiler
from sockd.functions.in_images.image_pythons import ImagePythons
from sockd.functions.provisioning import Provisioning
from sockd.functions.registry.function_urls import FunctionUrls
from sockd.functions.registry.registry import Registry
from sockd.functions.registry.secrets import Vault, key_path
from sockd.functions.serving.function import Caches
from sockd.functions.serving.initscript_store import InitscriptStore
from sockd.functions.serving.initscripts import Initscripts
from sockd.functions.serving.start_gate import StartLimits
from sockd.functions.versions import Versions
from sockd.images.store.chunked_importer import ChunkedImporter
from sockd.images.store.image_garbage import ImageGarbage
from sockd.images.store.image_store import ImageStore
from sockd.isolation.farm.farm import Farm, farm_path
from sockd.isolation.farm.namespace_maker import NamespaceMaker
from sockd.isolation.farm.uids import UidBlock
from sockd.isolation.farm.walled_networks import Wall
from sockd.isolation.networks import resolver
from sockd.isolation.networks.namespace_thread import have_nft
from sockd.isolation.networks.networks import Networks, Proxying, Resolving
from sockd.isolation.roots.assembly import open_assembly
from sockd.isolation.roots.base import Base, plan
from sockd.isolation.roots.ground import built, ground_on
from sockd.isolation.roots.host_pythons import SCHEME, HostPythons
from sockd.isolation.roots.image_mounting import ImageMounting
from sockd.isolation.roots.image_python import SCHEME as IMAGE_SCHEME
from sockd.isolation.roots.premade import Premade
from sockd.isolation.roots.program import Limits, Network
from sockd.isolation.sandbox.foreign_farms import ForeignFarms
from sockd.isolation.sandbox.live_output import LiveOutput
from sockd.isolation.sandbox.memory_budget import MemoryBudget, host_memory_bytes
from sockd.isolation.sandbox.parts import Parts
from sockd.isolation.sandbox.sandbox_pipes import SandboxPipes
from sockd.isolation.sandbox.socket_guards import function_accounts, guard_sockets
from sockd.isolation.sandbox.task_limits import function_task_limit, limit_tasks
from sockd.linux import allocator, mounts, oom_score, syscalls
from sockd.linux.allocator import HeapTrim
from sockd.linux.bpf.port_guard import PortGuard
from sockd.linux.bpf.socket_counts import SocketCounts
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.cgroups.tree import CgroupTree, Hierarchies
from sockd.linux.latency import favordynmods
from sockd.linux.latency.latency import Latency
from sockd.linux.network.resolv_conf import nameservers
from sockd.linux.ways import Ways
from sockd.starts.builds.builder import Builder
from sockd.starts.handler_cache import HandlerCache
from sockd.starts.packages.install_cache import InstallCache
from sockd.starts.sources import Starts
from sockd.starts.templates.templates import Templates
from sockd.starts.templates.used_templates import UsedTemplates
from sockd.starts.zygotes.children import SPARE_MEMORY_BYTES
from sockd.starts.zygotes.import_learner import ImportLearner
from sockd.starts.zygotes.program_zygotes import ProgramZygotes
from sockd.starts.zygotes.soundness import ImportView
from sockd.starts.zygotes.verifier import Verifier
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_tree import ZygoteTree
from sockd.worker.idle_memory import IdleMemory
from sockd.worker.image_parts import ImageParts
from sockd.worker.space_reserve import SpaceReserve
from sockd.worker.state_dir import StateDir
from sockd_initscripts.client import engine_software
from sockd_initscripts.client.client import EngineClient
from sockd_initscripts.client.keeper import EngineSettings
from sockd_initscripts.limits import EngineLimits

REGISTRY = "registry.sqlite"
KILL_DEADLINE_S = 10.0
HOUSEKEEPING_S = 5.0
CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
IDLE_NETWORKS = 0.25
"""Below this free share of the memory budget no networks are made that the last minute did not ask for."""

FDS_OF_SANDBOX = 8
"""What an idle sandbox holds of the daemon's (measured, on cgroup v1 and v2 together)."""
FDS_OF_THE_REST = 256
FDS_AT_ONCE = 1 << 14
"""As many as a thousand idle sandboxes and all of `http.max_connections` hold: 128 KB of the kernel's memory."""

WALLED: tuple[Network, ...] = ("none", "private")
"""Networks whose functions are forked from walled Zygotes."""
ENGINE_MEMORY_BYTES = 256 * MB
"""What the initscript engine needs for itself, regions and linear memories not counted: those are in the budget."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Worker:
    """The parts. Made by `build`; the stack that it was built on takes it down."""

    config: Config
    state: StateDir
    hierarchies: Hierarchies
    cgroups: CgroupPool
    budget: MemoryBudget
    ways: Ways
    packages: InstallCache
    tree: ZygoteTree
    learner: ImportLearner
    templates: Templates
    verifier: Verifier
    handlers: HandlerCache
    functions: Functions
    versions: Versions
    initscripts: Initscripts
    urls: FunctionUrls
    ports: PortGuard
    sockets: SocketCounts
    live_output: LiveOutput
    latency: Latency
    reserve: SpaceReserve
    networks: Networks
    images: Images
    heap: HeapTrim = field(default_factory=HeapTrim)
    _timer: asyncio.TimerHandle | None = None

    @classmethod
    async def build(cls, config: Config, state: StateDir, stack: AsyncExitStack, on_end: Callable[[], None]) -> Worker:
        """Build everything on `stack`.

        Args:
            state: locked; on_end: called once if the farm ends by itself, after which nothing here works.
        Raises: SockdError that says what to do, OSError."""
        raise_open_files()
        take_short_slices()
        forbid_core_dumps()
        protect_from_oom()
        allocator.return_large_blocks()
        syscalls.close_on_exec_from(3)  # uvloop's children inherit what is not (measured, whatever close_fds says)
        mounts.enter_private_namespace()
        hierarchies = Hierarchies.detect()
        latency = Latency.open(config.latency, hierarchies)
        stack.callback(latency.close)
        groups, cgroups = await _cgroups(config, state, hierarchies, stack)
        pythons = HostPythons(state.packages, state.path / "pythons", config.sandbox.pythons)
        packages = InstallCache(config.packages, state.packages, state.path / "tmp", pythons)
        stack.push_async_callback(packages.aclose)
        await packages.recover()
        compile_ours()
        base = Base.build(farm_path(state.path), plan(state.packages))
        stack.callback(base.close)
        budget = MemoryBudget(budget_bytes(config))
        maker = NamespaceMaker()
        stack.push_async_callback(maker.aclose)
        networks = await _networks(config, state, cgroups, budget, stack)
        ways = Ways.find(config.sandbox.kernel_release, config.sandbox.roots)
        for found in (ways.roots, ways.proc, ways.exits):
            if found.reason:
                _log.info("as this kernel is older: %s", found.words)
        farm = await Farm.start(base, cgroups.take(), on_end, ways)
        stack.push_async_callback(farm.close)
        usual = spare_limits(config)
        assembly = open_assembly(ways, base, usual)
        stack.callback(assembly.close)
        http, spawn_deadline_s = config.http, config.sandbox.spawn_deadline_s
        ends = Premade(SandboxPipes.open, SandboxPipes.close)
        stack.callback(ends.close)
        answer_bytes, grace_s = http.max_payload_bytes, http.stop_grace_s
        pools = assembly, cgroups, budget, farm.release
        ceiling = config.sandbox.init_ceiling
        parts = Parts(*pools, answer_bytes, spawn_deadline_s, grace_s, ends.take, init_ceiling=ceiling, ways=ways)
        walls = {network: Wall(network, networks, maker) for network in WALLED}
        uids = UidBlock.of_host(config.sandbox.base_uid + ROOT_UIDS, ROOT_UIDS)
        foreign = ForeignFarms(parts, uids, usual)
        foreign.add(SCHEME, pythons)
        stack.push_async_callback(foreign.aclose)
        tree = ZygoteTree(
            config.zygote, parts, farm, walls, foreign, base_uid=config.sandbox.base_uid, spare_limits=usual
        )
        stack.callback(tree.close)
        await tree.open()
        await try_sandbox(tree)
        tools, max_package_mb = state.path / "build" / "tools", config.packages.max_package_mb
        packages.build_with(Builder(config.builds, tree, tools, max_package_mb=max_package_mb))
        learner = ImportLearner(
            config.zygote, tree, state.path, packages.provided, open_files=config.function.open_files
        )
        stack.push_async_callback(learner.aclose)
        affordable = affordable_idle(config.sandbox.idle_limit)
        handlers = HandlerCache(msgspec.structs.replace(config.sandbox, idle_limit=affordable), budget)
        stack.callback(handlers.close)
        templates = Templates(config.zygote, tree, budget, UsedTemplates(state.path / "templates.json"))
        stack.push_async_callback(templates.aclose)
        foreign.retired.append(templates.end_interpreter)
        idle = IdleMemory(budget, tree, handlers, templates, networks)
        budget.holders.append(idle)
        verifier = _verifier(config.zygote, tree, learner, handlers, templates)
        stack.push_async_callback(verifier.aclose)
        scripts = _initscripts(config, state, cgroups, budget, stack)
        limits = http.max_payload_bytes, http.max_streamed_bytes
        guards = groups.ports, function_accounts(config.sandbox, groups.sockets)
        images, garbage, importer = _images(config, state, base, ways, cgroups, stack)
        await images.try_host()
        programs = ProgramZygotes(tree, deadline_s=config.zygote.import_deadline_s)
        stack.push_async_callback(programs.aclose)
        starts = Starts(handlers, tree, programs, templates)
        if config.images.compile_timeout_s > 0:
            importer.compile_with(
                ImageCompiler(starts, budget, base, config.images.compile_timeout_s, images.mounting).compile
            )
        image_pythons = ImagePythons(images, starts, tree, budget, base, state.path / "pythons" / "images")
        foreign.add(IMAGE_SCHEME, image_pythons)
        caches = Caches(
            handlers,
            tree,
            starts,
            learner,
            budget,
            verifier,
            scripts,
            *limits,
            latency,
            *guards,
            function_task_limit(groups, config.sandbox),
            networks=networks,
            images=images,
            templates=templates,
            programs=programs,
            image_pythons=image_pythons,
            start_limits=StartLimits(hierarchies.usable_cpus(), config.sandbox.start_wait_s, idle.can_give),
        )
        functions, versions, urls = _functions(config, state, packages, caches, stack)
        worker = cls(
            *(
                config,
                state,
                hierarchies,
                cgroups,
                budget,
                ways,
                packages,
                tree,
                learner,
                templates,
                verifier,
                handlers,
            ),
            *(functions, versions, scripts, urls, groups.ports, groups.sockets, parts.live, latency),
            *(SpaceReserve(state.path / "reserve"), networks, Images(images, functions.registry, garbage)),
        )
        worker._keep_house()
        stack.callback(worker._stop_keeping_house)
        return worker

    def open_engine(self, ports: Sequence[int]) -> None:
        """Let the initscript engine start when it is needed. Args: ports: the daemon's own, which no script may reach."""
        settings = self.config.initscripts
        denied = [*settings.denied, *self.config.network.denied]
        limits = EngineLimits(runs=settings.runs, denied_ports=list(ports), denied_endpoints=denied)
        self.initscripts.client.open(limits)

    async def preload(self) -> None:
        """Start what images need, install what functions of an earlier daemon lack, and the packages that the configuration
        names; a failure is logged, and nothing else."""
        if self._uses_images():
            await self.images.store.prepare()
        await asyncio.gather(self.functions.live.restoring.run(), self._preload_packages())

    async def _preload_packages(self) -> None:
        try:
            await self.packages.preload(self.config.packages.preload, progress=_log.info)
        except PackagesFailed as error:
            _log.warning("packages.preload: %s", error.message)

    async def rebuild_zygotes(self) -> None:
        """Make the Zygotes that an earlier worker had, as many as `zygote.rebuild_s` allows."""
        versions = self.functions.live.all()
        for version in versions:
            self.verifier.know(version.view, version.program, version.id)
        views = [version.view for version in versions]
        await self.learner.rebuild(views, deadline_s=self.config.zygote.rebuild_s)
        self.templates.begin()

    def _uses_images(self) -> bool:
        config = self.config.images
        return bool(config.store or self.images.store.all()) if config.ready is None else config.ready

    def _keep_house(self) -> None:
        """Every few seconds, drop or make spares, forget ports that are free again, return freed memory to the kernel."""
        self.sockets.forget_ports(time.monotonic())
        self.tree.adjust()
        self.templates.adjust()
        self.networks.adjust()
        self.reserve.fill()
        if self.heap.is_due():
            asyncio.get_running_loop().run_in_executor(None, self.heap.trim)
        self._timer = asyncio.get_running_loop().call_later(HOUSEKEEPING_S, self._keep_house)

    def _stop_keeping_house(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def _cgroups(
    config: Config, state: StateDir, hierarchies: Hierarchies, stack: AsyncExitStack
) -> tuple[CgroupTree, CgroupPool]:
    """Our part of the cgroup tree, emptied of what a dead daemon left in it, and the pool."""
    leftovers = CgroupTree(hierarchies, f"sockd-{state.id}")
    leftovers.destroy_all(KILL_DEADLINE_S)
    tree = CgroupTree.create(hierarchies, f"sockd-{state.id}")
    stack.callback(tree.destroy_all, KILL_DEADLINE_S)
    stack.callback(tree.close)
    guard_sockets(tree, config.sandbox, config.network)
    limit_tasks(tree, config.sandbox)
    cgroups = CgroupPool(tree, config.sandbox.cgroup_pool, quick_moves=favordynmods.is_shown())
    await cgroups.start()
    stack.push_async_callback(cgroups.aclose)
    return tree, cgroups


async def _networks(
    config: Config, state: StateDir, cgroups: CgroupPool, budget: MemoryBudget, stack: AsyncExitStack
) -> Networks:
    """Private networks, and what their resolver stands on where there can be one. Nothing is started."""
    asked = config.network.nameservers or tuple(nameservers())
    resolving = proxying = None
    if (asked or config.network.host_ports) and config.network.private and have_nft():
        root, places = state.path / "resolver", resolver.places()
        stack.callback(built(root, places).close)
        ground = ground_on(root, places, cgroups.take, cgroups.give_back)
        resolving = Resolving(ground, config.sandbox.base_uid - RESOLVER_BELOW, asked) if asked else None
        proxying = Proxying(ground, config.sandbox.base_uid - PROXY_BELOW)

    def is_short() -> bool:
        return budget.contended or budget.free < budget.total * IDLE_NETWORKS

    networks = await Networks.open(config.network, state.id, budget.reserve_nowait, resolving, proxying, is_short)
    stack.push_async_callback(networks.aclose)
    networks.configured.check_defaults(config.function.egress)
    if config.network.private and (why := networks.why_not()):
        _log.info('functions with network = "private" are refused: %s', why)
    return networks


def _verifier(
    config: ZygoteConfig, tree: ZygoteTree, learner: ImportLearner, handlers: HandlerCache, templates: Templates
) -> Verifier:
    """Verification for a tree's nodes, the future ones."""

    def refused(node: ZygoteNode, view: ImportView, has_served: bool) -> None:
        if has_served:
            handlers.drop_children(node.zygote)
            templates.zygote_refused(node.zygote, view)
        learner.differs(node, view)

    verifier = Verifier(
        config,
        tree,
        learner.recordings,
        on_recorded=learner.record,
        is_learning=lambda: learner.is_learning,
        on_refused=refused,
        save=learner.save,
    )
    tree.verify_with(verifier)
    learner.on_made.append(verifier.consider_node)
    return verifier


def _functions(
    config: Config,
    state: StateDir,
    packages: InstallCache,
    caches: Caches,
    stack: AsyncExitStack,
) -> tuple[Functions, Versions, FunctionUrls]:
    code = CodeStore(state.path / "code", state.path / "tmp", config.code)
    code.recover()
    vault = Vault.at(key_path(config.secrets, state.path))
    registry = Registry.open(state.path / REGISTRY, vault, keep_versions=config.code.keep_versions)
    functions = Functions(config, registry, code, packages, caches)
    stack.callback(functions.close)
    functions.load()
    provisioning = Provisioning(registry, functions.live, caches.budget)
    stack.callback(provisioning.close)
    provisioning.load()
    versions = Versions(registry, functions, provisioning, config.code)
    stack.callback(versions.canaries.close)
    return functions, versions, FunctionUrls(registry)


def _images(
    config: Config, state: StateDir, base: Base, ways: Ways, cgroups: CgroupPool, stack: AsyncExitStack
) -> tuple[ImageStore, ImageGarbage, ChunkedImporter]:
    """The images of an earlier daemon, too. Nothing is started."""
    mounting = ImageMounting.open(ways, state.path / "mounted", config.sandbox.kernel_release)
    stack.callback(mounting.close)
    parts = ImageParts(config.images, state.path, state.id, cgroups, config.sandbox.base_uid)
    stack.callback(parts.close)
    importer = parts.importer()
    store = ImageStore(
        state.path / "images", state.path / "tmp", base, importer, mounting, most_cold=config.images.cold_starts
    )
    importer.import_for(store)
    store.recover()
    stack.push_async_callback(store.aclose)
    garbage = parts.garbage(importer)
    garbage.start()
    stack.push_async_callback(garbage.aclose)
    return store, garbage, importer


def compile_ours() -> None:
    """Write the bytecode of our packages that are imported where nothing can be written: sandboxes and the engine would
    compile them at each start. As far as it goes: where we may not write, an installer has done it."""
    for package in (sockd_initscripts, sockd_storage_lib):
        compileall.compile_dir(os.path.dirname(str(package.__file__)), quiet=2)


def _initscripts(
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
    ground = ground_on(root, places, cgroups.take, cgroups.give_back)
    uid = settings.uid if settings.uid is not None else config.sandbox.base_uid - ENGINE_BELOW
    memory_bytes = settings.memory_mb * MB if settings.memory_mb is not None else ENGINE_MEMORY_BYTES + budget.total
    engine_settings = EngineSettings(uid, memory_bytes, memory_bytes, settings.runs)
    store = InitscriptStore(state.path / "initscripts", state.path / "tmp", ground, settings, compiler_uid=uid - 1)
    store.recover()
    runs_budget = MemoryBudget(max(memory_bytes - ENGINE_MEMORY_BYTES, 0))
    scripts = Initscripts(settings, EngineClient(ground, engine_settings), store, budget, runs_budget)
    stack.push_async_callback(scripts.close)
    return scripts


async def try_sandbox(tree: ZygoteTree) -> None:
    """Make one, so that a host that refuses them is known before anything is served. Raises: SandboxFailed."""
    try:
        (await tree.children.fork_spare(tree.root.zygote)).destroy()
    except NoCapacity:
        return  # it would have been a spare; functions bring memory of their own
    except (SandboxFailed, OSError, TimeoutError) as error:
        raise SandboxFailed(f"this host does not let us make a sandbox; run `sockd doctor` ({error})") from error


def budget_bytes(config: Config) -> int:
    """The memory that sandboxes may use together."""
    configured = config.sandbox.memory_mb
    return configured * MB if configured is not None else host_memory_bytes() * 3 // 4


def spare_limits(config: Config) -> Limits:
    """What a spare is held to until it is a function; its /tmp has the default size, so that it mostly fits."""
    function = config.function
    return Limits(
        memory_bytes=SPARE_MEMORY_BYTES,
        pids=function.pids,
        cpus=function.cpus,
        tmp_bytes=function.tmp_mb * MB,
        tmp_inodes=function.tmp_inodes,
        network=function.network,
        sockets=function.sockets,
    )


def take_short_slices() -> None:
    """Every request passes through this thread, mostly for less than 0.1 ms: it should not wait until somebody who computes
    has had 3 to 4 ms. It gets no more of the processor for it."""
    with contextlib.suppress(OSError):  # a kernel, or whoever confines us, that does not have it
        syscalls.set_time_slice(syscalls.SHORTEST_SLICE_NS)


def affordable_idle(idle_limit: int) -> int:
    """As many idle sandboxes as our descriptors are enough for. The doors and what is starting need some, too: without them
    not even an eviction could be requested."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    affordable = max(1, (soft - max(soft // 5, FDS_OF_THE_REST)) // FDS_OF_SANDBOX)
    if affordable < idle_limit:
        _log.warning("%d open files are enough for %d idle sandboxes, not for %d", soft, affordable, idle_limit)
    return min(idle_limit, affordable)


def forbid_core_dumps() -> None:
    """Ours would hold events and environments. 1, not 0: a core pattern with a pipe takes no notice of 0 (core(5)). But a hard
    limit of 0 only CAP_SYS_RESOURCE raises, and without a pipe it does as well."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError:
        pattern = CORE_PATTERN.read_text().strip()
        if pattern.startswith("|"):
            _log.warning(
                "the core limit is 0 and cannot be raised (CAP_SYS_RESOURCE), so each crash of a function starts %s: "
                "`sysctl -w kernel.core_pattern=core`, or start sockd with a hard limit of 1 (`ulimit -Hc 1`)",
                pattern[1:].split()[0],
            )


def protect_from_oom() -> None:
    """All functions end with this process: of a host that runs out of memory it should be the last to go."""
    if not oom_score.protect_ourselves():
        _log.warning("oom_score_adj cannot be lowered (CAP_SYS_RESOURCE): the OOM killer may take the daemon")


def raise_open_files() -> None:
    """Each idle sandbox holds several descriptors: take all that the hard limit gives, and room for many of them now.

    The kernel's table grows when a number is larger than all before, and waits for the other processors then
    (expand_fdtable: synchronize_rcu), since we have threads: 10 ms and more, at the 257th connection of a crowd, the 513th ..."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with open(os.devnull) as any_file:
        os.close(fcntl.fcntl(any_file, fcntl.F_DUPFD_CLOEXEC, min(hard, FDS_AT_ONCE) - 1))
