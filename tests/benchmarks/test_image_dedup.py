"""The part of `images` that measures what images have in common: on images of a few files, made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.results import Result
from benchmarks.harness.run import Run
from benchmarks.image_parts import dedup, oci_layout
from benchmarks.image_parts.variants import Variant
from tests.support.images.image_files import reader_of


def an_image(scratch: Path, name: str, text: str) -> Variant:
    top = scratch / "files"
    (top / "bin").mkdir(parents=True, exist_ok=True)
    (top / "bin" / "large").write_bytes(b"x" * (2 << 20))
    (top / "bin" / "link").unlink(missing_ok=True)
    (top / "bin" / "link").symlink_to("large")
    base = oci_layout.write_layer(scratch / f"base-{name}", oci_layout.files_below(top, "usr"), mtime_s=1)
    code = oci_layout.write_text_layer(scratch / f"code-{name}", {"app/handler.py": text}, mtime_s=2)
    oci_layout.write_layout(scratch / name, (base, code))
    return Variant(name, (base, code), scratch / name)


def test_an_edit_is_compared_with_the_first_image(tmp_path: Path) -> None:
    found: dict[str, dict[str, list[bytes]]] = {}
    result = Result("images")
    for name in ("A", "E", "B", "G"):
        image = an_image(tmp_path, name, f"# {name}")
        facts = dedup.flatten(image, tmp_path / "ours", result)
        reader = reader_of((tmp_path / "ours").read_bytes())
        assert reader.read_file("app/handler.py") == f"# {name}".encode()
        assert reader.read_file("usr/bin/link", limit_bytes=2 << 20) == b"x" * (2 << 20)
        if name == "A":
            dedup.check_again(image, tmp_path, facts, result)
        dedup.add(found, dedup.OURS, name, dedup.digests(tmp_path / "ours", dedup.CHUNK))
        dedup.add(found, dedup.FLOOR, name, dedup.digests(tmp_path / "ours", dedup.BLOCK))
    dedup.report(found, result)
    # The metadata, four of the large file, the code. The code is of one size: the metadata is the same, too.
    assert [len(pieces) for pieces in found[dedup.OURS].values()] == [6] * 4
    assert result.row("changed handler", "new pieces, sockd").p50 == pytest.approx(100 / 6)
    assert {aim.name: aim.holds for aim in result.aims}["dedup: chunks that the same image has anew"]


def test_other_writers_get_the_same_files(tmp_path: Path) -> None:
    image = an_image(tmp_path, "A", "# A")
    with dedup.unpacked(image, tmp_path) as top:
        assert (Path(top) / "app" / "handler.py").read_text() == "# A"
        assert (Path(top) / "usr" / "bin" / "link").readlink() == Path("large")
    for name, write in dedup.stock_writers(Run(quick=False)).items():
        write(image, tmp_path, tmp_path / name)
        assert dedup.digests(tmp_path / name, dedup.CHUNK)
