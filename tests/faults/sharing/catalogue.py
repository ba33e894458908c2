"""The functions of the sharing cases, as `catalogue.toml` lists them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HANDLER = """import os, sys
from sockd_zygote.top_levels.trial import BALLAST, ODD, SMALL

STEPS = os.urandom(1)[0] % 16  # given to no package, and no loop: either would end the sharing
EVERY_SIZE = " ".join("x" * size for size in range(2, SMALL - 64, 16)) + " "
SHAKEN = [("xy " * (BALLAST * STEPS)).split(), (EVERY_SIZE * STEPS).split(), b"x" * (ODD * STEPS)]
{imports}

REGISTRIES = ("copyreg.dispatch_table", "logging", "loggers", "sys.meta_path", "warnings.filters")

def f(event):
    from sockd_zygote.forks import hygiene
    from sockd_zygote.forks.module_kinds import OWN, STANDARD, Kinds
    from sockd_zygote.top_levels import fingerprint, interpreter

    for name in event.get("also", ()):
        try:
            __import__(name)
        except ImportError:
            continue  # a name that a C extension has given itself (scipy's _csparsetools)
    pids = {{os.getpid(), *hygiene.pids, *event.get("pids", ())}}
    kinds, loaded = Kinds(), dict(sys.modules)
    look = fingerprint.Fingerprint(kinds, pids)
    modules = {{}}
    for name, module in look.modules(loaded).items():
        if kinds.key_of(name, module) not in (OWN, STANDARD):
            names = look.names_of(name, module)
            modules[name] = {{key: fingerprint.digest(repr(value)) for key, value in names.items()}}
    registries = {{name: value for name, value in interpreter.settings().items() if name in REGISTRIES}}
    begun = [name for name in sys.modules if name in modules]
    return {{"answer": answer(), "modules": modules, "begun": begun, "registries": registries, "pids": sorted(pids)}}

def answer():
    try:
        return repr({answer})
    except BaseException as error:
        return f"{{type(error).__name__}}: {{error}}"
"""
"""The function's answer is evaluated in it, and its packages' modules are compared by the product's own fingerprint. `SHAKEN`
does as `trial.shift_memory`, and moves what is imported after it to other addresses: orders of sets of objects without a
`__hash__` are noise, and so are process ids."""


@dataclass(frozen=True)
class Entry:
    """One function: what it requires, what it imports, and what it is asked."""

    name: str
    requirements: tuple[str, ...]
    imports: tuple[str, ...]
    answer: str = "None"
    env: dict[str, str] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)
    """Files beside its code, by path."""

    def files(self) -> dict[str, str]:
        """Its source directory."""
        code = HANDLER.format(imports="\n".join(f"import {name}" for name in self.imports), answer=self.answer)
        files = {"f.py": code, "requirements.txt": "\n".join(self.requirements), **self.beside}
        if self.env:
            lines = (f'{name} = "{value}"' for name, value in self.env.items())
            files["sockd.toml"] = "[env]\n" + "\n".join(lines) + "\n"
        return files


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
            each.get("files", {}),
        )
        for number, each in enumerate(table["together"], 1)
    ]
    return [*alone, *together]


def read() -> dict[str, Any]:
    return tomllib.loads((HERE / "catalogue.toml").read_text())


def _slug(name: str) -> str:
    return name.lower().replace(".", "-").replace("_", "-")
