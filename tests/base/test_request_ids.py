"""Request ids are UUIDs like any others."""

from __future__ import annotations

import uuid

from sockd.base.request_ids import new_request_id, request_id_text


def test_ids_are_random_uuids_and_no_two_are_the_same() -> None:
    drawn = [new_request_id() for _ in range(1000)]  # some pages of them
    assert len(set(drawn)) == 1000
    assert {uuid.UUID(bytes=request_id).version for request_id in drawn} == {4}
    assert {uuid.UUID(bytes=request_id).variant for request_id in drawn} == {uuid.RFC_4122}


def test_their_text_is_the_usual_one() -> None:
    request_id = new_request_id()
    assert request_id_text(request_id) == str(uuid.UUID(bytes=request_id))
