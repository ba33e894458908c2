"""The functions of the sharing cases, as `catalogue.toml` lists them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FINGERPRINT = (HERE / "fingerprint.py").read_text()
HANDLER = """import fingerprint
{imports}
def f(event): return fingerprint.take({answer!r}, event.get("also", ()))
"""


@dataclass(frozen=True)
class Entry:
    """One function: what it requires, what it imports, and what it is asked."""

    name: str
    requirements: tuple[str, ...]
    imports: tuple[str, ...]
    answer: str = "None"
    env: dict[str, str] = field(default_factory=dict)

    def files(self) -> dict[str, str]:
        """Its source directory."""
        code = HANDLER.format(imports="\n".join(f"import {name}" for name in self.imports), answer=self.answer)
        files = {"f.py": code, "fingerprint.py": FINGERPRINT, "requirements.txt": "\n".join(self.requirements)}
        if self.env:
            lines = (f'{name} = "{value}"' for name, value in self.env.items())
            files["sockd.toml"] = "[env]\n" + "\n".join(lines) + "\n"
        return files


def accepted() -> frozenset[str]:
    """Differences that are as they should be; the file says why."""
    return frozenset(read()["accepted"])


def load() -> list[Entry]:
    """All of them; names are valid names of functions."""
    table = read()
    alone = [
        Entry(f"alone-{_slug(name)}", (name,), tuple((imports or name).split()))
        for name, imports in table["alone"].items()
    ]
    together = [
        Entry(
            f"together-{number}",
            tuple(each["requirements"].split()),
            tuple(each["imports"].split()),
            each.get("answer", "None"),
            each.get("env", {}),
        )
        for number, each in enumerate(table["together"], 1)
    ]
    return [*alone, *together]


def read() -> dict[str, Any]:
    return tomllib.loads((HERE / "catalogue.toml").read_text())


def _slug(name: str) -> str:
    return name.lower().replace(".", "-").replace("_", "-")
