"""The functions of a worker: what they are started from, their registry, deploys and published versions.

Owns nothing: the stack that it is given closes everything.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sockd.base.config import Config
from sockd.functions.code.code_store import CodeStore
from sockd.functions.functions import Functions
from sockd.functions.in_images.image_compiler import ImageCompiler
from sockd.functions.in_images.image_pythons import ImagePythons
from sockd.functions.modules.function_modules import FunctionModules
from sockd.functions.modules.initscripts import Initscripts
from sockd.functions.provisioning import Provisioning
from sockd.functions.registry.registry import Registry
from sockd.functions.registry.secrets import Vault, key_path
from sockd.functions.services.parts import ServiceParts
from sockd.functions.services.services import Services
from sockd.functions.serving.function import Caches
from sockd.functions.serving.group_shares import GroupShares
from sockd.functions.serving.start_gate import StartLimits
from sockd.functions.versions import Versions
from sockd.isolation.roots.image_python import SCHEME
from sockd.isolation.sandbox.socket_guards import function_accounts
from sockd.isolation.sandbox.task_limits import function_task_limit
from sockd.starts.packages.install_cache import InstallCache
from sockd.starts.sources import Starts
from sockd.starts.zygotes.program_zygotes import ProgramZygotes
from sockd.worker.builders.image_parts import OpenedImages
from sockd.worker.builders.isolation_parts import IsolationParts
from sockd.worker.builders.linux_parts import LinuxParts
from sockd.worker.builders.starts_parts import StartsParts
from sockd.worker.state_dir import REGISTRY, StateDir

if TYPE_CHECKING:
    from sockd.worker.builders.group_parts import GroupParts


@dataclass(frozen=True, slots=True)
class FunctionParts:
    """Made by `build`."""

    functions: Functions
    versions: Versions
    services: Services
    shares: GroupShares
    group: GroupParts | None
    """None: the worker is in no group."""

    @classmethod
    async def build(
        cls,
        config: Config,
        state: StateDir,
        packages: InstallCache,
        caches: Caches,
        images: OpenedImages,
        stack: AsyncExitStack,
    ) -> FunctionParts:
        """Load the functions of an earlier worker on `stack`. Raises: SockdError, OSError."""
        code = CodeStore(state.path / "code", state.path / "tmp", config.code)
        code.recover()
        vault = Vault.at(key_path(config.secrets, state.path))
        group = None
        if config.group.name:
            from sockd.worker.builders.group_parts import GroupParts  # what a worker without a group does not need

            group = await GroupParts.open(config, state, vault, code, packages, caches, images, stack)
            registry = group.registry
        else:
            registry = await Registry.open(state.path / REGISTRY, vault, keep_versions=config.code.keep_versions)
            stack.push_async_callback(registry.aclose)
        functions = Functions(config, registry, code, packages, caches, group.shared if group is not None else None)
        stack.callback(functions.close)
        functions.load()
        provisioning = Provisioning(registry, functions.live, caches.budget, caches.shares)
        stack.callback(provisioning.close)
        if group is None:  # the first report to a group says what this worker's shares are
            provisioning.load()
        services = Services(
            registry, functions.live, ServiceParts(caches.ports, config.network.publish_on, functions.garbage.holding)
        )
        stack.push_async_callback(services.aclose)
        services.load()
        versions = Versions(registry, functions, provisioning, config.code)
        stack.callback(versions.canaries.close)
        if group is not None:
            stack.push_async_callback(group.following.aclose)
            group.following.start(functions.garbage.collect)
        return cls(functions, versions, services, caches.shares, group)


def make_caches(
    config: Config,
    state: StateDir,
    linux: LinuxParts,
    isolation: IsolationParts,
    starts: StartsParts,
    scripts: Initscripts,
    images: OpenedImages,
    stack: AsyncExitStack,
) -> Caches:
    """Make what functions are served from, with what serves those in images."""
    budget, tree, base = isolation.budget, starts.tree, isolation.base
    programs = ProgramZygotes(tree, deadline_s=config.zygote.import_deadline_s)
    stack.push_async_callback(programs.aclose)
    sources = Starts(starts.handlers, tree, programs, starts.templates)
    timeout_s = config.images.compile_timeout_s
    if timeout_s > 0:
        compiler = ImageCompiler(sources, budget, base, timeout_s, images.store.mounting)
        images.importer.compile_with(compiler.compile)
    pythons = ImagePythons(images.store, sources, tree, budget, base, state.path / "pythons" / "images")
    isolation.foreign.add(SCHEME, pythons)
    modules = FunctionModules(scripts.store.compiler if config.initscripts.enabled else None, config.wasm)
    stack.push_async_callback(modules.aclose)
    return Caches(
        starts.handlers,
        tree,
        sources,
        starts.learner,
        budget,
        starts.verifier,
        scripts,
        max_answer_bytes=config.http.max_payload_bytes,
        max_streamed_bytes=config.http.max_streamed_bytes,
        latency=linux.latency,
        ports=linux.groups.ports,
        open_account=function_accounts(config.sandbox, linux.groups.sockets),
        function_tasks=function_task_limit(linux.groups, config.sandbox),
        networks=isolation.networks,
        modules=modules,
        images=images.store,
        image_pythons=pythons,
        templates=starts.templates,
        programs=programs,
        start_limits=StartLimits(linux.hierarchies.usable_cpus(), config.sandbox.start_wait_s, starts.idle.can_give),
        shares=GroupShares(config.worker_name),
    )
