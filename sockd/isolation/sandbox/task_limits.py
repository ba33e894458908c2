"""How many processes and threads sandboxes may have: all together, and those of one function. Owns nothing."""

from __future__ import annotations

from sockd.base.config import SandboxConfig
from sockd.linux.cgroups.tree import CgroupTree
from sockd.linux.processes.task_shares import host_tasks

FEWEST = 256
"""The fewest processes of everything in the worker's cgroups, however few are configured: farm, Zygotes and some
sandboxes."""


def limit_tasks(tree: CgroupTree, config: SandboxConfig) -> None:
    """Keep everything in the worker's cgroups below what the host may have. Raises: OSError."""
    tree.limit_tasks(task_limit(tree, config))


def task_limit(tree: CgroupTree, config: SandboxConfig) -> int:
    """Return how many all of the worker's cgroups may have. The other half of the host's is left to the host."""
    half = host_tasks([tree.tasks_above]) // 2
    return max(FEWEST, half if config.pids is None else config.pids)


def function_task_limit(tree: CgroupTree, config: SandboxConfig) -> int:
    """Return how many all sandboxes of one function may have."""
    return task_limit(tree, config) // 2 if config.function_pids is None else max(1, config.function_pids)
