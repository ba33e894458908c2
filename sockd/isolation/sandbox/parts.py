"""The parts of sandboxes. Owns nothing: the worker owns each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sockd.isolation.roots.assembly import Assembly
from sockd.isolation.roots.image_base import ImageBase
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.granted_ports import GrantedPorts
from sockd.isolation.sandbox.live_output import LiveOutput
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.isolation.sandbox.read_turns import ReadTurns
from sockd.isolation.sandbox.sandbox_pipes import SandboxPipes
from sockd.linux.bpf.port_guard import PortGuard
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.ways import Ways


@dataclass(frozen=True, slots=True)
class Parts:
    """The pools that sandboxes are made from, and the limits of their wires."""

    assembly: Assembly
    cgroups: CgroupPool
    budget: MemoryBudget
    release: Callable[[int], None]
    """Closes the last fd of a tree (`Farm.release`)."""
    max_answer_bytes: int
    spawn_deadline_s: float
    stop_grace_s: float = 1.0
    """How long a function may go on with an answer that no client reads any more."""
    take_ends: Callable[[], SandboxPipes] = SandboxPipes.open
    """A new sandbox's connections; perhaps made ahead."""
    turns: ReadTurns = field(default_factory=ReadTurns)
    live: LiveOutput = field(default_factory=LiveOutput)
    init_ceiling: float = 6.0
    """Most wall-clock time of an init, as a multiple of its time limit, with what it waits for processors."""
    ways: Ways = field(default_factory=Ways.find)
    ports: GrantedPorts = field(default_factory=lambda: GrantedPorts(PortGuard()))
    """Ports of the host for programs that serve one."""
    image: ImageBase | None = None
    """That their farm stands on."""

    def image_of(self, program: Program | None) -> ImageBase | None:
        """In which a sandbox of a program has its root."""
        if self.image is None and program is not None:
            return program.base
        return self.image
