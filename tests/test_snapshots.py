"""The tree and the packages as people see them, from parts that only hold still."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

from sockd.starts.packages.install_cache import PackageSnapshot
from sockd.starts.zygotes.top_levels.refusals import AFTER_DEADLINE_S, Refusals
from sockd.starts.zygotes.verification.refused_pairs import Refused
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.worker.for_apis.status_views import package_rows, requirement, tree_snapshot

A, B, GONE = "a-1.0-aaaaaaaaaaaa", "b-2.0-bbbbbbbbbbbb", "gone-3.0-cccccccccccc"


class Packages:
    def metadata(self, key: str) -> Any:
        name, version, _ = key.split("-")
        if name == "gone":
            raise KeyError(key)
        return SimpleNamespace(name=name, version=version)

    def snapshot(self, users: Any) -> list[PackageSnapshot]:
        return [
            PackageSnapshot(
                key=key, name=key[0], version="1.0", size_bytes=10, installed_at=0.0, modules=(), used_by=users(key)
            )
            for key in (A, B)
        ]


def worker(*nodes: ZygoteNode) -> Any:
    refused = Refusals()
    refused.refuse(B, "it hangs", module="b.core", node="a, b", by_deadline=True)
    refused.refuse(GONE, "it was there")
    again = refused.refuse("pair", "a.x: 1 instead of 2", node="a, b")
    refused.forgive("pair")
    differing = [Refused(frozenset({A, B}), A, again), Refused(frozenset(), "", again)]
    return SimpleNamespace(
        tree=SimpleNamespace(nodes=list(nodes)),
        learner=SimpleNamespace(refused=refused),
        verifier=SimpleNamespace(refused=SimpleNamespace(current=lambda: differing)),
        packages=Packages(),
        templates=SimpleNamespace(entries=list),
        functions=SimpleNamespace(package_users=SimpleNamespace(of=lambda key: ("f",) if key == A else ())),
    )


def node(number: int, packages: set[str], parent: ZygoteNode | None) -> ZygoteNode:
    zygote: Any = SimpleNamespace(name=f"zygote-{number}")
    return ZygoteNode(zygote, frozenset(packages), parent, frozenset(f"{key}@{key}" for key in packages))


def test_a_node_shows_what_it_has_beyond_its_parent() -> None:
    root = node(0, set(), None)
    child = node(1, {A}, root)
    grandchild = node(2, {A, B}, child)
    grandchild.hit(time.monotonic())
    tree = tree_snapshot(worker(root, grandchild, child))
    assert tree["root"] is not None
    (below,) = tree["root"]["children"]
    assert (tree["root"]["packages"], below["packages"]) == ([], ["a==1.0"])
    assert below["children"][0]["packages"] == ["b==2.0"]
    assert below["children"][0]["starts"] == 1 and below["children"][0]["rate"] > 0
    json.dumps(tree)


def test_a_tree_whose_root_is_being_restarted_is_shown_without_it() -> None:
    orphan = node(1, {A}, None)
    assert tree_snapshot(worker())["root"] is None
    json.dumps(tree_snapshot(worker(orphan)))


def test_refused_packages_have_their_reasons_in_both_lists() -> None:
    state = worker(node(0, set(), None))
    refused, gone = tree_snapshot(state)["refused"]
    assert (refused["package"], refused["reason"], refused["zygote"]) == ("b==2.0", "b.core: it hangs", "a, b")
    assert refused["tries"] == 1 and 0 < refused["retry_in_s"] <= AFTER_DEADLINE_S
    assert (gone["package"], gone["reason"]) == (GONE, "it was there")
    first, second = package_rows(state)
    assert first["functions"] == ["f"] and "reason" not in first
    assert second["functions"] == [] and second["reason"] == "b.core: it hangs"


def test_a_package_that_left_the_store_is_shown_by_its_key() -> None:
    assert requirement(worker(), A) == "a==1.0"
    assert requirement(worker(), GONE) == GONE
