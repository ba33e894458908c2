"""Build the documentation site with MkDocs: `python -m docs.site DIRECTORY`, or `make site`.

MkDocs reads one directory, so `build` links the repository's pages into a temporary one at their own paths. Relative links then
work on the site as they do in the repository. A link to a page or heading that does not exist fails the build.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

from mkdocs.commands.build import build as run_mkdocs
from mkdocs.config import load_config

ROOT = Path(__file__).parents[1]
PAGES = (*(path.name for path in ROOT.glob("*.md")), "docs", "storage_lib/README.md")


def build(site: Path, root: Path = ROOT) -> None:
    """Write the site.

    Args:
        site: the directory to write. What is in it is removed.
        root: where PAGES are.

    Raises: mkdocs.exceptions.Abort after a warning, such as a broken link; the log has the warnings."""
    with tempfile.TemporaryDirectory() as pages:
        for name in PAGES:
            link = Path(pages, name)
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(root / name)
        run_mkdocs(load_config(str(ROOT / "docs/mkdocs.yml"), docs_dir=pages, site_dir=str(site), strict=True))


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s: %(message)s")
    build(Path(sys.argv[1]).resolve())
