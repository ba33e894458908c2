"""The worker: all from the state directory up to the functions, built area by area and taken down in reverse.

Owns every part below HTTP, in one AsyncExitStack, lower layers first. `Daemon` puts the APIs in front of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sockd.base.config import Config
from sockd.base.errors import PackagesFailed
from sockd.functions.deploys.images import Images
from sockd.functions.functions import Functions
from sockd.functions.modules.initscripts import Initscripts
from sockd.functions.registry.function_urls import FunctionUrls
from sockd.functions.services.services import Services
from sockd.functions.serving.group_shares import GroupShares
from sockd.functions.versions import Versions
from sockd.isolation.networks.networks import Networks
from sockd.isolation.sandbox.live_output import LiveOutput
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.linux.allocator import HeapTrim
from sockd.linux.bpf.port_guard import PortGuard
from sockd.linux.bpf.socket_counts import SocketCounts
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.cgroups.tree import Hierarchies
from sockd.linux.latency.latency import Latency
from sockd.linux.ways import Ways
from sockd.starts.handler_cache import HandlerCache
from sockd.starts.packages.install_cache import InstallCache
from sockd.starts.templates.templates import Templates
from sockd.starts.zygotes.learning.import_learner import ImportLearner
from sockd.starts.zygotes.verification.verifier import Verifier
from sockd.starts.zygotes.zygote_tree import ZygoteTree
from sockd.worker.builders.function_parts import FunctionParts, make_caches
from sockd.worker.builders.image_parts import open_images
from sockd.worker.builders.initscript_parts import open_initscripts
from sockd.worker.builders.isolation_parts import IsolationParts
from sockd.worker.builders.linux_parts import LinuxParts
from sockd.worker.builders.starts_parts import Installed, StartsParts
from sockd.worker.group_cache import GroupCache, open_group_cache
from sockd.worker.process_setup import compile_ours, set_up_process
from sockd.worker.space_reserve import SpaceReserve
from sockd.worker.state_dir import StateDir
from sockd_initscripts.limits import EngineLimits

if TYPE_CHECKING:
    from sockd.worker.builders.group_parts import GroupParts

HOUSEKEEPING_S = 5.0

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
    services: Services
    initscripts: Initscripts
    urls: FunctionUrls
    ports: PortGuard
    sockets: SocketCounts
    live_output: LiveOutput
    latency: Latency
    reserve: SpaceReserve
    networks: Networks
    images: Images
    shares: GroupShares
    group: GroupParts | None
    """None: the worker is in no group."""
    cache: GroupCache | None
    """None: images are read from the cache nodes of the configuration, or from none."""
    heap: HeapTrim = field(default_factory=HeapTrim)
    _timer: asyncio.TimerHandle | None = None

    @classmethod
    async def build(cls, config: Config, state: StateDir, stack: AsyncExitStack, on_end: Callable[[], None]) -> Worker:
        """Build everything on `stack`.

        Args:
            state: locked; on_end: called once if the farm ends by itself, after which nothing here works.
        Raises: SockdError that says what to do, OSError."""
        set_up_process()
        linux = await LinuxParts.build(config, state, stack)
        installed = await Installed.open(config, state, stack)
        compile_ours()
        isolation = await IsolationParts.build(config, state, linux, stack, on_end)
        starts = await StartsParts.build(config, state, isolation, installed, stack)
        scripts = open_initscripts(config, state, linux.cgroups, isolation.budget, stack)
        images = open_images(config, state, isolation.base, linux, stack)
        await images.store.try_host()
        caches = make_caches(config, state, linux, isolation, starts, scripts, images, stack)
        parts = await FunctionParts.build(config, state, installed.packages, caches, images, stack)
        worker = cls(
            config=config,
            state=state,
            hierarchies=linux.hierarchies,
            cgroups=linux.cgroups,
            budget=isolation.budget,
            ways=linux.ways,
            packages=installed.packages,
            tree=starts.tree,
            learner=starts.learner,
            templates=starts.templates,
            verifier=starts.verifier,
            handlers=starts.handlers,
            functions=parts.functions,
            versions=parts.versions,
            services=parts.services,
            initscripts=scripts,
            urls=FunctionUrls(parts.functions.registry),
            ports=linux.groups.ports,
            sockets=linux.groups.sockets,
            live_output=isolation.sandboxes.live,
            latency=linux.latency,
            reserve=SpaceReserve(state.path / "reserve"),
            networks=isolation.networks,
            images=Images(
                images.store,
                parts.functions.registry,
                images.garbage,
                parts.group.shared.put_image if parts.group is not None else None,
            ),
            shares=parts.shares,
            group=parts.group,
            cache=open_group_cache(config, images.parts, stack),
        )
        worker._do_housekeeping()
        stack.callback(worker._stop_housekeeping)
        return worker

    def open_engine(self, ports: Sequence[int]) -> None:
        """Let the initscript engine start when it is needed. Args: ports: the daemon's own, which no script may reach."""
        settings = self.config.initscripts
        denied = [*settings.denied, *self.config.network.denied]
        limits = EngineLimits(
            runs=settings.runs,
            denied_ports=list(ports),
            host_ports=list(self.config.network.host_ports),
            denied_endpoints=denied,
        )
        self.initscripts.client.open(limits)

    async def preload(self) -> None:
        """Start what images need, install what functions of an earlier daemon lack, and the packages that the configuration
        names; a failure is logged, and nothing else."""
        await asyncio.gather(self._prepare_images(), self.functions.live.restoring.run(), self._preload_packages())

    async def _prepare_images(self) -> None:
        if self._uses_images():
            await self.images.store.prepare()

    async def _preload_packages(self) -> None:
        try:
            await self.packages.preload(self.config.packages.preload, progress=_log.info)
        except PackagesFailed as error:
            _log.warning("packages.preload: %s", error.message)

    async def rebuild_zygotes(self) -> None:
        """Make the Zygotes and templates that an earlier worker had, as many as `zygote.rebuild_s` allows."""
        ends_s = time.monotonic() + self.config.zygote.rebuild_s
        versions = self.functions.live.open_versions()
        for version in versions:
            self.verifier.know(version.view, version.program, version.id)
        views = [version.view for version in versions]
        await self.learner.rebuild(views, deadline_s=self.config.zygote.rebuild_s)
        await self.templates.rebuild(deadline_s=max(ends_s - time.monotonic(), 0))

    def _uses_images(self) -> bool:
        config = self.config.images
        return bool(config.store or self.images.store.all()) if config.ready is None else config.ready

    def _do_housekeeping(self) -> None:
        """Every few seconds, drop or make spares, forget ports that are free again, return freed memory to the kernel."""
        self.sockets.forget_ports(time.monotonic())
        self.tree.adjust()
        self.templates.adjust()
        self.networks.adjust()
        self.reserve.fill()
        if self.heap.is_due():
            asyncio.get_running_loop().run_in_executor(None, self.heap.trim)
        self._timer = asyncio.get_running_loop().call_later(HOUSEKEEPING_S, self._do_housekeeping)

    def _stop_housekeeping(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
