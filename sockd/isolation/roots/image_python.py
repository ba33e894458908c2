"""The Python of a container image: what it said of itself, and what follows for Zygotes and functions. Plain data; pure.

All of it is a claim of foreign code. It decides only how the functions of this one image run."""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec

from sockd.isolation.roots import environment
from sockd.isolation.roots.interpreter import OLDEST, ImageImports, Interpreter

SCHEME = "image"
MOST_PATHS = 200


class Facts(msgspec.Struct, frozen=True):
    """What `python_probe` answers of the interpreter."""

    executable: str
    version: tuple[int, int, int]
    cache_tag: str
    implementation: str
    is_final: bool
    has_gil: bool
    customized: list[str]
    """Modules that `site` has imported, and that may have done something."""
    path: list[str]
    """sys.path without the directory of the program."""
    roots: list[str]
    """The directories of `path` that are not the standard library's."""
    pth: list[str]
    """The directories of `roots` whose .pth files `site` has run."""
    sitecustomize: str = ""
    """The file of a sitecustomize that `site` has imported, and that does nothing, as Debian's without apport; empty: none."""
    has_client: bool = True
    """Whether it has a module awslambdaric."""

    def why_not(self) -> str:
        """Why it cannot be a Zygote; empty: it can."""
        version = ".".join(map(str, self.version))
        if self.implementation != "cpython" or not self.is_final or not self.has_gil:
            return f"its Python is {self.implementation} {version}, and not a release of CPython with its lock"
        if self.version[:2] < OLDEST:
            return f"its Python is {version}; Zygotes are CPython 3.{OLDEST[1]} or later"
        if self.customized:
            return f"its Python imports {self.customized[0]} at each start"
        paths = (self.executable, *self.path)
        if len(paths) > MOST_PATHS or not all(PurePosixPath(each).is_absolute() for each in paths):
            return "its Python does not say where its modules are"
        return ""


class ImagePython(msgspec.Struct, frozen=True, kw_only=True):
    """The Python that runs the functions of an image which have one command, directory and environment. Kept as JSON."""

    id: str
    """The id of the image's lineages, which also stands for its packages in closures: `image:` and digits."""
    facts: Facts | None = None
    """None: it was not asked, or did not answer."""
    directory: str = "/"
    """Where the functions run."""
    task_root: str = "/"
    """Where their code is."""
    variables: dict[str, str] = {}
    """The image's environment."""
    reason: str = ""
    """Why its functions are not served by Zygotes; empty: they are."""

    def interpreter(self) -> Interpreter:
        """As a farm needs it."""
        assert self.facts is not None
        facts = self.facts
        return Interpreter(
            self.id,
            facts.executable,
            facts.version,
            facts.cache_tag,
            variables={**environment.SINGLE_THREADED, **self.variables},
            imports=self.imports(),
        )

    def imports(self) -> ImageImports:
        """As Zygotes and functions need it."""
        assert self.facts is not None
        # As of `python -m awslambdaric`: the working directory, before which the runtime puts the code.
        path = (self.task_root, self.directory, *self.facts.path)
        return ImageImports(
            *(self.id, path, tuple(self.facts.roots), tuple(self.facts.pth), self.directory),
            variables=self.variables,
            sitecustomize=self.facts.sitecustomize,
        )
