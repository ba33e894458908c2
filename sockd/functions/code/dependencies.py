"""The dependencies that a function's code declares: requirements.txt, else pylock.toml, uv.lock, pyproject.toml, or its
entry file (PEP 723).

The first of these that declares dependencies is used, the others are ignored. Reads text, runs no code. What Python they
require is checked whichever is used: it says of the code that it does not run on another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

import sockd
from sockd.base import toml
from sockd.base.errors import BadArchive, ResolveFailed
from sockd.functions.code import lock_files, other_tools, requirement_files
from sockd.functions.code.code_store import read_bytes, read_text
from sockd.isolation.roots.interpreter import OWN_PYTHON, Interpreter
from sockd.starts.packages import requirements

REQUIREMENTS = "requirements.txt"
PYPROJECT = "pyproject.toml"
STAND_IN = "sockd.py"
"""In the code of a decorated function: its project may depend on sockd, which its sandbox does not need."""
MAX_BYTES = 256 * 1024
"""The most bytes of requirements.txt and of pyproject.toml."""
MAX_LOCK_BYTES = 4 << 20
"""The most bytes of a lock file."""
MAX_SOURCE_BYTES = 4 << 20
"""The most bytes of an entry file; a longer one has no block."""
MAX_BLOCK_BYTES = 64 * 1024
MAX_DEPENDENCIES = 5000
UV_PROJECT = ("package", "managed", "default-groups", "required-version")
"""Settings of uv's that do not change what is installed."""
_BEGIN, _END = "# /// script", "# ///"


class Dependencies(NamedTuple):
    """What a function's code asks for."""

    source: str = ""
    """The file that declares them; empty: none does."""
    text: str | None = None
    """The dependencies that have to be installed, as lines of a requirements.txt; None if nothing was declared, or the code
    brings all."""
    notes: tuple[str, ...] = ()
    """What is ignored, for the person who deploys."""
    constraints: str = ""
    """Versions that hold for what is installed, as lines of a requirements.txt."""
    is_complete: bool = False
    """Whether the lines are all that is to be installed, with exact versions: they are from a lock file."""

    @property
    def asks_for(self) -> tuple[str | None, str, bool]:
        """What decides about the packages."""
        return self.text, self.constraints, self.is_complete

    @property
    def line_words(self) -> str:
        """How an error names the place of one, before its number."""
        return f"{REQUIREMENTS} line" if self.source == REQUIREMENTS else f"{self.source}, dependency"


class _Declared(NamedTuple):
    """What one file says; `lines` is None where it declares no dependencies."""

    source: str = ""
    lines: str | None = None
    notes: tuple[str, ...] = ()
    constraints: str = ""
    is_complete: bool = False


def read(code: Path, handler: str, python: Interpreter = OWN_PYTHON) -> Dependencies:
    """What the code at a path declares. Blocks. Args: handler: "module:attr", whose file may have a PEP 723 block; python: the
    interpreter that is to run it.

    Raises: BadArchive for a file that cannot be read; ResolveFailed when it requires another Python."""
    used = _requirements(code)
    notes: list[str] = []
    sources = (
        partial(_pylock, code, python),
        partial(_uv_lock, code, python),
        partial(_pyproject, code, python),
        partial(_script, code, handler, python),
    )
    for declares in sources:
        try:
            declared = declares()
        except BadArchive as error:
            if used is None:
                raise
            notes.append(f"{error.message}; it is ignored, the dependencies of {used.source} are used")
            continue
        notes += declared.notes
        if declared.lines is None:
            continue
        if used is None:
            used = declared
        elif (used.source, declared.source) != (lock_files.UV_LOCK, PYPROJECT):
            notes.append(f"the dependencies of {declared.source} are ignored, those of {used.source} are used")
    notes += _unread(code, used)
    return _missing(code, used, notes, python) if used is not None else Dependencies(notes=tuple(notes))


def _requirements(code: Path) -> _Declared | None:
    text = read_text(code, REQUIREMENTS, MAX_BYTES)
    if text is None:
        return None
    files = requirement_files.read(code, REQUIREMENTS, text)
    return _Declared(REQUIREMENTS, files.text, constraints=files.constraints)


def _unread(code: Path, used: _Declared | None) -> list[str]:
    """What is said of files of other tools. Raises: ResolveFailed if one has dependencies and nothing else declares any."""
    file, command = other_tools.unread(code)
    if not file and used is None:
        text = read_text(code, PYPROJECT, MAX_BYTES)
        if text is not None and other_tools.poetry_dependencies(_parsed(PYPROJECT, text)):
            file, command = f"[tool.poetry.dependencies] of {PYPROJECT}", other_tools.POETRY
    if not file:
        return []
    if used is None and not _distributions(code):
        raise ResolveFailed(f"{file} is not read; write its dependencies as a requirements.txt: {command}")
    return [f"{file} is not read; to use it: {command}"]


def _pylock(code: Path, python: Interpreter) -> _Declared:
    text = read_text(code, lock_files.PYLOCK, MAX_LOCK_BYTES)
    if text is None:
        return _Declared()
    lock = _parsed(lock_files.PYLOCK, text)
    _check_python(lock_files.PYLOCK, lock.get("requires-python"), python)
    return _locked(lock_files.PYLOCK, lock_files.from_pylock(lock, python))


def _uv_lock(code: Path, python: Interpreter) -> _Declared:
    text, pyproject = (
        read_text(code, *each) for each in ((lock_files.UV_LOCK, MAX_LOCK_BYTES), (PYPROJECT, MAX_BYTES))
    )
    if text is None:
        return _Declared()
    lock = _parsed(lock_files.UV_LOCK, text)
    _check_python(lock_files.UV_LOCK, lock.get("requires-python"), python)
    project = _parsed(PYPROJECT, pyproject).get("project") if pyproject is not None else None
    lines = lock_files.from_uv_lock(lock, project if isinstance(project, dict) else None, python)
    return _locked(lock_files.UV_LOCK, lines)


def _locked(file: str, lines: list[str]) -> _Declared:
    return _Declared(file, "".join(f"{line}\n" for line in lines), is_complete=True)


def _missing(code: Path, used: _Declared, notes: list[str], python: Interpreter) -> Dependencies:
    """Return the declared dependencies that the code does not bring."""
    text = used.lines or ""
    brought = _distributions(code)
    if (code / STAND_IN).is_file():
        brought["sockd"] = Version(sockd.__version__)
    missing = requirements.without(text, brought, python.marker_variables) if brought else text
    if missing == text:
        return Dependencies(used.source, text, tuple(notes), used.constraints, used.is_complete)
    note = f"packages of {used.source} that are in the code are used as they are"
    return Dependencies(used.source, missing or None, (*notes, note), used.constraints, used.is_complete)


def _pyproject(code: Path, python: Interpreter) -> _Declared:
    text = read_text(code, PYPROJECT, MAX_BYTES)
    if text is None:
        return _Declared()
    table = _parsed(PYPROJECT, text)
    project = table.get("project")
    if not isinstance(project, dict):
        project = {}
    _check_python(PYPROJECT, project.get("requires-python"), python)
    notes = []
    if "dependencies" in _list(project.get("dynamic")):
        notes.append(
            f"{PYPROJECT}: its dependencies are dynamic, so a build backend would have to be run; they are ignored"
        )
    ignored = [
        *(["project.optional-dependencies"] if project.get("optional-dependencies") else []),
        *(["dependency-groups"] if table.get("dependency-groups") else []),
        *_ignored_tools(table),
    ]
    if ignored:
        notes.append(f"{PYPROJECT}: {', '.join(ignored)} ignored; project.dependencies alone are installed")
    return _Declared(PYPROJECT, _lines(PYPROJECT, project.get("dependencies")), tuple(notes))


def _script(code: Path, handler: str, python: Interpreter) -> _Declared:
    """The PEP 723 block of the entry file."""
    file = f"{handler.partition(':')[0].replace('.', '/')}.py"
    if not os.path.lexists(code / file) or (code / file).lstat().st_size > MAX_SOURCE_BYTES:
        return _Declared()
    block = _block(file, read_bytes(code, file, MAX_SOURCE_BYTES).decode(errors="replace"))
    if block is None:
        return _Declared()
    table = _parsed(file, block)
    _check_python(file, table.get("requires-python"), python)
    ignored = _ignored_tools(table)
    notes = (f"{file}: {', '.join(ignored)} ignored",) if ignored else ()
    return _Declared(file, _lines(file, table.get("dependencies")), notes)


def _block(file: str, source: str) -> str | None:
    """The text of `# /// script`. As PEP 723's reference: it ends at the last `# ///` of the comment lines that follow."""
    found = None
    lines = source.splitlines()
    number = 0
    while number < len(lines):
        number += 1
        if lines[number - 1] != _BEGIN:
            continue
        begin = number
        while number < len(lines) and (lines[number] == "#" or lines[number].startswith("# ")):
            number += 1
        comments = lines[begin:number]
        if _END not in comments:
            number = begin
            continue
        if found is not None:
            raise BadArchive(f"{file} has more than one block '{_BEGIN}'")
        last = len(comments) - 1 - comments[::-1].index(_END)
        found = "\n".join(line[2:] for line in comments[:last])
    if found is not None and len(found) > MAX_BLOCK_BYTES:
        raise BadArchive(f"{file}: its block '{_BEGIN}' is longer than {MAX_BLOCK_BYTES} characters")
    return found


def _parsed(file: str, text: str) -> dict[str, Any]:
    try:
        return toml.loads(text)
    except toml.BadToml as error:
        raise BadArchive(f"{file} cannot be read: {error}") from None


def _ignored_tools(table: dict[str, Any]) -> list[str]:
    """Settings of uv that say which packages are installed and from where, which is for the worker to say."""
    tool = table.get("tool")
    own = tool.get("uv") if isinstance(tool, dict) else None
    return [f"tool.uv.{key}" for key in own if key not in UV_PROJECT] if isinstance(own, dict) else []


def _lines(file: str, dependencies: object) -> str | None:
    """A list of PEP 508 texts as lines of a requirements.txt. Raises: BadArchive."""
    if dependencies is None:
        return None
    if not isinstance(dependencies, list) or not all(isinstance(each, str) for each in dependencies):
        raise BadArchive(f"{file}: dependencies must be a list of texts")
    if len(dependencies) > MAX_DEPENDENCIES:
        raise BadArchive(f"{file}: at most {MAX_DEPENDENCIES} dependencies are read")
    for number, each in enumerate(dependencies, 1):
        if not each.strip() or not each.isprintable() or each.endswith("\\"):
            raise BadArchive(f"{file}, dependency {number}: {each[:80]!r} is not a requirement")
    return "".join(f"{each}\n" for each in dependencies)


def _check_python(file: str, required: object, python: Interpreter) -> None:
    """Raises: ResolveFailed when the function's Python is not among those."""
    if required is None:
        return
    try:
        is_fit = isinstance(required, str) and SpecifierSet(required).contains(python.words, prereleases=True)
    except InvalidSpecifier:
        raise BadArchive(f"{file}: requires-python = {str(required)[:80]!r} is not a version specifier") from None
    if not is_fit:
        whose = "this worker runs" if python is OWN_PYTHON else "the function asks for"
        hint = '; name another in sockd.toml: python = "3.N"' if python is OWN_PYTHON else ""
        raise ResolveFailed(f"{file}: requires-python = {required!r}, and {whose} Python {python.words}{hint}")


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []


def _distributions(directory: Path) -> dict[str, Version]:
    """Return the distributions that were installed into the top of a code tree (`pip install --target`), by normalised
    name."""
    found = {}
    for entry in os.listdir(directory):
        name, _, version = entry.removesuffix(".dist-info").rpartition("-")
        if entry.endswith(".dist-info") and os.path.isfile(directory / entry / "METADATA"):
            with suppress(InvalidVersion):
                found[str(canonicalize_name(name))] = Version(version)
    return found
