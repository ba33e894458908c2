"""Numbers as people read them."""

from __future__ import annotations

from sockd.spelling import size


def test_sizes() -> None:
    assert [size(n) for n in (0, 1023, 2048, 5 << 20, 3 << 30)] == ["0 B", "1023 B", "2.0 KB", "5.0 MB", "3.0 GB"]
