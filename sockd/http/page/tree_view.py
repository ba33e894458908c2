"""The Zygote tree as values of a template: Zygotes, refused packages, and why Zygotes were not used.

Pure but for reading the worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sockd.base.spelling import size, span
from sockd.http.page import charts, words
from sockd.http.page.views import Values
from sockd.http.worker import Worker

MAX_NAMES = 4
"""Packages of a Zygote that are shown by name; the others are in its title."""


def tree(worker: Worker) -> Values:
    """The Zygote tree as rows, each with its depth, and what may not be in it."""
    zygotes = worker.numbers.tree()
    root = zygotes["root"]
    flat = list(flatten(root, 0)) if root is not None else []
    most = max((own(node) + node.get("shared_memory_bytes", 0) for _, node in flat), default=0)
    return {
        "rows": [tree_row(node, depth, most) for depth, node in flat],
        "templates": [template_row(each) for each in zygotes.get("templates", ())],
        "refused": [refusal_row(each) for each in zygotes["refused"]],
        "passed_over": [
            {"zygote": ", ".join(node["packages"]) or "root", "reason": reason}
            for _, node in flat
            for reason in node.get("passed_over", ())
        ],
    }


def refusal_row(refusal: Mapping[str, Any]) -> Values:
    """A package that no Zygote imports for now, and when one tries again."""
    tries, retry_in_s = refusal.get("tries", 1), refusal.get("retry_in_s")
    again = f"next try in {span(retry_in_s)}" if retry_in_s is not None else ""
    failures = f"failed {tries} times" if tries > 1 else ""
    return {
        "package": refusal["package"],
        "reason": refusal["reason"],
        "zygote": refusal.get("zygote", ""),
        "again": ", ".join(filter(None, (failures, again))),
    }


def template_row(row: Mapping[str, Any]) -> Values:
    """A version that is to have a snapshot."""
    serves = row["state"] == "serving"
    return {
        "function": row["function"],
        "version": row["version"],
        "state": row["state"],
        "reason": row["reason"],
        "memory": size(row["memory_bytes"]) if serves else words.NOTHING,
        "starts": words.grouped(row["starts"]),
        "saved": words.ms(row["init_s"] * 1e9) if serves else words.NOTHING,
    }


def flatten(node: Mapping[str, Any], depth: int) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """A node and all below it, parents first."""
    yield depth, node
    for child in node.get("children", ()):
        yield from flatten(child, depth + 1)


def tree_row(node: Mapping[str, Any], depth: int, most: int) -> Values:
    """One Zygote."""
    packages = [package.partition("==") for package in node["packages"]]
    shared = node.get("shared_memory_bytes", 0)
    measured = own(node) > 0
    return {
        "depth": min(depth, 6),
        "names": [{"name": name, "version": version} for name, _, version in packages[:MAX_NAMES]],
        "more": len(packages) - MAX_NAMES if len(packages) > MAX_NAMES else 0,
        "all": ", ".join(node["packages"]),
        "network": "" if node.get("network", "host") == "host" else node["network"],
        "own": size(own(node)) if measured else words.NOTHING,
        "shared": size(shared) if measured else words.NOTHING,
        "bar": charts.stacked([("own", own(node), "its own"), ("shared", shared, "shared")], most),
        "starts": words.grouped(node.get("starts", 0)),
        "spares": node.get("spares", 0),
        "rate": words.rate(node.get("rate", 0.0)),
        "saved": words.ms(node.get("saved_s", 0.0) * 1e9) if packages else words.NOTHING,
    }


def own(node: Mapping[str, Any]) -> int:
    """A node's memory that is its alone."""
    return int(node.get("unique_memory_bytes", 0))
