"""What a function imports and what that costs, for `sockd imports`: as its sandboxes told, and which of it a Zygote spares them.

Owns nothing and changes nothing.
"""

from __future__ import annotations

from typing import Any

from sockd.worker.status_views import requirement
from sockd.worker.worker import Worker


def imports(worker: Worker, name: str) -> dict[str, Any]:
    """As `WorkerApi.imports`."""
    version, learner = worker.functions.current(name), worker.learner
    seen = learner.profile.seen_by(version.id)
    means = learner.profile.seconds_by_key()
    refused = {entry.key: entry.reason for entry in learner.refused.list()}
    node = worker.tree.best_now(version.view)  # None: the Zygotes of an image start with its first request
    held = node.packages if node is not None else frozenset()
    told: dict[str, list[dict[str, Any]]] = {}
    for entry in seen or ():
        told.setdefault(entry.key, []).append({"module": entry.module, "ms": entry.seconds * 1e3})
    packages = [
        {
            "package": requirement(worker, key),
            "ms": sum(module["ms"] for module in told[key]) if key in told else means.get(key, 0.0) * 1e3,
            "in_zygote": key in held,
            "refused": refused.get(key),
            "modules": sorted(told.get(key, ()), key=lambda module: -module["ms"]),
        }
        for key in version.keys
    ]
    return {
        "function": name,
        "version": version.number,
        "seen": seen is not None,
        "zygotes_allowed": version.view.closure == version.keys,
        "passed_over": [
            {"packages": sorted(requirement(worker, key) for key in larger.packages), "reason": str(reason)}
            for larger, reason in worker.tree.passed_over(version.view)
        ],
        "packages": sorted(packages, key=lambda package: (-package["ms"], package["package"])),
    }
