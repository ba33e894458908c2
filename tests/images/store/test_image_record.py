"""What is kept of an image beside its files."""

from __future__ import annotations

import msgspec

from sockd.images.registry.image import ImageConfig
from sockd.images.store.image_record import ImageRecord, digest_of, stored_name
from sockd.images.store.image_upload import FORM

DIGEST = "sha256:" + 64 * "7"


def test_an_image_keeps_the_form_that_its_file_system_was_made_in() -> None:
    record = ImageRecord(digest=DIGEST, reference="r", config=ImageConfig(), size_bytes=1, layers=1, imported_at=0.0)
    kept = msgspec.to_builtins(record)
    del kept["form"]  # as records were written once
    older = msgspec.convert(kept, ImageRecord)
    assert older.stored_name == f"{DIGEST}-2" != stored_name(DIGEST, FORM)
    assert digest_of(older.stored_name) == digest_of(stored_name(DIGEST, FORM)) == DIGEST
