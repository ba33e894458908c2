"""The Markdown files of the repository: links lead somewhere, and decision records and experiments have their form."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<!\!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?\)|\!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
HEADING = re.compile(r"^#{1,6} +(.+?)\s*#*$", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")
TEXTS = (".md", ".py", ".c", ".h", ".rs", ".js", ".css", ".html", ".toml", ".cfg", ".service")
UNKNOWN_PAGES = re.compile(r"\bDESIGN,? (?:section )?\d|\bconventions? \d|\bDECISIONS\.md\b", re.IGNORECASE)
"""Names of pages that are not in the repository."""
RECORD = re.compile(r"\bdecisions? \d|\bADR[ -]?(\d+)", re.IGNORECASE)
NAMED = re.compile(
    r"(?<![\w/.-])(?:tests|docs|sockd|zygote|initscripts|benchmarks|storage_lib)/[\w./-]+\.(?:py|md|c|h|js|css)\b"
)
"""Files of the repository as texts name them."""
MADE_UP = {"tests/nowhere.py", "docs/adr/NNNN-title.md"}
MAX_LINES = 40
STATUS = re.compile(r"- Status: (?:accepted|proposed|rejected|superseded by \[\d{4}\]\(\d{4}-[a-z0-9-]+\.md\).*)")
DATE = re.compile(r"- Date: \d{4}-\d\d-\d\d")
ADR, EXPERIMENTS = ROOT / "docs/adr", ROOT / "docs/experiments"


def tracked() -> list[Path]:
    """The files of the repository, new ones among them."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def pages() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".md"]


def records(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.md") if path.name != "README.md")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    for heading in HEADING.findall(FENCE.sub("", path.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower().replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
        if found[slug]:
            found[f"{slug}-{found[slug]}"] = 0
    return frozenset(found)


def broken(path: Path) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    for plain, image in LINK.findall(CODE.sub("", FENCE.sub("", path.read_text()))):
        link = plain or image
        if ELSEWHERE.match(link):
            continue
        file, _, anchor = unquote(link).partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists():
            yield f"{link}: there is no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{link}: {target.name} has no such heading"


@pytest.mark.parametrize("path", pages(), ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    assert list(broken(path)) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# One `two` (three)\n[a](b.md) [c](#one-two-three) [d](#four) `[e](f.md)`\n```\n[g](h.md)\n```\n")
    assert list(broken(page)) == ["b.md: there is no such file", "#four: a.md has no such heading"]


def test_no_file_refers_to_a_page_that_is_not_in_the_repository() -> None:
    files = [path for path in tracked() if path.suffix in TEXTS and path != Path(__file__)]
    found = {
        f"{name_of(path)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNKNOWN_PAGES.search(line)
    }
    assert found == set()


def test_files_that_texts_name_are_there() -> None:
    found = {
        f"{name_of(path)}: {name}"
        for path in tracked()
        if path.suffix in TEXTS
        for name in NAMED.findall(path.read_text())
        if not (ROOT / name).exists() and name not in MADE_UP
    }
    assert found == set()


def test_references_to_decisions_name_a_file() -> None:
    files = [path for path in tracked() if path.suffix in TEXTS and path != Path(__file__)]
    found = {
        f"{name_of(path)}: {match[0]}" for path in files for match in RECORD.finditer(path.read_text()) if not match[1]
    }
    assert found == set(), "write docs/adr/NNNN-title.md, or ADR NNNN"


@pytest.mark.parametrize("folder", [ADR, EXPERIMENTS], ids=name_of)
def test_records_are_numbered_and_listed(folder: Path) -> None:
    names = [path.name for path in records(folder)]
    assert [name[:5] for name in names] == [f"{number:04}-" for number in range(1, len(names) + 1)]
    assert all(re.fullmatch(r"\d{4}(-[a-z0-9]+)+\.md", name) for name in names)
    index = (folder / "README.md").read_text()
    assert [name for name in names if f"({name})" not in index] == []


@pytest.mark.parametrize("path", records(ADR), ids=name_of)
def test_a_decision_record_has_its_form(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= MAX_LINES
    assert re.fullmatch(rf"# {int(path.name[:4])}\. .+", lines[0])
    assert STATUS.fullmatch(lines[2]) and DATE.fullmatch(lines[3])
    assert [line for line in lines if line.startswith("## ")] == ["## Context", "## Decision", "## Consequences"]


@pytest.mark.parametrize("path", records(EXPERIMENTS), ids=name_of)
def test_an_experiment_has_its_form(path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()
    assert re.fullmatch(rf"# {int(path.name[:4])}\. .+", lines[0]) and DATE.fullmatch(lines[2])
    assert re.match(r"- Decision: \[.+\]\(\.\./adr/\d{4}-[a-z0-9-]+\.md\)", lines[3])
    headings = [line for line in lines if line.startswith("## ")]
    assert headings[:2] == ["## Question", "## Method"] and headings[-1] == "## What did not help"
    assert re.search(r"^\|(?:-+\|)+$", text, re.MULTILINE), "it has a table"
