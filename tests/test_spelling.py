"""Numbers and settings as people read them."""

from __future__ import annotations

from sockd.base.spelling import counted, network, size, span


def test_sizes() -> None:
    assert [size(n) for n in (0, 1023, 2048, 5 << 20, 3 << 30)] == ["0 B", "1023 B", "2.0 KB", "5.0 MB", "3.0 GB"]


def test_numbers_of_things() -> None:
    assert [counted(count, "layer") for count in (0, 1, 2)] == ["0 layers", "1 layer", "2 layers"]


def test_spans() -> None:
    assert [span(s) for s in (0.4, 119, 300, 7200, 86400 * 3)] == ["0 s", "119 s", "5 minutes", "2 hours", "3 days"]


def test_a_network_is_shown_with_its_rules_if_any_version_has_them() -> None:
    assert network("host", ["10.0.0.1"]) == "host" and network("private", None) == "private: internet"
    assert network("host", [], has_private=True) == "host; of other versions private: nothing"
