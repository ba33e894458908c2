"""A start of a function in an interpreter of its own, recorded or tried, with distributions that are written to a directory."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sockd_zygote.handlers import entry_module

REPOSITORY = Path(__file__).resolve().parents[3]
Files = Mapping[str, str]

BEGIN = """
import sys
repository, code, store, entry = sys.argv[1:5]
keys = sys.argv[5:]
roots = [(f"{store}/{key}/", key) for key in keys]
sys.path[:0] = [code, *(f"{store}/{key}" for key in keys)]
sys.path.append(repository)
"""
RECORD = (
    BEGIN
    + """
from sockd_zygote.handlers.entry_module import load_file
from sockd_zygote.forks.module_kinds import Kinds
from sockd_zygote.top_levels import interpreter, process
from sockd_zygote.top_levels.top_level import Recorder
del interpreter.OF_THE_PROCESS["files in /tmp"]  # where other tests write meanwhile
process.contents_of_tmp = dict
failure = ""
kinds = Kinds(roots)
recorder = Recorder(kinds, entry)
with recorder:
    try:
        load_file(entry, code, f"{entry}.py")
    except BaseException as error:
        failure = repr(error)
steps = recorder.steps()
from sockd_zygote.top_levels.certainty import mark
mark(steps, recorder.finished, recorder.changed_variables, kinds)
sys.stdout = sys.__stdout__
print({"steps": steps, "failure": failure})
"""
)


@dataclass(frozen=True)
class Step:
    """One step of a recording: its modules, with the distribution and the seconds of each."""

    name: str
    key: str
    outer: int
    before: str
    variables: tuple[str, ...]
    writes: tuple[str, ...]
    modules: tuple[str, ...]
    keys: tuple[str, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Recording:
    steps: tuple[Step, ...]
    failure: str

    @property
    def names(self) -> list[str]:
        return [step.name for step in self.steps]

    def step(self, name: str) -> Step:
        (found,) = [step for step in self.steps if step.name == name]
        return found


class Starts:
    """A directory with a function's code and a store of distributions; each start is a process of its own."""

    def __init__(self, directory: Path) -> None:
        self.code, self.store = directory / "code", directory / "store"
        self.code.mkdir()
        self.store.mkdir()
        self.keys: list[str] = []

    def install(self, key: str, files: Files) -> None:
        """Add a distribution. Args: files: text by path below its directory."""
        write(self.store / key, files)
        self.keys.append(key)

    def record(
        self, code: str, files: Files | None = None, *, loaded: Sequence[str] = (), **variables: str
    ) -> Recording:
        """Record the top level of f.py.

        Args:
            files: further files of the code.
            loaded: modules of the standard library that are imported before; recorded imports take ten times as long.
            variables: of the environment."""
        self.write_code(code, files)
        reported = self.run("".join(f"import {name}\n" for name in loaded) + RECORD, **variables)
        steps = [step_of(step) for step in reported["steps"]]
        return Recording(tuple(steps), reported["failure"])

    def write_code(self, code: str, files: Files | None = None) -> None:
        """Write f.py with its bytecode, as a deploy does, and other files of the function."""
        write(self.code, {"f.py": code, **(files or {})})
        path = Path(entry_module.cached_path(str(self.code), "f"))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(entry_module.bytecode(code, f"{self.code}/f.py"))

    def run(self, program: str, *arguments: str, **variables: str) -> Any:
        """The literal that a program prints last, started as `RECORD` is. Raises: AssertionError with what it says."""
        places = [str(REPOSITORY), str(self.code), str(self.store)]
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", program, *places, "f", *self.keys, *arguments],
            env={"PATH": os.environ["PATH"], **variables},
            cwd=self.code,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return ast.literal_eval(done.stdout.splitlines()[-1])


def step_of(reported: dict[str, Any]) -> Step:
    keys, names, seconds = zip(*reported["modules"], strict=True)
    own = reported["before"], tuple(reported["variables"])
    return Step(
        reported["name"], reported["key"], reported["outer"], *own, tuple(reported["writes"]), names, keys, seconds
    )


def write(directory: Path, files: Files) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
