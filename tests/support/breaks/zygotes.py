"""Breaks of what Zygotes and snapshots may share with functions, and of what a fork starts with."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from sockd.base.errors import SandboxFailed
from sockd.isolation.sandbox import deadline, output
from sockd.starts import sources
from sockd.starts.templates import template_maker, templates, used_templates
from sockd.starts.zygotes import selection, zygote_tree
from sockd.starts.zygotes.learning import canary
from sockd.starts.zygotes.top_levels import sharing, soundness
from sockd.starts.zygotes.verification import verifier
from sockd.starts.zygotes.zygote_node import ZygoteNode
from tests.support.breaks.breaking import breaks, patch_zygote


@breaks("shares-by-subset")
def shares_by_subset() -> None:
    """A Zygote serves every function that has its packages: SOCK's rule, and no other."""
    soundness.CLAUSES = soundness.CLAUSES[:1]
    verifies_nothing()


@breaks("verifies-nothing")
def verifies_nothing() -> None:
    """A Zygote serves whatever the rule lets it, and none is compared with a start of the function's own before."""
    verifier.Verifier.unverified = lambda self, node, view: ""  # type: ignore[method-assign]


@breaks("names-unobserved")
def names_unobserved() -> None:
    """The rule does not know which names imports look up: what that lets through, verification is to find."""
    take_clause(soundness._names_looked_up)


@breaks("variables-unobserved")
def variables_unobserved() -> None:
    """The rule does not know which variables imports read."""
    take_clause(soundness._variables_read)


def take_clause(clause: soundness.Clause) -> None:
    """Neither the rule nor the plans for Zygotes compare one kind of observation."""
    soundness.CLAUSES = tuple(each for each in soundness.CLAUSES if each is not clause)
    soundness.OBSERVATIONS = tuple(each for each in soundness.OBSERVATIONS if each is not clause)


def without_clause(clause: soundness.Clause) -> None:
    """The rule does not compare one kind of observation, and no verification makes up for it."""
    take_clause(clause)
    verifies_nothing()


for _clause in soundness.CLAUSES:
    breaks(f"without{_clause.__name__}")(partial(without_clause, _clause))


@breaks("without_modules_loaded")
def without_modules_loaded() -> None:
    """Nothing compares the modules: neither the rule, which compares them import by import, too, nor the choice of a node, which
    repeats this clause for speed."""
    without_clause(soundness._modules_loaded)
    take_clause(soundness._whole_imports)

    def any_node(nodes: Iterable[ZygoteNode], wanted: frozenset[str], *rest: Any) -> ZygoteNode:
        every = list(nodes)
        return selection.best_node(every, wanted.union(*(node.imports for node in every)), *rest)

    zygote_tree.best_node = any_node  # type: ignore[attr-defined, assignment]


@breaks("process-uncompared")
def process_uncompared() -> None:
    """A recording does not compare names of the interpreter, and what the kernel knows of the process."""
    patch_zygote("top_levels/state.py", r"return found or self\._changed_besides\(later, but\)", "return found")


@breaks("plans-by-subset")
def plans_by_subset() -> None:
    """A plan for a Zygote is whatever two functions have in common."""
    sharing.Sharing.closed = lambda self, wanted, ours, theirs: wanted & ours & theirs  # type: ignore[method-assign]


@breaks("no-canary")
def no_canary() -> None:
    """A new Zygote serves without one fork of it having been tried."""

    async def try_nothing(*args: object, **deadline: float) -> None:
        return

    canary.try_out = try_nothing  # type: ignore[assignment]


@breaks("no-reseed")
def no_reseed() -> None:
    """Generators that a package made in a Zygote go on from there in each of its forks."""
    patch_zygote("forks/hygiene.py", r"^        mend\(\)$", "        pass")


@breaks("late-deadlines")
def late_deadlines() -> None:
    """A sandbox has twelve times as long as its function's timeout: later than a busy machine explains."""
    set_ = deadline.Deadline.set
    deadline.Deadline.set = lambda self, delay_s, passed: set_(self, 12 * delay_s, passed)  # type: ignore[method-assign]


@breaks("any-thread")
def any_thread() -> None:
    """A template serves although its init has left a thread, which no fork has."""
    patch_zygote("template.py", r"\*running_threads\.complaints\(\), ", "")


@breaks("same-numbers")
def same_numbers() -> None:
    """Forks of a template go on with its generators."""
    patch_zygote("forks/hygiene.py", r"^        mend\(\)$", "        pass")


@breaks("live-connections")
def live_connections() -> None:
    """Forks of a template share the connections of its init."""
    patch_zygote("forks/parked.py", r"if stat\.S_ISSOCK\(.*\):", "if False:")


@breaks("unread-output")
def unread_output() -> None:
    """What an init prints in a template stays in its pipe; the init is given up soon."""
    template_maker.LEAST_DEADLINE_S = 3.0

    class Unread(output.Output):
        def start(self, *_: Any) -> None:
            return

    template_maker.Output = Unread  # type: ignore[attr-defined]


@breaks("endless-restore")
def endless_restore() -> None:
    """A start from a template may take as long as the init of the function."""
    sources.RESTORE_S = template_maker.RESTORE_S = 600.0  # type: ignore[attr-defined]


@breaks("no-next-source")
def no_next_source() -> None:
    """A start whose template fails is asked of no other source."""

    async def fail(*_: Any) -> Any:
        raise SandboxFailed("its template has failed")

    sources.Starts._without_template = fail  # type: ignore[method-assign,assignment]


@breaks("never-again")
def never_again() -> None:
    """A template that has ended is not made again."""
    templates.MOST_LOSSES = -1


@breaks("public-template")
def public_template() -> None:
    """Each version with a snapshot is started from the first template that there is."""
    templates.Templates.of = lambda self, program: next(iter(self.serving()), None)  # type: ignore[method-assign]


@breaks("forgets-uses")
def forgets_uses() -> None:
    """A worker does not know which templates the one before it has used."""
    used_templates.read = lambda path: []
