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
from sockd.starts.zygotes.top_levels.remedies import remedy
from sockd.starts.zygotes.top_levels.soundness import ImportView
from sockd.starts.zygotes.top_levels.top_level import STANDARD_LIBRARY, TopLevel
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.worker.for_apis.status_views import requirement, requirements
from sockd.worker.worker import Worker

PassedOver = list[dict[str, Any]]


def imports(worker: Worker, name: str) -> dict[str, Any]:
    """As `Packages.imports` of the APIs' worker."""
    if (unready := worker.functions.live.restoring.unready.get(name)) is not None:
        return _unready(name, unready)
    version = worker.functions.live.current(name)
    node = worker.tree.best_now(version.view)  # None: the Zygotes of an image start with its first request
    passed_over = _passed_over(worker, version.view)
    return {
        "function": name,
        "version": version.number,
        "seen": version.view.top is not None or version.id in worker.learner.seen,
        "zygotes_allowed": version.view.zygote == "packages",
        "sharing": why(worker, version, node, passed_over),
        "passed_over": passed_over,
        "packages": _packages(worker, version, node),
        "standard": _standard(version.view.top, node),
    }


def why(worker: Worker, version: Version, node: ZygoteNode | None, passed_over: PassedOver) -> str:
    """Say in one line why the starts of a version share imports with others, or do not."""
    view = version.view
    if version.config.zygote == "none":
        return 'nothing is imported ahead: zygote = "none"'
    if view.zygote == "none":
        return "nothing is imported ahead: it is a program, which no Zygote of Python runs"
    if view.top is None:
        return worker.verifier.why_unrecorded(view)
    if not view.top.wanted:
        return _change(view.top) or "its top level imports nothing that a Zygote could import ahead"
    if node is None:
        return "no Zygote serves it yet: those of its image start with its first request"
    if not node.imports:
        return f"no Zygote serves it yet: {_why_no_better(worker, view, passed_over)}"
    if view.top.loaded <= node.shared.loaded or (not view.top.change and view.top.wanted <= node.imports):
        return f"a Zygote has imported ahead all that its top level imports{_besides(worker, version, view.top)}"
    rest = _change(view.top) or f"no Zygote has the rest: {_why_no_better(worker, view, passed_over)}"
    return f"a Zygote has imported a part ahead: {rest}"


def _besides(worker: Worker, version: Version, top: TopLevel) -> str:
    """Say which packages the last new sandbox has imported besides those of the recorded top level; empty: none."""
    seen = worker.learner.seen.get(version.id, ())
    more = {module.key for module in seen if module.key and module.name not in top.loaded}
    if not more:
        return ""
    names = ", ".join(sorted(requirement(worker, key) for key in more))
    return f" in the start that was recorded; the last one has imported more of {names}, in its handler or by another decision"


def _change(top: TopLevel) -> str:
    """Say what a function's own code changes before an import, and what to do instead; empty: nothing."""
    return f"{top.change}; {remedy(top)}" if top.change else ""


def _why_no_better(worker: Worker, view: ImportView, passed_over: PassedOver) -> str:
    """Why no Zygote with more of its imports serves a version: one that there is must not, or there is none."""
    for larger in passed_over:
        return f"that of {', '.join(larger['packages'])}: {larger['reason']}"
    return worker.learner.why_unmade(view)


def _passed_over(worker: Worker, view: ImportView) -> PassedOver:
    """Return the Zygotes with more of a version's imports that must not serve it, each with the reason; those that would all
    be described alike once."""
    rows = [
        {"packages": requirements(worker, larger.packages), "reason": str(reason)}
        for larger, reason in worker.tree.passed_over(view)
    ]
    return [row for number, row in enumerate(rows) if row not in rows[:number]]


def _packages(worker: Worker, version: Version, node: ZygoteNode | None) -> list[dict[str, Any]]:
    """Return a row per package of a version, the slowest first, and in it one per module that its top level or its last new
    sandbox has loaded."""
    top = version.view.top
    loaded = {module.name: module for module in worker.learner.seen.get(version.id, ())}
    loaded |= {module.name: module for step in (top.steps if top is not None else ()) for module in step.modules}
    ahead = node.shared.loaded if node is not None else frozenset[str]()
    shareable = top.shareable if top is not None else frozenset[str]()
    refused = {entry.key: entry.reason for entry in worker.learner.refused.list()}
    rows = []
    for key in version.keys:
        modules = [module for module in loaded.values() if module.key == key]
        rows.append(
            {
                "package": requirement(worker, key),
                "ms": sum(module.seconds for module in modules) * 1e3,
                "ahead_ms": sum(module.seconds for module in modules if module.name in ahead) * 1e3,
                "in_zygote": bool(modules) and all(module.name in ahead for module in modules),
                "shareable": any(module.name in shareable - ahead for module in modules),
                "refused": refused.get(key),
                "modules": [
                    {"module": module.name, "ms": module.seconds * 1e3, "in_zygote": module.name in ahead}
                    for module in sorted(modules, key=lambda module: -module.seconds)
                ],
            }
        )
    return sorted(rows, key=lambda row: (-row["ms"], row["package"]))


def _standard(top: TopLevel | None, node: ZygoteNode | None) -> dict[str, float]:
    """Return the time for modules of the standard library that a version's top level loads, in all and ahead."""
    steps = top.steps if top is not None else ()
    modules = [module for step in steps for module in step.modules if module.key == STANDARD_LIBRARY]
    ahead = node.shared.loaded if node is not None else frozenset[str]()
    return {
        "ms": sum(module.seconds for module in modules) * 1e3,
        "ahead_ms": sum(module.seconds for module in modules if module.name in ahead) * 1e3,
    }


def _unready(name: str, unready: Unready) -> dict[str, Any]:
    """Return the report of a function that cannot run: its packages, of which nothing is known."""
    closure = Closure.from_json(unready.record.closure)
    nothing: dict[str, Any] = {
        "ms": 0.0,
        "ahead_ms": 0.0,
        "in_zygote": False,
        "shareable": False,
        "refused": None,
        "modules": [],
    }
    return {
        "function": name,
        "version": LATEST,
        "seen": False,
        "zygotes_allowed": unready.record.readable.zygote == "packages",
        "sharing": f"it cannot run yet: {unready.state}",
        "passed_over": [],
        "packages": [{"package": f"{each.name}=={each.version}", **nothing} for each in closure.distributions],
        "standard": {"ms": 0.0, "ahead_ms": 0.0},
    }
