"""What a function imports and what that costs, for `sockd imports`: as its sandboxes reported, and which of it a Zygote spares
them.

Owns nothing and changes nothing.
"""

from __future__ import annotations

from typing import Any

from sockd.functions.registry.aliases import LATEST
from sockd.functions.serving.restoring import Unready
from sockd.functions.serving.version import Version
from sockd.starts.packages.distribution import Closure
from sockd.starts.zygotes.soundness import ImportView
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.worker.status_views import requirement, requirements
from sockd.worker.worker import Worker


def why(worker: Worker, version: Version, node: ZygoteNode | None) -> str:
    """In one line: why the starts of a version share imports with others, or do not."""
    view = version.view
    if version.config.zygote == "none":
        return 'nothing is imported ahead: zygote = "none"'
    if view.zygote == "none":
        return "nothing is imported ahead: it is a program, which no Zygote of Python runs"
    if view.top is None:
        return worker.verifier.why_unrecorded(view)
    if not view.top.wanted:
        return view.top.change or "its top level imports nothing that a Zygote could import ahead"
    if node is None:
        return "no Zygote serves it yet: those of its image start with its first request"
    if not node.imports:
        return f"no Zygote serves it yet: {why_no_better(worker, view)}"
    if view.top.loaded <= node.shared.loaded or (not view.top.change and view.top.wanted <= node.imports):
        return "a Zygote has imported ahead all that its top level imports"
    return f"a Zygote has imported a part ahead: {view.top.change or f'no Zygote has the rest: {why_no_better(worker, view)}'}"


def why_no_better(worker: Worker, view: ImportView) -> str:
    """Why no Zygote with more of its imports serves a version: one that there is must not, or there is none."""
    for larger, reason in worker.tree.passed_over(view):
        return f"that of {', '.join(requirements(worker, larger.packages))}: {reason}"
    return worker.learner.why_unmade(view)


def imports(worker: Worker, name: str) -> dict[str, Any]:
    """As `Packages.imports` of the doors' worker."""
    if (unready := worker.functions.live.restoring.unready.get(name)) is not None:
        return _unready(name, unready)
    version, learner = worker.functions.live.current(name), worker.learner
    top, seen = version.view.top, learner.seen.get(version.id)
    modules = [module for step in top.steps for module in step.modules] if top is not None else []
    recorded = {module.name for module in modules}
    modules += [module for module in seen or () if module.name not in recorded]
    refused = {entry.key: entry.reason for entry in learner.refused.list()}
    node = worker.tree.best_now(version.view)  # None: the Zygotes of an image start with its first request
    held = node.packages if node is not None else frozenset()
    told: dict[str, list[dict[str, Any]]] = {}
    for module in modules:
        told.setdefault(module.key, []).append({"module": module.name, "ms": module.seconds * 1e3})
    packages = [
        {
            "package": requirement(worker, key),
            "ms": sum(module["ms"] for module in told.get(key, ())),
            "in_zygote": key in held,
            "refused": refused.get(key),
            "modules": sorted(told.get(key, ()), key=lambda module: -module["ms"]),
        }
        for key in version.keys
    ]
    return {
        "function": name,
        "version": version.number,
        "seen": top is not None or seen is not None,
        "zygotes_allowed": version.view.zygote == "packages",
        "sharing": why(worker, version, node),
        "passed_over": [
            {"packages": requirements(worker, larger.packages), "reason": str(reason)}
            for larger, reason in worker.tree.passed_over(version.view)
        ],
        "packages": sorted(packages, key=lambda package: (-package["ms"], package["package"])),
    }


def _unready(name: str, unready: Unready) -> dict[str, Any]:
    """Return the report of a function that cannot run: its packages, of which nothing is known."""
    closure = Closure.from_json(unready.record.closure)
    return {
        "function": name,
        "version": LATEST,
        "seen": False,
        "zygotes_allowed": unready.record.readable.zygote == "packages",
        "sharing": f"it cannot run yet: {unready.state}",
        "passed_over": [],
        "packages": [
            {"package": f"{each.name}=={each.version}", "ms": 0.0, "in_zygote": False, "refused": None, "modules": []}
            for each in closure.distributions
        ],
    }
