"""Templates to HTML: Jinja with everything printable and escaped, loaded and compiled with the first page, in a thread.

Owns the environment, whose rules hold for every value in every template, so that no template can forget them. A template is
rendered in steps of at most a millisecond, between which the loop serves others.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sockd.http.page import words

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
COMPILED = Path(__file__).parent / "__pycache__"
"""Where templates lie as bytecode, next to ours: a process that can write there has the worker's rights already."""
STEP_S = 0.001


class Rendering:
    """`render` loads what it needs; before that, nothing is imported."""

    def __init__(self) -> None:
        self._environment: Environment | None = None
        self._loading = asyncio.Lock()

    async def render(self, template: str, values: Mapping[str, Any]) -> str:
        """The HTML of `templates/<template>`."""
        environment = self._environment or await self._load()
        pieces: list[str] = []
        since = time.monotonic()
        for piece in environment.get_template(template).generate(values):
            pieces.append(piece)
            if time.monotonic() - since > STEP_S:
                await asyncio.sleep(0)
                since = time.monotonic()
        return "".join(pieces)

    async def _load(self) -> Environment:
        async with self._loading:
            if self._environment is None:
                self._environment = await asyncio.to_thread(load)
            return self._environment


def load() -> Environment:
    """The environment with all templates compiled. Takes some 50 ms, most of them for the import of Jinja; twice that for
    the first worker after an installation, and where bytecode cannot be kept."""
    from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        loader=FileSystemLoader(TEMPLATES),
        auto_reload=False,
        bytecode_cache=FileSystemBytecodeCache(str(COMPILED)) if os.access(COMPILED, os.W_OK) else None,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in environment.list_templates():
        environment.get_template(name)
    return environment


def shown(value: Any) -> Any:
    """A value as it goes into a page, before it is escaped; HTML is what templates have made themselves."""
    return words.printable(value) if type(value) is str else value
