"""The worker as people and scrapers see it: plain data, read at the moment of asking.

Owns nothing and changes nothing. No host path, environment or code of a function is in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from sockd import __version__
from sockd.http.worker_values import TemplateRow, Tree, TreeNode
from sockd.observe.metrics import Metrics
from sockd.starts.templates.template_spares import TemplateSpares
from sockd.starts.templates.templates import Entry
from sockd.starts.zygotes.top_levels.refusals import Refusal
from sockd.starts.zygotes.top_levels.top_level import STANDARD_LIBRARY_WORDS
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.worker.worker import Worker
from sockd_initscripts.client.engine_software import missing

MOST_REASONS = 5
"""Why a Zygote was passed over: so many of the reasons are shown in the tree."""


def status(worker: Worker) -> dict[str, Any]:
    """For `/status` and `sockd status`."""
    budget = worker.budget
    return {
        "version": __version__,
        **group_view(worker),
        "functions": len(worker.functions.live.names()),
        "unready": len(worker.functions.live.restoring.unready),
        "sandboxes": sandbox_counts(worker),
        "queued": worker.functions.live.allowances.waiting(),
        "waiting_to_start": worker.functions.live.allowances.waiting_to_start(),
        "zygotes": len(worker.tree.nodes),
        "learning": worker.learner.is_learning or worker.verifier.agenda.has_work,
        "verifying": worker.verifier.agenda.pending,
        "packages": len(worker.packages.snapshot()),
        "memory": {"total_bytes": budget.total, "reserved_bytes": budget.used},
        "evictions": worker.handlers.evictions,
        "caches": cache_counts(worker),
        "cgroups": {"kind": worker.hierarchies.kind, **_fields(worker.cgroups.snapshot())},
        "policy": worker.config.zygote.policy,
        "initscripts": engine_state(worker),
        "networks": worker.networks.view(),
        "images": {"stored": len(worker.images.store.all()), "why_not": worker.images.store.why_not},
        "spares": worker.tree.spares.most,
        "kernel": kernel_ways(worker),
    }


def group_view(worker: Worker) -> dict[str, Any]:
    """The worker's place in its group, if it is in one."""
    if worker.group is None:
        return {}
    following, config = worker.group.following, worker.config
    return {
        "group": {
            "name": config.group.name,
            "worker": config.worker_name,
            "share": f"1/{worker.shares.divisor}",
            "revision": following.revision,
            "looked_at_s": time.monotonic() - following.looked_at,
        }
    }


def kernel_ways(worker: Worker) -> dict[str, str]:
    """How the features are had that older kernels have in another way."""
    store = worker.images.store
    images = store.mounting.way
    return {**worker.ways.words(), "images": images.words if images is not None else f"none: {store.why_not}"}


def cache_counts(worker: Worker) -> dict[str, dict[str, int]]:
    """What the three caches were asked for and had, since the worker started."""
    handlers, packages = worker.handlers, worker.packages
    return {
        "handler": {"hits": handlers.hits, "misses": handlers.misses},
        "import": dict(vars(worker.learner.hits)),
        "install": {"hits": packages.hits, "misses": packages.misses},
    }


def engine_state(worker: Worker) -> dict[str, Any]:
    """The initscript engine."""
    client = worker.initscripts.client
    lacking = missing()
    why = client.why_down
    if not worker.config.initscripts.enabled:
        why = "switched off (initscripts.enabled)"
    elif lacking:
        why = f"{', '.join(lacking)} not installed"
    return {
        "engine": "ready" if client.serving else why,
        "restarts": max(client.starts - 1, 0),
        "functions": client.defined,
        "running": client.running,
        "memory_bytes": client.memory_bytes(),
        "runs": dict(client.outcomes),
        "prefetched_bytes": client.prefetched_bytes,
    }


def sandbox_counts(worker: Worker) -> dict[str, int]:
    """Sandboxes by state."""
    spares = sum(len(node.spares) for node in worker.tree.nodes)
    kept = worker.versions.provisioning.available()
    return {
        "busy": worker.functions.live.allowances.running() - worker.functions.live.allowances.waiting_to_start(),
        **worker.handlers.counts(),
        "spare": spares,
        "provisioned": kept,
    }


def tree_snapshot(worker: Worker) -> Tree:
    """The Zygote tree as it is now, and the packages that it may not import."""
    nodes = worker.tree.nodes
    now_s = time.monotonic()
    children: dict[str | None, list[ZygoteNode]] = {}
    for node in nodes:
        above = None if node is nodes[0] else node.parent or nodes[0]  # roots behind walls are forks of the first
        children.setdefault(above.id if above else None, []).append(node)

    def show(node: ZygoteNode) -> TreeNode:
        inherited = node.parent.packages if node.parent else frozenset()
        return {
            "packages": requirements(worker, node.packages - inherited) if node.imports else [],
            "network": node.network,
            "interpreter": node.lineage.interpreter,
            "modules": len(node.shared.loaded),
            "unique_memory_bytes": node.unique_bytes,
            "shared_memory_bytes": node.shared_bytes,
            "rate": node.rate.at(now_s),
            "spares": len(node.spares),
            "starts": node.hits,
            "saved_s": node.seconds_saved,
            "passed_over": node.refusals()[:MOST_REASONS],
            "children": [show(child) for child in children.get(node.id, [])],
        }

    refused = [
        {"package": requirement(worker, entry.key), "reason": entry.reason, **_refusal(entry)}
        for entry in worker.learner.refused.list()
    ]
    return {
        "root": show(nodes[0]) if nodes else None,
        "templates": [template_row(entry, worker.templates.spares) for entry in worker.templates.entries()],
        "refused": refused,
    }


def template_row(entry: Entry, spares: TemplateSpares) -> TemplateRow:
    """A version that is to have a snapshot."""
    template = entry.template
    return {
        "function": entry.of.name,
        "version": entry.of.number,
        "state": entry.state.value,
        "reason": entry.reason,
        "memory_bytes": template.memory_bytes if template is not None else 0,
        "init_s": template.report.seconds if template is not None else 0.0,
        "starts": template.starts if template is not None else 0,
        "spares": spares.count(template) if template is not None else 0,
        "losses": entry.losses,
    }


def requirements(worker: Worker, keys: Iterable[str]) -> list[str]:
    """Name the distributions that a Zygote has imported from; without any, it has imported of the standard library alone."""
    return sorted(requirement(worker, key) for key in keys) or [STANDARD_LIBRARY_WORDS]


def package_rows(worker: Worker) -> list[dict[str, Any]]:
    """The install cache, a row per distribution; with `differs`: Zygotes in which it is not as in a start of a function's own."""
    differing: dict[str, list[dict[str, Any]]] = {}
    for pair in worker.verifier.refused.current():
        shown = {"reason": pair.refusal.reason, **_refusal(pair.refusal)}
        differing.setdefault(pair.owner or min(pair.packages, default=""), []).append(shown)
    refused = {entry.key: entry for entry in worker.learner.refused.list()}
    return [
        {
            "key": package.key,
            "name": package.name,
            "version": package.version,
            "size_bytes": package.size_bytes,
            "functions": list(package.used_by),
            **({"reason": entry.reason, **_refusal(entry)} if (entry := refused.get(package.key)) else {}),
            **({"differs": found} if (found := differing.get(package.key)) else {}),
        }
        for package in worker.packages.snapshot(worker.functions.package_users.of)
    ]


def _refusal(entry: Refusal) -> dict[str, Any]:
    """Where a distribution failed, and in how many seconds it may be tried again."""
    return {"zygote": entry.node, "tries": entry.tries, "retry_in_s": max(entry.retry_s - time.time(), 0.0)}


def requirement(worker: Worker, key: str) -> str:
    """A distribution's key as `name==version`."""
    try:
        package = worker.packages.metadata(key)
    except KeyError:  # removed from the store while a Zygote still has it
        return key
    return f"{package.name}=={package.version}"


def watch(metrics: Metrics, worker: Worker) -> None:
    """Have the worker's gauges and counters read at each scrape."""
    budget, pool = worker.budget, worker.cgroups
    metrics.gauge("sandboxes", "Sandboxes by state.", lambda: sandbox_counts(worker), label="state")
    metrics.gauge(
        "queued_requests",
        "Requests waiting for their function's concurrency.",
        worker.functions.live.allowances.waiting,
    )
    words = "Requests waiting for a sandbox because as many of their function start as the processors have work for."
    metrics.gauge("waiting_starts", words, worker.functions.live.allowances.waiting_to_start)
    metrics.gauge("zygotes", "Zygotes in the tree, the root among them.", lambda: len(worker.tree.nodes))
    templates = worker.templates
    metrics.gauge("templates", "Versions with a snapshot, by its state.", templates.counts, label="state")
    metrics.gauge("templates_memory_bytes", "Memory that templates hold.", templates.memory_bytes)
    metrics.counter(
        "template_losses", "Templates that ended by themselves, or from which a start failed.", lambda: templates.losses
    )
    metrics.gauge("memory_reserved_bytes", "Memory given to sandboxes.", lambda: budget.used)
    metrics.gauge("memory_total_bytes", "Memory that may be given to sandboxes.", lambda: budget.total)
    verifier = worker.verifier
    words = "Comparisons of forks with starts of functions' own, by what came of them."
    metrics.counter("zygote_verifications", words, lambda: verifier.outcomes, label="outcome")
    metrics.counter("zygote_verification_cpu_seconds", "CPU time of their sandboxes.", lambda: verifier.trials.cpu_s)
    metrics.gauge("zygote_verifications_pending", "That wait or are under way.", lambda: verifier.agenda.pending)
    metrics.counter("handler_cache_evictions", "Idle sandboxes evicted.", lambda: worker.handlers.evictions)
    engine = worker.initscripts.client
    metrics.counter("initscript_runs", "Runs by how they ended.", lambda: engine.outcomes, label="outcome")
    metrics.counter("initscript_prefetched_bytes", "Bytes fetched by initscripts.", lambda: engine.prefetched_bytes)
    metrics.counter("initscript_engine_starts", "Starts of the initscript engine.", lambda: engine.starts)
    for kind, name, words in (
        (metrics.gauge, "ready", "Private networks made ahead."),
        (metrics.gauge, "in_use", "Private networks that have an address."),
        (metrics.gauge, "policies", "Functions whose rules are in force."),
        (metrics.counter, "pool_hits", "Networks that were ready when a start needed one."),
        (metrics.counter, "pool_misses", "Networks made on the critical path."),
        (metrics.counter, "resolved", "Names of rules whose addresses were opened."),
        (metrics.counter, "host_connections", "Connections to ports of the host that functions may reach."),
        (metrics.counter, "packets_refused", "Packets of functions that no rule of theirs allows."),
        (
            metrics.counter,
            "packets_limited",
            "Packets of functions above network.connections, new_connections or queries.",
        ),
        (
            metrics.counter,
            "rules_restored",
            "Times that the host's table was put back after another program removed it.",
        ),
    ):
        kind(f"network_{name}", words, partial(_of_networks, worker, name))
    metrics.counter("cgroup_pool_misses", "Cgroups made on the critical path.", lambda: pool.snapshot().missed)


def _of_networks(worker: Worker, name: str) -> int:
    return worker.networks.view()[name]


def _fields(snapshot: object) -> dict[str, Any]:
    return {name: getattr(snapshot, name) for name in snapshot.__slots__}  # type: ignore[attr-defined]
