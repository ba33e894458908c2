"""What the worker makes starts fast with: the install cache, Zygotes, idle sandboxes, snapshots.

Owns nothing: the stack that it is given closes everything.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec

from sockd.base.config import Config, ZygoteConfig
from sockd.base.errors import NoCapacity, SandboxFailed
from sockd.isolation.roots.host_pythons import SCHEME, HostPythons
from sockd.starts.builds.builder import Builder
from sockd.starts.handler_cache import HandlerCache
from sockd.starts.packages.install_cache import InstallCache
from sockd.starts.templates.templates import Templates
from sockd.starts.templates.used_templates import UsedTemplates
from sockd.starts.zygotes.learning.import_learner import ImportLearner
from sockd.starts.zygotes.top_levels.soundness import ImportView
from sockd.starts.zygotes.verification.verifier import Verifier
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_tree import ZygoteTree
from sockd.worker.builders.idle_memory import IdleMemory
from sockd.worker.builders.isolation_parts import IsolationParts
from sockd.worker.process_setup import affordable_idle
from sockd.worker.state_dir import StateDir


@dataclass(frozen=True, slots=True)
class Installed:
    """The packages of an earlier worker, and the interpreters that run them: what the base of the farm shows."""

    packages: InstallCache
    pythons: HostPythons

    @classmethod
    async def open(cls, config: Config, state: StateDir, stack: AsyncExitStack) -> Installed:
        """Open the install cache on `stack`. Raises: SockdError, OSError."""
        pythons = HostPythons(state.packages, state.path / "pythons", config.sandbox.pythons)
        packages = InstallCache(config.packages, state.packages, state.path / "tmp", pythons)
        stack.push_async_callback(packages.aclose)
        await packages.recover()
        return cls(packages, pythons)


@dataclass(frozen=True, slots=True)
class StartsParts:
    """Made by `build`."""

    tree: ZygoteTree
    learner: ImportLearner
    handlers: HandlerCache
    templates: Templates
    verifier: Verifier
    idle: IdleMemory

    @classmethod
    async def build(
        cls, config: Config, state: StateDir, isolation: IsolationParts, installed: Installed, stack: AsyncExitStack
    ) -> StartsParts:
        """Build them on `stack`, and make a sandbox. Raises: SockdError that says what to do, OSError."""
        budget, foreign, packages = isolation.budget, isolation.foreign, installed.packages
        foreign.add(SCHEME, installed.pythons)
        tree = ZygoteTree(
            config.zygote,
            isolation.sandboxes,
            isolation.farm,
            isolation.walls,
            foreign,
            base_uid=config.sandbox.base_uid,
            spare_limits=isolation.spare,
        )
        stack.callback(tree.close)
        await tree.open()
        await try_sandbox(tree)
        tools, max_package_mb = state.path / "build" / "tools", config.packages.max_package_mb
        packages.build_with(Builder(config.builds, tree, tools, max_package_mb=max_package_mb))
        learner = ImportLearner(config.zygote, tree, state.path, packages.provided, defaults=config.function)
        stack.push_async_callback(learner.aclose)
        affordable = affordable_idle(config.sandbox.idle_limit)
        handlers = HandlerCache(msgspec.structs.replace(config.sandbox, idle_limit=affordable), budget)
        stack.callback(handlers.close)
        templates = Templates(config.zygote, tree, budget, UsedTemplates(state.path / "templates.json"))
        stack.push_async_callback(templates.aclose)
        foreign.retired.append(templates.end_interpreter)
        idle = IdleMemory(budget, tree, handlers, templates, isolation.networks)
        budget.holders.append(idle)
        verifier = make_verifier(config.zygote, tree, learner, handlers, templates)
        stack.push_async_callback(verifier.aclose)
        return cls(tree, learner, handlers, templates, verifier, idle)


def make_verifier(
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


async def try_sandbox(tree: ZygoteTree) -> None:
    """Make one, so that a host that refuses them is known before anything is served. Raises: SandboxFailed."""
    try:
        (await tree.children.fork_spare(tree.root.zygote)).destroy()
    except NoCapacity:
        return  # it would have been a spare; functions bring memory of their own
    except (SandboxFailed, OSError, TimeoutError) as error:
        raise SandboxFailed(f"this host does not let us make a sandbox; run `sockd doctor` ({error})") from error
