"""What is the same for everybody: others' scripts as they were published, and colours that everybody can read."""

from __future__ import annotations

import hashlib
import re
from itertools import product

import pytest

from sockd.http.page.assets import STATIC

STYLE = (STATIC / "page.css").read_text()
GROUNDS = ("ground", "panel")
TEXTS = ("text", "quiet", "link", "bad")
DRAWN = ("queue", "setup", "init", "exec", "script", "rpc", "reads", "bad")


def test_others_scripts_are_those_that_the_note_names() -> None:
    rows = re.findall(r"^\| `(\S+)` \|.*\| (\w{64}) \|$", (STATIC / "VENDORED.md").read_text(), re.MULTILINE)
    assert len(rows) == 2
    for name, digest in rows:
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest
    assert {name for name, _ in rows} == {path.name for path in STATIC.glob("htmx*")}


def themes() -> dict[str, dict[str, str]]:
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    read = [dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in (light, dark)]
    return {"light": read[0], "dark": {**read[0], **read[1]}}


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour in sRGB (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_and_drawings_stand_out_from_what_they_stand_on(theme: str) -> None:
    colours = themes()[theme]
    pairs = [*product(TEXTS, GROUNDS), ("cold-text", "cold"), ("text", "chip"), ("quiet", "chip")]
    weak = [(text, ground) for text, ground in pairs if contrast(colours[text], colours[ground]) < 4.5]
    weak += [
        (drawn, ground)
        for drawn, ground in product(DRAWN, ("panel", "track"))
        if contrast(colours[drawn], colours[ground]) < 3
    ]
    assert weak == []
