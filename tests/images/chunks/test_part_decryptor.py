"""Parts decrypt as from the whole chunk, whatever was decrypted before them, and however many keys there are."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from sockd.images.chunks.chunk import encrypt
from sockd.images.chunks.part_decryptor import PartDecryptor

SALT = bytes(32)
CHUNKS = 5
PLAINS = [random.Random(number).randbytes(300) for number in range(CHUNKS)]
ENCRYPTED = [encrypt(plain, SALT) for plain in PLAINS]
PARTS = st.tuples(st.integers(0, CHUNKS - 1), st.integers(0, 300), st.integers(0, 300))


@given(st.lists(PARTS, max_size=30), st.integers(1, CHUNKS))
def test_parts_in_any_order_decrypt_with_any_number_of_kept_contexts(
    parts: list[tuple[int, int, int]], most: int
) -> None:
    decryptor = PartDecryptor(most)
    for number, offset, size in parts:
        chunk, ciphertext = ENCRYPTED[number]
        plain = decryptor.decrypt(ciphertext[offset : offset + size], chunk.key, offset)
        assert plain == PLAINS[number][offset : offset + size]
        assert len(decryptor) <= most
