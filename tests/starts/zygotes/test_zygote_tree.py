"""The tree when roots die at awkward moments; the Zygotes are stand-ins, everything else of it is in tests/daemon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sockd.base.config import ZygoteConfig
from sockd.base.errors import ImageUnavailable, SandboxFailed, StoreUnavailable
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.program import HOST_LINEAGE, Lineage, Program
from sockd.isolation.sandbox.memory_budget import MemoryBudget, Reservation
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.starts.sources import Forks, Wanted
from sockd.starts.zygotes.children import SPARE_MEMORY_BYTES
from sockd.starts.zygotes.top_levels.soundness import NO_PACKAGES, ImportView, Preimported
from sockd.starts.zygotes.top_levels.top_level import Module, Step, TopLevel, import_id
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_tree import ZygoteTree

pytestmark = pytest.mark.anyio

MB = 1 << 20


class Root:
    """A root Zygote that may be dead already."""

    uids = SimpleNamespace(has_uid=False)

    interpreter = ""

    def __init__(self, number: int, *, alive: bool) -> None:
        self.name = f"zygote-{number}"
        self.alive = alive

    def close(self) -> None:
        self.alive = False


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is exec'd, in this order: a Root, or an error. Empty: living ones for ever."""
    coming: list[Any] = []
    made: list[Root] = []

    async def exec_root(*args: Any) -> Any:
        root = coming.pop(0) if coming else Root(len(made), alive=True)
        if isinstance(root, Exception):
            raise root
        made.append(root)
        return root

    monkeypatch.setattr(Zygote, "exec_root", exec_root)
    return coming


class Reserved:
    """Memory of a budget, and nothing else to wait for."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget

    def reserve_nowait(self, program: Program) -> Reservation | None:
        return self.budget.reserve_nowait(MB)

    async def reserve(self, program: Program) -> Reservation:
        return await self.budget.reserve(MB, deadline_s=1.0)


class Tree(ZygoteTree):
    """Forks nothing: the node is the answer, or ZygoteGone when its Zygote is dead."""

    def __init__(self, foreign: Any = None) -> None:
        self.budget = MemoryBudget(64 * MB)
        parts: Any = SimpleNamespace(budget=self.budget, cgroups=None, spawn_deadline_s=1.0)
        super().__init__(ZygoteConfig(), parts, None, {}, foreign, base_uid=1 << 28, spare_limits=None)  # type: ignore[arg-type]

    async def ask(self) -> Any:
        program: Any = SimpleNamespace(limits=SimpleNamespace(network="host"))
        started = await Forks(self).take(Wanted(NO_PACKAGES, program, Reserved(self.budget)))()
        return started.node


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fork(parts: Any, zygote: Any, limits: Any, reservation: Reservation, program: Any) -> Any:
        reservation.close()
        if not zygote.alive:
            raise ZygoteGone("the Zygote is gone")
        return zygote

    monkeypatch.setattr(Sandbox, "fork", fork)


async def test_a_root_that_ends_as_soon_as_it_is_there_does_not_serve(roots: list[Any]) -> None:
    roots.append(Root(99, alive=False))
    tree = Tree()
    with pytest.raises(ZygoteGone):
        await tree.open()
    served: Any = await tree.ask()
    assert served.id == "zygote-1" and tree.budget.used == 0
    tree.close()


async def test_a_node_whose_end_no_one_reported_is_replaced(roots: list[Any]) -> None:
    tree = Tree()
    await tree.open()
    tree.root.zygote.close()  # and `zygote_ended` was called before the node was in the tree
    served: Any = await tree.ask()
    assert served.zygote.alive and served is tree.root
    assert len(tree.nodes) == 1 and tree.budget.used == 0
    tree.close()


async def test_a_root_that_could_not_be_made_is_tried_again_by_the_next_request(roots: list[Any]) -> None:
    tree = Tree()
    await tree.open()
    roots += [OSError(24, "Too many open files")] * 4
    tree.lineages.zygote_ended(tree.root.zygote)
    with pytest.raises(SandboxFailed, match="being restarted"):
        await tree.ask()
    assert tree.budget.used == 0
    served: Any = await tree.ask()
    assert served.zygote.alive
    tree.close()


async def test_make_room_takes_the_roots_spares_last(roots: list[Any]) -> None:
    class Spare:
        on_death: Any = None

        def destroy(self) -> None:
            self.on_death(self)

    tree = Tree()
    await tree.open()
    other = learned(7, "numpy", tree.root)
    tree.add(other)
    for node in (tree.root, other):
        for _ in range(2):
            node.add_spare(Spare())  # type: ignore[arg-type]
    kept = []
    for need in (0, 1, SPARE_MEMORY_BYTES, SPARE_MEMORY_BYTES + 1):
        tree.spares.make_room(need)
        kept.append((len(other.spares), len(tree.root.spares), tree.spares.memory_bytes() // SPARE_MEMORY_BYTES))
    assert kept == [(2, 2, 4), (1, 2, 3), (0, 2, 2), (0, 0, 0)]
    tree.close()


def learned(number: int, imports: str, parent: ZygoteNode | None, **options: Any) -> ZygoteNode:
    """A node with these imports, which are all that it has loaded, in this order."""
    order = tuple(imports.split())
    zygote: Any = Root(number, alive=True)
    zygote.uids = SimpleNamespace(has_uid=True)
    shared = Preimported(loaded=frozenset(order), order=order)
    ids = frozenset(import_id(name, "") for name in order)
    return ZygoteNode(zygote, frozenset(), parent, ids, shared=shared, **options)


def view_of(imports: str, changed: str = "") -> ImportView:
    """A function whose top level imports these; before the later ones its own code changes something."""
    steps = [(name, "") for name in imports.split()] + [(name, "os.environ") for name in changed.split()]
    made = [Step(name, "", -1, before, (), (Module("", name, 0.1),)) for name, before in steps]
    return ImportView(frozenset(), top=TopLevel(tuple(made)))


async def test_the_node_that_has_most_of_the_top_level_serves(roots: list[Any]) -> None:
    tree = Tree()
    await tree.open()
    one = learned(1, "a", tree.root)
    both, apart = learned(2, "a b", one), learned(3, "c", tree.root)
    for node in (one, both, apart):
        tree.add(node)
    assert tree.best(view_of("a b")) is both and tree.best(view_of("a")) is one and tree.best(view_of("c d")) is apart
    assert tree.best(view_of("d")) is tree.best(view_of("")) is tree.root
    assert tree.best(view_of("a", changed="b")) is one
    assert tree.best(ImportView(frozenset())) is tree.root, "what is not recorded has its own start"
    both.zygote.uids.has_uid = False  # type: ignore[misc]
    assert tree.best(view_of("a b")) is one
    tree.close()


async def test_nodes_that_must_not_serve_are_reported_the_largest_first(roots: list[Any]) -> None:
    tree, view = Tree(), view_of("a", changed="b c")
    await tree.open()
    nodes = [learned(1, "a", tree.root), learned(2, "a b", tree.root), learned(3, "a b c", tree.root)]
    for node in (*nodes, learned(4, "a d", tree.root)):
        tree.add(node)
    reason = "the function's own code changes os.environ before it imports b"
    assert tree.passed_over(view) == [(nodes[2], reason), (nodes[1], reason)]
    assert nodes[1].refusals() == [reason] and nodes[0].refusals() == []
    assert tree.passed_over(view_of("a b c")) == tree.passed_over(ImportView(frozenset())) == []
    tree.close()


async def test_a_node_serves_when_it_is_verified_and_is_asked_once(roots: list[Any]) -> None:
    tree, view = Tree(), view_of("a")
    await tree.open()
    asked = []
    tree.verify_with(SimpleNamespace(unverified=lambda node, view: asked.append(node.id) or "not yet"))  # type: ignore[func-returns-value]
    node = learned(1, "a", tree.root)
    tree.add(node)
    for _ in range(3):
        assert tree.best(view) is tree.root
    assert tree.best(view_of("b")) is tree.root
    assert asked == ["zygote-1"] and tree.passed_over(view) == [(node, "not yet")]
    node.verdicts.clear()
    node.verifier = None
    assert tree.best(view) is node and tree.passed_over(view) == []
    tree.close()


def test_a_later_daemons_zygote_of_the_same_imports_is_the_same_to_the_verifier() -> None:
    def identity(imports: str, loaded: str = "", *, packages: str = "", lineage: Lineage = HOST_LINEAGE) -> str:
        node = learned(1, imports, None, lineage=lineage)
        names = frozenset((loaded or imports).split())
        node.shared = replace(node.shared, loaded=names, packages=frozenset(packages.split()))
        return node.identity

    assert identity("a b") == identity("a b")
    others = [identity("b a"), identity("a b", "a b c"), identity("a b", packages="p"), identity("a b", lineage=IMAGE)]
    assert len({identity("a b"), *others}) == 5


async def test_a_node_whose_parent_was_evicted_meanwhile_hangs_below_the_deepest_left(
    roots: list[Any],
) -> None:
    tree = Tree()
    await tree.open()
    old, left = learned(1, "a b", tree.root), learned(2, "a", tree.root)
    for node in (old, left, learned(3, "c d", tree.root)):
        tree.add(node)
    tree.remove(old)
    late = learned(4, "a b e", old)
    tree.add(late)
    assert late.parent is left and late.depth == 2
    tree.remove(left)
    assert late.parent is tree.root
    tree.close()


async def test_a_node_that_imported_while_its_last_function_went_does_not_stay(roots: list[Any]) -> None:
    tree, image = Tree(), Lineage(interpreter="image:a")
    first, late = (learned(number, "a", None, lineage=image) for number in (1, 2))
    tree.lineages.expect(image, at_once=False)
    tree.add(first)
    assert tree.nodes == [first]
    tree.lineages.release(image)
    tree.add(late)
    assert tree.nodes == [] and not first.zygote.alive and not late.zygote.alive
    tree.close()


IMAGE = Lineage(interpreter="image:0123456789ab.7")
LOST = ImageUnavailable("the agent is gone", retry_after_s=7)


class Farms:
    """Foreign farms whose roots are stand-ins, or errors."""

    is_short_of_uids = False

    def __init__(self) -> None:
        self.coming: list[Any] = []
        self.retired: list[Callable[[str, ImageUnavailable], None]] = []
        self.without_image: set[Any] = set()

    async def exec_root(self, interpreter: str, *args: Any, **options: Any) -> Any:
        root = self.coming.pop(0)
        if isinstance(root, Exception):
            raise root
        root.interpreter = interpreter
        return root

    def parts_of(self, zygote: Any) -> Any:
        return None

    def is_retired(self, zygote: Any) -> bool:
        return zygote in self.without_image


async def test_all_zygotes_of_a_lost_image_end_and_the_next_start_makes_a_root(
    roots: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    farms = Farms()
    tree, view = Tree(farms), ImportView(frozenset(), interpreter=IMAGE.interpreter)
    await tree.open()
    farms.coming = [Root(1, alive=True), Root(2, alive=True)]
    tree.lineages.expect(IMAGE)
    root: Any = await tree.living_best(view)
    children: list[Any] = [Root(3, alive=True), Root(4, alive=True)]
    for child in children:
        child.interpreter = IMAGE.interpreter
    serving, importing = (ZygoteNode(each, frozenset({"image:a"}), root, lineage=IMAGE) for each in children)
    tree.add(serving)
    farms.without_image = {root.zygote, *children}
    [tell] = farms.retired
    tell(IMAGE.interpreter, LOST)
    assert tree.nodes == [tree.root] and tree.root.zygote.alive, "those of other interpreters go on"
    assert not root.zygote.alive and not children[0].alive
    with pytest.raises(ZygoteGone, match="image of its interpreter was lost"):
        tree.add(importing)  # which a learner has made meanwhile
    assert not children[1].alive and tree.nodes == [tree.root]
    [line] = [each.getMessage() for each in caplog.records if "root Zygote" in each.getMessage()]
    assert line == "the root Zygote of the image sha256:0123456789ab is ended: the agent is gone"
    served: Any = await tree.living_best(view)
    assert served.id == "zygote-2"
    tree.close()


async def test_a_root_of_an_unreadable_image_is_tried_once_by_each_start_and_logged_once(
    roots: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    farms = Farms()
    tree, view = Tree(farms), ImportView(frozenset(), interpreter=IMAGE.interpreter)
    await tree.open()
    tree.lineages.expect(IMAGE, at_once=False)
    for _ in range(3):
        farms.coming = [LOST]
        with pytest.raises(ImageUnavailable, match="the agent is gone") as reported:
            await tree.living_best(view)
        assert reported.value is not LOST and reported.value.retry_after_s == 7
    farms.coming = [LOST]
    assert await tree.lineages.why_no_root(IMAGE) is LOST
    lines = [each.getMessage() for each in caplog.records if "root Zygote" in each.getMessage()]
    assert lines == ["the root Zygote of the image sha256:0123456789ab cannot be started: the agent is gone"]
    farms.coming = [StoreUnavailable("s3://images", "it answers 503"), Root(1, alive=True)]
    with pytest.raises(StoreUnavailable, match="it answers 503"):
        await tree.living_best(view)
    farms.coming = [SandboxFailed("no exec")] * 3
    with pytest.raises(SandboxFailed, match="no exec"):
        await tree.living_best(view)
    farms.coming = [Root(1, alive=True)]
    assert (await tree.living_best(view)).zygote.alive
    tree.close()


async def test_where_uids_are_short_a_new_root_ends_the_least_recently_used_interpreter(roots: list[Any]) -> None:
    farms = Farms()
    tree, lineages = Tree(farms), [Lineage(interpreter=f"image:{name}") for name in "abc"]
    await tree.open()
    farms.coming = [Root(number, alive=True) for number in range(1, 5)]
    made: list[Any] = []
    for lineage in lineages[:2]:
        tree.lineages.expect(lineage, at_once=False)
        made.append(await tree.living_best(ImportView(frozenset(), interpreter=lineage.interpreter)))
    below = learned(9, "a", made[0], lineage=lineages[0])
    tree.add(below)
    made[0].last_used_s, below.last_used_s, made[1].last_used_s = 1.0, 3.0, 2.0
    farms.is_short_of_uids = True
    tree.lineages.expect(lineages[2], at_once=False)
    third = await tree.living_best(ImportView(frozenset(), interpreter=lineages[2].interpreter))
    assert set(tree.nodes) == {tree.root, made[0], below, third} and not made[1].zygote.alive
    third.last_used_s = 4.0
    again = await tree.living_best(ImportView(frozenset(), interpreter=lineages[1].interpreter))
    assert set(tree.nodes) == {tree.root, third, again} and tree.root.zygote.alive
    tree.close()


async def test_a_zygote_that_has_ended_imports_nothing(roots: list[Any]) -> None:
    tree, ended = Tree(), Zygote(None, None, lambda zygote: None)  # type: ignore[arg-type]
    await tree.open()
    with pytest.raises(ZygoteGone, match="has ended"):
        await tree.children.import_modules(ended, None, deadline_s=1)  # type: ignore[arg-type]
    tree.close()
