"""What the garbage collector decides, as a function of what a store holds."""

from __future__ import annotations

from sockd.images.chunks.collection import Action, Delete, Expire, Holdings, Migrate, Wait, next_action
from sockd.images.chunks.layout import Image, Reference
from sockd.images.chunks.root_table import RootEvent, RootTable

A, B = Image("t", "a"), Image("t", "b")
FIRST = RootTable.first("r1", 0.0)
RETIRED = FIRST.rotated("r2", 10.0)
EXPIRED = RETIRED.after("r1", RootEvent.EXPIRE, 20.0)
DELETED = EXPIRED.after("r1", RootEvent.DELETE, 30.0)


def decided(held: Holdings, *, now_s: float = 25.0, failed: frozenset[Image] = frozenset()) -> Action:
    return next_action(held, now_s=now_s, grace_s=100.0, failed=failed)


def used(*images: Image, root: str = "r1", worker: str = "w") -> frozenset[Reference]:
    return frozenset(Reference(worker, root, image) for image in images)


def test_an_active_root_alone_needs_nothing() -> None:
    assert decided(Holdings(FIRST, used(A), {"r1": frozenset({A})})) == Wait()


def test_images_that_are_used_are_copied_one_by_one() -> None:
    manifests = {"r1": frozenset({A, B})}
    assert decided(Holdings(RETIRED, used(A, B), manifests)) == Migrate(A, "r1", "r2")
    assert decided(Holdings(RETIRED, used(A, B), {**manifests, "r2": frozenset({A})})) == Migrate(B, "r1", "r2")
    assert decided(Holdings(RETIRED, used(B), manifests)) == Migrate(B, "r1", "r2"), "what nobody uses stays behind"


def test_a_root_that_is_used_does_not_expire() -> None:
    both = {"r1": frozenset({A}), "r2": frozenset({A})}
    action = decided(Holdings(RETIRED, used(A), both))
    assert isinstance(action, Wait) and action.reasons == ("r1 is retired and has 1 images that are used by w",)
    assert isinstance(decided(Holdings(RETIRED, used(A))), Wait), "an upload that has no manifest yet"
    assert decided(Holdings(RETIRED, used(A, root="r2"), both)) == Expire("r1")


def test_an_image_that_cannot_be_copied_keeps_its_root_and_no_other() -> None:
    manifests = {"r1": frozenset({A, B})}
    assert decided(Holdings(RETIRED, used(A, B), manifests), failed=frozenset({A})) == Migrate(B, "r1", "r2")
    action = decided(Holdings(RETIRED, used(A), manifests), failed=frozenset({A}))
    assert isinstance(action, Wait) and "t/a could not be copied from r1" in action.reasons


def test_an_expired_root_is_deleted_after_its_time() -> None:
    action = decided(Holdings(EXPIRED), now_s=119.0)
    assert isinstance(action, Wait) and action.reasons == ("r1 has expired and is deleted in 1 s",)
    assert decided(Holdings(EXPIRED), now_s=120.0) == Delete("r1")


def test_an_alarm_stops_every_deletion_and_nothing_else() -> None:
    alarms = {"r1": frozenset({"w"})}
    action = decided(Holdings(EXPIRED, alarms=alarms), now_s=1e9)
    assert isinstance(action, Wait) and action.reasons == ("nothing is deleted: w has read an expired root",)
    assert isinstance(decided(Holdings(DELETED, alarms=alarms, leftovers=frozenset({"r1"}))), Wait)
    again = EXPIRED.rotated("r3", 30.0)
    assert decided(Holdings(again, alarms=alarms)) == Expire("r2")


def test_what_came_into_a_deleted_root_is_deleted() -> None:
    assert decided(Holdings(DELETED, leftovers=frozenset({"r1"}))) == Delete("r1")
    assert decided(Holdings(DELETED)) == Wait()
