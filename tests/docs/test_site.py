"""MkDocs builds the documentation site without a warning."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the extra `site` is not installed")

from mkdocs.exceptions import Abort

from docs import site


def test_the_site_has_every_page(tmp_path: Path) -> None:
    site.build(tmp_path)
    names = [path.relative_to(site.ROOT) for path in [*site.ROOT.glob("*.md"), *(site.ROOT / "docs").rglob("*.md")]]
    expected = {
        str(name.with_name("index.md" if name.name == "README.md" else name.name).with_suffix(".html"))
        for name in names
    }
    assert expected <= {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.html")}


@pytest.mark.parametrize("link", ["[missing](nowhere.md)", "[missing](GLOSSARY.md#nowhere)"])
def test_a_broken_link_fails_the_build(link: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in site.PAGES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(site.ROOT / name)
    (tmp_path / "README.md").unlink()
    shutil.copy(site.ROOT / "README.md", tmp_path)
    with (tmp_path / "README.md").open("a") as page:
        page.write(f"\n{link}\n")
    with caplog.at_level(logging.WARNING, "mkdocs"), pytest.raises(Abort):
        site.build(tmp_path / "site", tmp_path)
    assert len(caplog.records) == 1
    assert "nowhere" in caplog.text
