"""Memory of what waits for requests, which a start that needs it gets: the order in which it is given up.

Owns nothing.
"""

from __future__ import annotations

from sockd.isolation.networks.networks import Networks
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.starts.handler_cache import HandlerCache
from sockd.starts.templates.templates import Templates
from sockd.starts.zygotes.zygote_tree import ZygoteTree


class IdleMemory:
    """Networks, spares, idle sandboxes and templates of one worker, as one `memory_budget.Holder`."""

    def __init__(
        self,
        budget: MemoryBudget,
        tree: ZygoteTree,
        handlers: HandlerCache,
        templates: Templates,
        networks: Networks,
    ) -> None:
        self._budget = budget
        self._tree = tree
        self._handlers = handlers
        self._templates = templates
        self._networks = networks

    def make_room(self, need_bytes: int) -> None:
        """POLICY: networks that wait for a burst go first, as their memory is free at once; then spares where they are enough, as
        a new one takes milliseconds; else idle sandboxes, and then spares; templates last, as each is seconds of init."""
        missing = self._networks.make_room(need_bytes - self._budget.free)
        of_templates = self._templates.spares.memory_bytes()
        if self._tree.spares.memory_bytes() + of_templates < missing:
            missing = self._handlers.make_room(need_bytes)
        left = missing - self._tree.spares.memory_bytes() - of_templates
        self._tree.spares.make_room(missing - of_templates)
        self._templates.spares.make_room(missing)
        self._templates.make_room(left)

    def can_give(self, size: int) -> bool:
        """Whether `make_room` can find so many bytes."""
        templates = self._templates.memory_bytes() + self._templates.spares.memory_bytes()
        return self._handlers.holds(size - self._tree.spares.memory_bytes() - self._networks.spare_bytes() - templates)
