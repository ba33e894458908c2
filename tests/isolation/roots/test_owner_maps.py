"""Id maps for owners of an image's files: what they map, and how many are kept."""

from __future__ import annotations

import itertools

import pytest

from sockd.isolation.roots.owner_maps import END_OF_IDS, MOST_MAPS, ROOT, Owner, OwnerMaps, owner_is
from tests.support.ledger import Ledger

UID = 300_000_001


@pytest.mark.root
def test_a_user_namespace_is_kept_for_each_of_the_last_uids() -> None:
    maps = OwnerMaps()
    ledger = Ledger()
    first = maps.of(UID, ROOT)
    assert maps.of(UID, ROOT) == first != maps.of(UID, Owner(1000, 1001))
    for number in range(2 * MOST_MAPS):
        maps.of(UID + number, ROOT)
    assert len(ledger.survivors()) == MOST_MAPS
    maps.close()
    maps.close()
    ledger.check()


@pytest.mark.parametrize("owner", [0, 1, 1000, UID - 1, UID, UID + 1, END_OF_IDS - 1])
def test_an_owner_is_mapped_to_the_sandbox_and_every_other_id_to_itself_once(owner: int) -> None:
    (inside, outside, count), *others = owner_is(owner, UID)
    assert (inside, outside, count) == (owner, UID, 1)
    assert all(first == shown for first, shown, _ in others)
    ranges = sorted((first, first + count) for first, _, count in others)
    missing = {0, *(after for _, after in ranges)} - {first for first, _ in ranges} - {END_OF_IDS}
    assert missing <= {owner, UID} and not any(first <= each < end for first, end in ranges for each in (owner, UID))
    assert all(before[1] <= after[0] <= before[1] + 2 for before, after in itertools.pairwise(ranges))
