"""An interpreter that runs functions: the worker's own, another Python of the host, or that of an image.

Plain data, found out once, by asking the interpreter itself. Owns nothing and runs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from sockd.isolation.roots import base as bases
from sockd.isolation.roots import environment
from sockd.isolation.roots.program import OWN

OLDEST = (3, 11)
"""The first CPython that the Zygote's C extension is for (its limited API)."""


@dataclass(frozen=True, slots=True)
class ImageImports:
    """How the functions of an image import."""

    key: str
    """Stands for all that is in the image, in closures."""
    path: tuple[str, ...]
    """All of sys.path."""
    roots: tuple[str, ...]
    """The directories of `path` that are neither the standard library's nor those of code: their modules are imported
    ahead."""
    pth: tuple[str, ...]
    """The directories of `roots` with .pth files."""
    directory: str
    """Where they run."""
    variables: Mapping[str, str]
    """The image's."""
    sitecustomize: str = ""
    """The file of one that `site` imports, which does nothing; empty: none."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What a farm needs to exec it, and a deploy to make files for it."""

    id: str
    """The id of the interpreter's lineages; `OWN` for the worker's."""
    executable: str
    """Its path in the base; of one of the host, there, too."""
    version: tuple[int, int, int]
    cache_tag: str
    """As in the names of `__pycache__` files."""
    prefix: str = ""
    """For an interpreter of the host, the parent directory of its standard library, which the base needs besides /usr."""
    variables: Mapping[str, str] = field(default_factory=lambda: environment.OF_EXEC)
    """Environment of its exec."""

    imports: ImageImports | None = None
    """None: it is one of the host."""

    @property
    def words(self) -> str:
        """Its version, for people."""
        return ".".join(map(str, self.version))

    @property
    def short(self) -> str:
        """As in sockd.toml: "3.13"."""
        return f"{self.version[0]}.{self.version[1]}"

    @property
    def tag(self) -> str:
        """What distinguishes packages that are installed for it; empty for the worker's own."""
        return "" if self.id == OWN else self.short

    @property
    def marker_variables(self) -> dict[str, str]:
        """Return the variables of environment markers (PEP 508) that differ between interpreters of one host."""
        return {"python_version": self.short, "python_full_version": self.words, "implementation_version": self.words}

    def command(self) -> list[str]:
        """Return the command of a root Zygote, without the arguments that farm init adds.

        Not -I: multiprocessing and loky start their processes with this interpreter's options, and -I ignores PYTHONPATH."""
        return [self.executable, *ROOT_OPTIONS, f"/{bases.ZYGOTE}"]


ROOT_OPTIONS = ("-s", "-S")
OWN_PYTHON = Interpreter(
    OWN,
    str(getattr(sys, "_base_executable", None) or sys.executable),
    sys.version_info[:3],
    str(sys.implementation.cache_tag),
    sys.base_prefix,
)
"""The one under the virtual environment, if the worker runs in one."""


def cache_tag_of(tag: str) -> str:
    """The cache tag of the interpreter that `Interpreter.tag` names."""
    return f"cpython-{tag.replace('.', '')}" if tag else OWN_PYTHON.cache_tag
